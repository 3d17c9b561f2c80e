"""Experiments: sweeps of simulations described in one file, run in parallel processes, reported on one page."""
