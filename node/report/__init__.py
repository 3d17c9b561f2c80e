"""A run as one page that can be printed: what the chain says of it, and what the node measured."""
