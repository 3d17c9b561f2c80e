"""Intervals in which a measure lies with 95 % confidence: by Wilson's score for fractions, by the bootstrap for all
others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054  # of the normal distribution, two-sided 95 %
NUM_RESAMPLES = 1000


class Interval(NamedTuple):
    """The range from `low` to `high`."""

    low: float
    high: float


def compute_wilson(count: int, of: int) -> Interval:
    """Computes Wilson's interval of the fraction count / of, with `of` >= 1 (Wilson 1927): it stays in 0..1 and has a
    width also at its ends."""
    fraction, z2 = count / of, Z * Z
    centre = (fraction + z2 / (2 * of)) / (1 + z2 / of)
    half = Z / (1 + z2 / of) * math.sqrt(fraction * (1 - fraction) / of + z2 / (4 * of * of))
    return Interval(
        0.0 if count == 0 else max(0.0, centre - half),
        1.0 if count == of else min(1.0, centre + half),
    )


def compute_auc_error(auc: float, num_of: int, num_others: int) -> float:
    """Computes the standard error of an AUC on so many samples of a class, and of all others (Hanley and McNeil 1982);
    at 0.5 it is that of chance (Mann and Whitney 1947)."""
    both_of, both_others = auc / (2 - auc), 2 * auc * auc / (1 + auc)  # Q1 and Q2
    spread = auc * (1 - auc) + (num_of - 1) * (both_of - auc * auc) + (num_others - 1) * (both_others - auc * auc)
    return math.sqrt(max(0.0, spread) / (num_of * num_others))


def compute_bootstrap(
    compute: Callable[[NDArray[np.int64]], Mapping[str, float]],
    num_samples: int,
    *,
    resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> dict[str, Interval]:
    """Computes an interval of each figure that `compute` returns for the samples at some indices (Efron 1979, the
    percentiles 2.5 and 97.5). Leaves out figures that are undefined in most resamples."""
    rng = np.random.default_rng(seed)
    known: dict[str, list[float]] = {}
    for _ in range(resamples):
        for name, value in compute(rng.integers(0, num_samples, num_samples)).items():
            known.setdefault(name, []).append(value)
    return {
        name: Interval(*map(float, np.percentile(values, [2.5, 97.5])))
        for name, values in known.items()
        if len(values) > resamples // 2
    }
