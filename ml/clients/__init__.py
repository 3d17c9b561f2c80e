"""Clients: made of a specification and data, trained alone or many at once, asked, and probed."""
