"""The answers from a store: reads, verifies, compares, explains, exports and imports it."""
