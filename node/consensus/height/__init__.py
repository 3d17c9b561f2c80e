"""One height of the ledger: the pure machine that decides, its events and actions, and the tip it stands on."""
