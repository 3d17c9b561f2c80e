"""Readers of data, a format each. `ml.data.registry` knows them by name."""
