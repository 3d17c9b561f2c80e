"""A site's word in agreed statistics: the sums of its training samples, made where the samples are.

Values are rounded to units of 2^-44 one by one, and added as integers: the sums over all sites are those of the pooled
samples, to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ml.aggregation.sums import LIMIT_BITS, PER_CLASS, SQUARE_DIGITS, SUM_DIGITS, UNIT_BITS, to_digits
from ml.data.base import Images, Labels
from ml.errors import DataError
from ml.payload import Array
from ml.specs.statistics import Agreement

_PART_BITS = 32  # of an integer that is added in parts; a part's sum over a chunk fits an int64
_CHUNK_VALUES = 1 << 20


def compute_statistics(x_NCHW: Images, y_N: Labels, num_classes: int, agreement: Agreement) -> dict[str, Array]:
    """The payload of samples as they are before any normalisation: all zeros of too few. Raises DataError for a value
    that is too large, or no number."""
    told = len(y_N) >= agreement.min_count
    sums, squares = _sum(x_NCHW if told else x_NCHW[:0])
    payload: dict[str, Array] = {
        "count": np.array(len(y_N) if told else 0, np.int64),
        "sums": to_digits(sums, SUM_DIGITS),
        "squares": to_digits(squares, SQUARE_DIGITS),
    }
    if agreement.class_counts:
        payload[PER_CLASS] = count_classes(y_N if told else y_N[:0], num_classes, agreement.min_count)
    return payload


def count_classes(y_N: Labels, num_classes: int, min_count: int) -> Array:
    """int64[K]; 0 for a class with fewer than `min_count` samples, and for all where the rest would give these away."""
    counts_K = np.bincount(y_N, minlength=num_classes).astype(np.int64)
    counts_K[counts_K < min_count] = 0
    rest = len(y_N) - int(counts_K.sum())
    return np.zeros_like(counts_K) if 0 < rest < min_count else counts_K


def _sum(x_NCHW: Images) -> tuple[list[int], list[int]]:
    """The sums of each channel and of its squares, in units and in square units."""
    num_channels = x_NCHW.shape[1]
    sums, squares = [0] * num_channels, [0] * num_channels
    step = max(1, _CHUNK_VALUES // max(1, int(np.prod(x_NCHW.shape[1:]))))
    for start in range(0, len(x_NCHW), step):
        units = np.rint(np.ldexp(x_NCHW[start : start + step].astype(np.float64), UNIT_BITS))
        _check_size(units)
        # A float32 has 24 bits, so that its square is exact in a float64, and so is each part of it.
        sums = [a + b for a, b in zip(sums, _add_up(units), strict=True)]
        squares = [a + b for a, b in zip(squares, _add_up(np.square(units)), strict=True)]
    return sums, squares


def _check_size(units: NDArray[np.float64]) -> None:
    largest_C = np.abs(units).max(axis=(0, 2, 3), initial=0)
    channel = int(largest_C.argmax())
    if not largest_C[channel] < 2.0 ** (LIMIT_BITS + UNIT_BITS):  # nor is what is no number
        raise DataError(
            f"feature {channel}: expected values below 2^{LIMIT_BITS} either way for agreed statistics, "
            f"got {np.ldexp(largest_C[channel], -UNIT_BITS):g}"
        )


def _add_up(whole_NCHW: NDArray[np.float64]) -> Iterable[int]:
    """The exact sum of whole numbers, by channel."""
    rest, sign = np.abs(whole_NCHW), np.sign(whole_NCHW)
    totals, shift = [0] * whole_NCHW.shape[1], 0
    while rest.any():
        above = np.floor(np.ldexp(rest, -_PART_BITS))
        part = ((rest - np.ldexp(above, _PART_BITS)) * sign).astype(np.int64).sum(axis=(0, 2, 3))
        totals = [total + (own << shift) for total, own in zip(totals, part.tolist(), strict=True)]
        rest, shift = above, shift + _PART_BITS
    return totals
