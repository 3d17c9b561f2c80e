"""One height of the ledger: the pure machine that decides, its events and actions, and the chain's tip below it."""
