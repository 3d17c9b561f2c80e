"""A run as one page that can be printed: its history on the chain, and the node's measurements."""
