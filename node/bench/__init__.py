"""Benchmarks: each measures the product against a baseline in the same run. `node.cli.bench` prints what they find."""
