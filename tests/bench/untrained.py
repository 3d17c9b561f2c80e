"""Federations in whose rounds next to nothing is trained."""

from __future__ import annotations

from node.bench.fixtures import DIFFICULTY
from node.testnet.layout import TestnetSpec


def make_untrained_spec(num_nodes: int, seed: int) -> TestnetSpec:
    """Without end, and as good as without training: what is left of a round is the ledger's."""
    return TestnetSpec(num_nodes=num_nodes, method="local", partition="iid", rounds=0, seed=seed, difficulty=DIFFICULTY)
