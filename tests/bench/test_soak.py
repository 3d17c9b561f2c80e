"""The soak of real nodes: its drawings and figures; the run itself is a long test."""

from __future__ import annotations

import pytest

from bench.soak import EVERY, Sample, compute_slopes, draw_faults
from bench.usage import Usage

pytestmark = pytest.mark.outer

ROUNDS = 100


def make_sample(height: int, life: int, daemon_mb: float, disk_mb: float) -> Sample:
    usage = Usage(daemon_mb, 30, 12)
    return Sample("node1", height, float(height), life, 7, usage, usage, 4.0, 10, disk_mb)


def test_faults_follow_from_the_seed_and_spare_the_first_node_and_the_last_rounds() -> None:
    faults = draw_faults(4, 200, seed=1)
    assert faults == draw_faults(4, 200, seed=1)
    assert faults != draw_faults(4, 200, seed=2)
    assert {fault.kind for fault in faults} == {"kill", "freeze"}
    assert {fault.node for fault in faults} == {1, 2, 3}
    assert [fault.height for fault in faults] == sorted({fault.height for fault in faults})
    assert max(fault.height for fault in faults) < 200 - EVERY
    assert draw_faults(1, 200, seed=1) == ()


def test_memory_is_judged_over_the_longest_life_and_disk_over_all() -> None:
    young = [make_sample(height, 1, 90.0, height / 10) for height in (20, 25, 30)]
    old = [make_sample(height, 2, 50.0 + height / 100, height / 10) for height in (50, 60, 70, 80)]
    first = [make_sample(5, 1, 500.0, 500.0)]  # before the warm-up is over
    slopes = compute_slopes([*first, *young, *old], "node1", ROUNDS)
    assert slopes["daemon_mb"] == pytest.approx(1.0)
    assert slopes["disk_mb"] == pytest.approx(10.0)
    assert slopes["daemon_fds"] == 0
    assert compute_slopes(young[:2], "node1", ROUNDS)["daemon_mb"] is None
