"""fednode."""
