"""Readers of data, one for each format. `ml.data.registry` finds them by name."""
