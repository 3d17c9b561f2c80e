"""Clients: built from a specification and data, trained alone or many at once, asked for predictions, and probed."""
