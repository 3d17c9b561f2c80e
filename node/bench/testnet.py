"""The federations of real nodes that benchmarks measure: on digits, on this machine, and gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from node.bench.place import DIFFICULTY, temporary_directory
from node.testnet.layout import Testnet, TestnetSpec, make_testnet


@contextmanager
def temporary_testnet(spec: TestnetSpec) -> Iterator[Testnet]:
    """On ports that are free now; its directory goes when the context is left."""
    with temporary_directory() as directory:
        yield make_testnet(directory / "cluster", replace(spec, base_port=0, i_understand=True))


def make_untrained_spec(num_nodes: int, seed: int) -> TestnetSpec:
    """Without end, and as good as without training: what is left of a round is the ledger's."""
    return TestnetSpec(num_nodes=num_nodes, method="local", partition="iid", rounds=0, seed=seed, difficulty=DIFFICULTY)
