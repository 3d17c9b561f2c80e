"""The benchmark of masked sums: what it measures of members in memory, and how pairs are compared."""

from __future__ import annotations

import pytest

from bench import masked as bench_masked
from bench.lies import measure_lies

pytestmark = pytest.mark.outer


def test_each_pair_is_compared_and_the_median_told() -> None:
    plain = [{"round_s": 1.0}, {"round_s": 2.0}, {"round_s": 4.0}]
    masked = [{"round_s": 2.0}, {"round_s": 5.0}, {"round_s": 7.0}]
    assert bench_masked._compare(plain, masked) == {"round_s": {"median": 2.0, "min": 1.75, "max": 2.5}}


def test_members_in_memory_send_more_with_masks_and_train_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_masked, "IN_MEMORY", 4)
    monkeypatch.setattr(bench_masked, "DIM", 8)
    monkeypatch.setattr(bench_masked, "ROUNDS_IN_MEMORY", 2)
    plain, masked = (bench_masked._measure_in_memory(name) for name in bench_masked.AGGREGATIONS)
    assert plain["round_s"] < masked["round_s"] < 3 * plain["round_s"]
    assert plain["messages"] < masked["messages"] < 3 * plain["messages"]
    assert plain["cpu_s"] > 0


def test_masks_are_timed_for_any_number_of_members() -> None:
    timed = bench_masked._time_masks(3, num_values=10)
    assert timed["members"] == 3
    assert timed["mask_s"] > 0
    assert timed["unmask_s"] > 0


def test_one_that_lies_sets_the_mean_and_a_radius_bounds_that() -> None:
    unbounded, bounded = measure_lies(1, honest_rounds=4, lying_rounds=2, radii=(None, 0.001))
    assert unbounded["before"] - unbounded["after"][1] > 0.2
    assert abs(bounded["before"] - bounded["after"][2]) < 0.1
