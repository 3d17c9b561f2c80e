"""Federated learning as the papers describe it: data, models, methods, aggregation and simulation. No network, no
ledger."""
