"""A federation in one process and one loop: the arithmetic of real nodes, without network, ledger or signatures."""
