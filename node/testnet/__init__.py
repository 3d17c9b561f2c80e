"""Federations to try: files for many nodes, and real processes."""
