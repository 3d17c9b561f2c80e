"""A site's part in agreed statistics: the sums of its training samples, computed where the samples are.

Values are rounded to units of 2^-44 one by one, and added as integers: the sums over all sites are those of the pooled
samples, to the last digit. Where samples are hidden they have noise (`ml.data.hidden_statistics`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ml.aggregation.sums import (
    LIMIT_BITS,
    PER_BIN,
    PER_CLASS,
    PRESENT,
    SQUARE_DIGITS,
    SUM_DIGITS,
    UNIT_BITS,
    Integers,
    to_digits,
    write_by_class,
)
from ml.data.base import Images, Labels
from ml.data.fitted import FittedImages
from ml.errors import DataError
from ml.payload import Array
from ml.specs.statistics import Agreement
from ml.specs.statistics_checks import round_down

_PART_BITS = 32  # bits of an integer that are added at a time; their sum over a chunk fits an int64
CHUNK_VALUES = 1 << 20


def compute_statistics(
    x_NCHW: Images | FittedImages, y_N: Labels, num_classes: int, agreement: Agreement
) -> dict[str, Array]:
    """Returns the payload of sums over samples before any normalisation; all zeros where there are too few samples.
    Raises DataError for a value that is too large, or no number."""
    if len(y_N) < agreement.min_count:
        x_NCHW, y_N = x_NCHW[:0], y_N[:0]
    counted: dict[str, Array] = {}
    is_there_NC = np.ones((len(y_N), x_NCHW.shape[1]), bool)
    if not isinstance(x_NCHW, FittedImages):  # a table
        if agreement.edges:
            counted[PER_BIN] = count_bins(x_NCHW, agreement)
        if agreement.counts_present:
            x_NCHW, is_there_NC = _leave_out_empty(x_NCHW, agreement.min_count)
            counted[PRESENT] = is_there_NC.sum(axis=0, dtype=np.int64)
        x_NCHW = _round_categories(x_NCHW, agreement)
    sums, squares = sum_values(x_NCHW)
    payload: dict[str, Array] = {
        "count": np.array(len(y_N), np.int64),
        "sums": to_digits(sums, SUM_DIGITS),
        "squares": to_digits(squares, SQUARE_DIGITS),
        **counted,
    }
    if agreement.class_counts:
        payload[PER_CLASS] = count_classes(y_N, num_classes, agreement.min_count)
    if agreement.correlations:
        payload |= write_by_class(_sum_by_class(x_NCHW, is_there_NC, y_N, num_classes, agreement))
    return payload


def _sum_by_class(
    x_NCHW: Images | FittedImages, is_there_NC: NDArray[np.bool_], y_N: Labels, num_classes: int, agreement: Agreement
) -> Integers:
    """Returns the counts and sums by class and channel that `read_by_class` reads; 0 for a class in which few samples
    have a value."""
    counts_KC = count_by_class(is_there_NC, y_N, num_classes)
    counts_KC = leave_out_few(counts_KC, is_there_NC.sum(axis=0), agreement.min_count)
    numbers_3KC: Integers = np.zeros((3, *counts_KC.shape), object)
    for k in np.flatnonzero(counts_KC.any(axis=1)):
        numbers_3KC[:, k] = counts_KC[k].tolist(), *sum_values(x_NCHW[np.flatnonzero(y_N == k)])
    numbers_3KC *= counts_KC > 0
    for channel in (channel for places in agreement.categories for channel in places):
        rows_K = numbers_3KC[1, :, channel] >> UNIT_BITS
        rows_K -= rows_K % agreement.min_count
        numbers_3KC[1:, :, channel] = rows_K << UNIT_BITS, rows_K << 2 * UNIT_BITS
    return numbers_3KC


def count_by_class(is_there_NC: NDArray[np.bool_], y_N: Labels, num_classes: int) -> NDArray[np.int64]:
    """Returns int64[K, C]: how many samples of each class have a value of each channel."""
    counts_KC = np.zeros((num_classes, is_there_NC.shape[1]), np.int64)
    np.add.at(counts_KC, y_N, is_there_NC.astype(np.int64))
    return counts_KC


def leave_out_few(counts_KC: NDArray[np.int64], all_C: NDArray[np.int64], min_count: int) -> NDArray[np.int64]:
    """Returns the counts with 0 for a class with fewer than `min_count` of all, and 0 for all classes where the others
    would reveal the count that is left out."""
    left_KC = np.where(counts_KC < min_count, 0, counts_KC)
    rest_C = all_C - left_KC.sum(axis=0)
    left_KC[:, (rest_C > 0) & (rest_C < min_count)] = 0
    return left_KC


def count_classes(y_N: Labels, num_classes: int, min_count: int) -> Array:
    """Returns int64[K]: 0 for a class with fewer than `min_count` samples, and 0 for all where the others would reveal
    the count that is left out."""
    counts_K = np.bincount(y_N, minlength=num_classes).astype(np.int64)
    return leave_out_few(counts_K[:, None], np.array([len(y_N)]), min_count)[:, 0]


def count_bins(x_NCHW: Images, agreement: Agreement) -> Array:
    """Returns int64[B]: how many values of each feature lie in each of its bins, rounded down. A value on an edge
    belongs to the bin above it."""
    return np.concatenate(
        [
            round_down(counts * (counts.sum() >= agreement.min_count), agreement.min_count)
            for counts in sort_into_bins(x_NCHW, agreement).values()
        ]
    )


def sort_into_bins(x_NCHW: Images, agreement: Agreement) -> dict[int, NDArray[np.int64]]:
    """Returns how many values lie in each bin, by the place of each feature that has bins."""
    counts = {}
    for feature, (values, edges) in enumerate(zip(x_NCHW[:, :, 0, 0].T, agreement.edges, strict=True)):
        if edges:
            known = values[~np.isnan(values)].astype(np.float64)
            places = np.searchsorted(edges, known, side="right")
            counts[feature] = np.bincount(places, minlength=len(edges) + 1).astype(np.int64)
    return counts


def _leave_out_empty(x_NCHW: Images, min_count: int) -> tuple[Images, NDArray[np.bool_]]:
    """Returns the samples of a table with 0 in place of empty cells, which adds nothing to a sum, and a mask of the
    cells that have a value. A feature with fewer than `min_count` values counts as empty."""
    is_there_NC = ~np.isnan(x_NCHW[:, :, 0, 0])
    is_there_NC &= is_there_NC.sum(axis=0) >= min_count
    left: Images = np.where(is_there_NC[:, :, None, None], x_NCHW, np.float32(0))
    return left, is_there_NC


def _round_categories(x_NCHW: Images, agreement: Agreement) -> Images:
    """Returns the samples with so few rows of each value of a category that their number is a multiple of
    `min_count`."""
    x_NCHW = x_NCHW.copy() if agreement.categories else x_NCHW
    for channel in (channel for places in agreement.categories for channel in places):
        rows = np.flatnonzero(x_NCHW[:, channel, 0, 0])
        x_NCHW[rows[: len(rows) % agreement.min_count], channel] = 0.0
    return x_NCHW


def sum_values(x_NCHW: Images | FittedImages) -> tuple[list[int], list[int]]:
    """Returns the sum of each channel and the sum of its squares, in units and in square units."""
    num_channels = x_NCHW.shape[1]
    sums, squares = [0] * num_channels, [0] * num_channels
    step = max(1, CHUNK_VALUES // max(1, int(np.prod(x_NCHW.shape[1:]))))
    for start in range(0, len(x_NCHW), step):
        units = np.rint(np.ldexp(np.asarray(x_NCHW[start : start + step], np.float64), UNIT_BITS))
        _check_size(units)
        # A float32 has 24 bits, so that its square is exact in a float64, and so is each part of it.
        sums = [a + b for a, b in zip(sums, _add_up(units), strict=True)]
        squares = [a + b for a, b in zip(squares, _add_up(np.square(units)), strict=True)]
    return sums, squares


def _check_size(units: NDArray[np.float64]) -> None:
    largest_C = np.abs(units).max(axis=(0, 2, 3), initial=0)
    channel = int(largest_C.argmax())
    if not largest_C[channel] < 2.0 ** (LIMIT_BITS + UNIT_BITS):  # not-a-number fails, too
        raise DataError(
            f"feature {channel}: expected values below 2^{LIMIT_BITS} either way for agreed statistics, "
            f"got {np.ldexp(largest_C[channel], -UNIT_BITS):g}"
        )


def _add_up(whole_NCHW: NDArray[np.float64]) -> Iterable[int]:
    """Returns the exact sum of whole numbers, by channel."""
    rest, sign = np.abs(whole_NCHW), np.sign(whole_NCHW)
    totals, shift = [0] * whole_NCHW.shape[1], 0
    while rest.any():
        above = np.floor(np.ldexp(rest, -_PART_BITS))
        part = ((rest - np.ldexp(above, _PART_BITS)) * sign).astype(np.int64).sum(axis=(0, 2, 3))
        totals = [total + (own << shift) for total, own in zip(totals, part.tolist(), strict=True)]
        rest, shift = above, shift + _PART_BITS
    return totals
