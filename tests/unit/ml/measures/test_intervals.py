"""Intervals: Wilson's from the literature, and coverage as it is promised."""

from __future__ import annotations

import numpy as np
import pytest

from ml.measures.intervals import compute_bootstrap, compute_wilson


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    # Newcombe (1998), table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_are_those_of_the_literature(count: int, of: int, low: float, high: float) -> None:
    assert compute_wilson(count, of) == pytest.approx((low, high), abs=5e-5)
    assert compute_wilson(of - count, of) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_a_bootstrap_of_a_mean_is_close_to_the_normal_interval() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    interval = compute_bootstrap(lambda at: {"mean": float(values[at].mean())}, len(values))["mean"]
    half = 1.96 * values.std() / 20
    assert interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)


def test_a_bootstrap_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        values = rng.normal(0.0, 1.0, 60)
        found = compute_bootstrap(lambda at, v=values: {"": float(v[at].mean())}, 60, resamples=200, seed=seed)[""]  # type: ignore[misc]
        hits += found.low <= 0.0 <= found.high
    assert 180 <= hits <= 199


def test_what_can_hardly_be_said_has_no_interval() -> None:
    assert compute_bootstrap(lambda at: {} if at[0] else {"rare": 1.0}, 10, resamples=20) == {}
