"""The changes of a federation: their bytes, what each does to a state, and whose consent it needs (FEDERATION §2)."""
