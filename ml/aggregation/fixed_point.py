"""Means of numbers in fixed point: sums of integers, which are exact and the same in any order.

    q = round(x * w * 2^b)        out = float32( sum(q) / (sum(w) * 2^b) )        element by element

A sum of such integers can be known while each of them is hidden (`ml.aggregation.masks`), and its mean has the same
bits as the one computed from the numbers themselves. b is as large as the run's limits leave room for: n members'
weights and numbers, all at their limits, sum to less than 2^62. So one number is off by 2^-(b+1) / w at most, and a
mean by as much over the members' mean weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ml.aggregation.box import clip_arrays, clip_classes
from ml.aggregation.contributed import (
    PLAIN,
    Given,
    RuleSettings,
    check_averaged,
    check_weights,
    combine_by_class,
    get_common_names,
    order_by_author,
)
from ml.errors import AggregationError
from ml.payload import Array, Arrays

Integers = NDArray[np.int64]

SUM_BITS = 62  # of a sum of all members' numbers; the rest of an int64 shows sums that are far out of range
LEAST_BITS = 8


def compute_fraction_bits(num_members: int, max_weight: int, max_abs: float) -> int:
    """Computes b, the bits after the point that a sum of so many members has room for; less than 0 if it has room for
    none."""
    return SUM_BITS - (num_members * max_weight * math.ceil(max_abs)).bit_length()


def to_fixed(values: Array, weight: int, bits: int) -> Integers:
    """Returns round(x * w * 2^b) for float32 numbers below the run's limit."""
    scaled: Integers = np.rint(np.ldexp(values.astype(np.float64) * np.float64(weight), bits)).astype(np.int64)
    return scaled


def from_fixed(total: Integers, weight: int, bits: int) -> Array:
    """Returns the float32 mean of which these are the sums."""
    mean: Array = (total.astype(np.float64) / np.ldexp(np.float64(weight), bits)).astype(np.float32)
    return mean


def is_in_range(total: Integers, weight: int, bits: int, max_abs: float, num_authors: int) -> bool:
    """Says whether these can be the sums of so many authors' numbers, of this weight together and none beyond the
    limit. Each number may be off by a half from rounding."""
    most = math.floor(Fraction(max_abs) * weight * 2**bits) + num_authors
    return bool(np.all((total >= -most) & (total <= most)))


def compute_fixed_mean(arrays: Sequence[Array], weights: Sequence[int], name: str, settings: RuleSettings) -> Array:
    """Computes the mean of arrays of one shape. Raises AggregationError."""
    check_averaged(arrays, name)
    check_weights(weights)
    bits = get_fraction_bits(settings)
    total = np.zeros(arrays[0].shape, np.int64)
    for array, weight in zip(arrays, weights, strict=True):
        total += to_fixed(array, weight, bits)
    return from_fixed(total, sum(weights), bits)


def get_fraction_bits(settings: RuleSettings) -> int:
    """Returns b of a run. Raises AggregationError if the number of members is unknown."""
    if settings.fraction_bits is None:
        raise AggregationError("masked_sum: expected the number of members, which says how exact a sum can be")
    return settings.fraction_bits


def fixed_mean(contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN) -> dict[str, Array]:
    """Returns each array's mean over the authors, weighted by their signed integer weights, and clipped if the run has
    a box."""
    ordered = order_by_author(contributions)
    weights = [c.weight for c in ordered]
    means = {
        name: compute_fixed_mean([c.arrays[name] for c in ordered], weights, name, settings)
        for name in get_common_names(ordered)
    }
    return means if settings.box is None else clip_arrays(means, parent, settings.box)[0]


def class_fixed_mean(contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN) -> dict[str, Array]:
    """Returns each class's mean over its holders, weighted by `counts` if their blobs have them, and clipped if the run
    has a box."""
    means = combine_by_class(
        contributions, lambda rows, counts: compute_fixed_mean(rows, counts, "prototypes", settings)
    )
    return means if settings.box is None else clip_classes(means, parent, settings.box)[0]
