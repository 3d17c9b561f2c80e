"""Federations to try: files for many nodes, real processes, one process, synthetic chains."""
