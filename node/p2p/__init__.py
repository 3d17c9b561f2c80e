"""Peers and bytes: who is connected at which address, what they may send, and what they are refused."""
