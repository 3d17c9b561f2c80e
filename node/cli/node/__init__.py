"""Commands of one node: its files and keys, its start, its state, and control over it while it runs."""
