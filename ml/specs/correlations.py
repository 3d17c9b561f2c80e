"""Correlations of features with classes, computed from the sums of each class in agreed statistics.

With t = 1 for a sample of class k and 0 for any other, a feature x and t have Pearson's correlation

    r  =  (N S_k - N_k S) / sqrt((N Q - S^2) N_k (N - N_k)),

where N_k is the number of values of class k and S_k their sum, N and S the same for all classes together, and Q the sum
of all squares: the point-biserial correlation (Tate, *Correlation Between a Discrete and a Continuous Variable*, 1954)
of one class and the rest. Samples of classes whose sums a site has not sent are in none of these. All but the root is
exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ml.aggregation.sums import CLASS_PRESENT, CLASS_SQUARES, CLASS_SUMS, read_by_class
from ml.payload import Arrays
from ml.specs.statistics import Constants


def compute_correlations(arrays: Arrays, num_values: int) -> list[list[float | None]]:
    """Computes each channel's correlation with each class, where each sample has `num_values` of a channel; None if too
    few numbers were sent. Returns [] if the run asks for none."""
    numbers_3KC = read_by_class(arrays)
    if numbers_3KC is None:
        return []
    by_channel = [numbers_3KC[:, :, channel].tolist() for channel in range(numbers_3KC.shape[2])]
    return [_correlate(counts, sums, squares, num_values) for counts, sums, squares in by_channel]


def describe_classes(arrays: Arrays, num_values: int) -> list[list[tuple[int, float, float]]]:
    """Returns how many values there are of each class and channel, their mean and their deviation; [] if the run asks
    for none."""
    if CLASS_SUMS not in arrays:
        return []
    described = []
    for counts, sums, squares in zip(
        *(arrays[name] for name in (CLASS_PRESENT, CLASS_SUMS, CLASS_SQUARES)), strict=True
    ):
        told = {"counts": counts, "sums": sums, "squares": squares, "sites": np.array(0), "samples": np.array(0)}
        own = Constants.from_arrays(told, num_values)
        described.append(list(zip((counts * num_values).tolist(), own.mean, own.std, strict=True)))
    return described


def _correlate(
    counts: Sequence[int], sums: Sequence[int], squares: Sequence[int], num_values: int
) -> list[float | None]:
    own = [count * num_values for count in counts]
    n, total = sum(own), sum(sums)
    spread = n * sum(squares) - total * total
    found: list[float | None] = []
    for n_k, sum_k in zip(own, sums, strict=True):
        covariance, scale = n * sum_k - n_k * total, spread * n_k * (n - n_k)
        r = math.copysign(math.sqrt(Fraction(covariance**2, scale)), covariance) if scale > 0 else None
        found.append(None if r is None else min(max(r, -1.0), 1.0))
    return found
