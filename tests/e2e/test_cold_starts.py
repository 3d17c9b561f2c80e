"""A hundred federations from nothing: four real nodes that share one core reach round 3, every time."""

from __future__ import annotations

import sys

import pytest

from node.bench.fixtures import DIFFICULTY
from node.bench.round import measure_cold_starts
from node.testnet.layout import TestnetSpec

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NUM_STARTS = 100


@pytest.mark.timeout(2 * NUM_STARTS * 120)
def test_four_nodes_on_one_core_reach_round_3_each_time_they_start() -> None:
    spec = TestnetSpec(method="fedavg", partition="iid", difficulty=DIFFICULTY, base_port=0)
    found = measure_cold_starts(spec, NUM_STARTS, lambda what: print(what, file=sys.stderr, flush=True))
    print(found["seconds"], found["shared_first_block_s"])
    assert found["succeeded"] == NUM_STARTS, found["failures"]
