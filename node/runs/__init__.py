"""Runs as a node goes by them: the method, the rules and the round of each height."""
