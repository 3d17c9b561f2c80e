"""A site's word in agreed statistics: the sums of its training samples, made where the samples are.

Values are rounded to units of 2^-44 one by one, and added as integers: the sums over all sites are those of the pooled
samples, to the last digit.

Where samples are hidden, each value is cut to what its channel lies between, and brought to u in [-1, 1]. Of sample i
and channel c, a is the mean of u over its pixels and b that of u^2. What is added up is (a, b - 1/2) of each of C
channels. Since a^2 <= b and 0 <= b <= 1,

    a^2 + (b - 1/2)^2  <=  b^2 + 1/4  <=  5/4,

so a sample has no more than Delta = sqrt(5 C / 4) in all sums together: with zero in its place they differ by that
length at most. Each of the 2 C sums gets Gaussian noise of standard deviation sigma Delta, which is one Gaussian
mechanism of noise sigma. The number of samples n is not hidden. What is made of sums and n tells no more:

    m = A / n cut to [-1, 1],    v = B / n + 1/2 - m^2 cut to [min(sigma Delta / n, 1), 1]

are the mean and the variance of u as far as the noise leaves them; a variance below what noise has in it is not known,
and values within [-1, 1] have none above 1. The payload has the sums that n samples of this mean and variance have. So
no variance that anyone agrees on is negative, or nothing, because of noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from ml.aggregation.sums import LIMIT_BITS, PER_BIN, PER_CLASS, PRESENT, SQUARE_DIGITS, SUM_DIGITS, UNIT_BITS, to_digits
from ml.data.base import Images, Labels
from ml.data.fitted import FittedImages
from ml.errors import DataError
from ml.gaussian import add_noise
from ml.payload import Array
from ml.secret_stream import SecretStream
from ml.specs.statistics import Agreement, round_down

_PART_BITS = 32  # of an integer that is added in parts; a part's sum over a chunk fits an int64
_CHUNK_VALUES = 1 << 20


def compute_statistics(
    x_NCHW: Images | FittedImages, y_N: Labels, num_classes: int, agreement: Agreement
) -> dict[str, Array]:
    """The payload of samples as they are before any normalisation: all zeros of too few. Raises DataError for a value
    that is too large, or no number."""
    told = len(y_N) >= agreement.min_count
    x_NCHW = x_NCHW if told else x_NCHW[:0]
    bins: dict[str, Array] = {}
    if not isinstance(x_NCHW, FittedImages) and agreement.edges:
        bins = {PER_BIN: count_bins(x_NCHW, agreement)}
    present: dict[str, Array] = {}
    if not isinstance(x_NCHW, FittedImages) and agreement.counts_present:
        x_NCHW, present_C = _leave_out_empty(x_NCHW, agreement.min_count)
        x_NCHW = _round_categories(x_NCHW, agreement)
        present = {PRESENT: present_C}
    sums, squares = _sum(x_NCHW)
    payload: dict[str, Array] = {
        "count": np.array(len(y_N) if told else 0, np.int64),
        "sums": to_digits(sums, SUM_DIGITS),
        "squares": to_digits(squares, SQUARE_DIGITS),
        **present,
        **bins,
    }
    if agreement.class_counts:
        payload[PER_CLASS] = count_classes(y_N if told else y_N[:0], num_classes, agreement.min_count)
    return payload


@dataclass(frozen=True, slots=True, eq=False)
class StatisticsPrivacy:
    """The `noise` in sums of values that lie between `bounds`, by channel, in units of what a sample has in them all at
    most."""

    noise: float
    bounds: Sequence[tuple[float, float]]
    stream: SecretStream

    @property
    def sensitivity(self) -> float:
        """Delta: what a sample has at most in the 2 C sums together."""
        return math.sqrt(1.25 * len(self.bounds))


def compute_hidden_statistics(
    x_NCHW: Images | FittedImages, y_N: Labels, num_classes: int, agreement: Agreement, privacy: StatisticsPrivacy
) -> dict[str, Array]:
    """As `compute_statistics`, with noise that hides each sample's values."""
    told = len(y_N) >= agreement.min_count
    payload = compute_statistics(x_NCHW[:0], y_N[:0], num_classes, agreement)
    if agreement.class_counts:
        payload[PER_CLASS] = count_classes(y_N if told else y_N[:0], num_classes, agreement.min_count)
    if not told:
        return payload
    count, num_values = len(y_N), math.prod(x_NCHW.shape[2:])
    low_C, high_C = np.array(privacy.bounds).T
    sums = torch.from_numpy(np.stack(sum_moments(x_NCHW, low_C, high_C)))
    firsts_C, seconds_C = add_noise(sums, privacy.noise, privacy.sensitivity, privacy.stream).numpy()
    spread = privacy.noise * privacy.sensitivity
    m_C = (firsts_C / count).clip(-1.0, 1.0)
    v_C = (seconds_C / count + 0.5 - m_C**2).clip(min(spread / count, 1.0), 1.0)
    pairs = [
        _to_sums(count * num_values, *numbers)
        for numbers in zip(*(array.tolist() for array in (low_C, high_C, m_C, v_C)), strict=True)
    ]
    payload["count"] = np.array(count, np.int64)
    payload["sums"] = to_digits((total for total, _ in pairs), SUM_DIGITS)
    payload["squares"] = to_digits((square for _, square in pairs), SQUARE_DIGITS)
    return payload


def sum_moments(
    x_NCHW: Images | FittedImages, low_C: NDArray[np.float64], high_C: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sums over samples of a, and of b - 1/2, by channel."""
    middle, half = ((part.reshape(1, -1, 1, 1)) for part in ((low_C + high_C) / 2, (high_C - low_C) / 2))
    firsts_C, seconds_C = np.zeros_like(low_C), np.zeros_like(low_C)
    step = max(1, _CHUNK_VALUES // max(1, int(np.prod(x_NCHW.shape[1:]))))
    for start in range(0, len(x_NCHW), step):
        values = np.asarray(x_NCHW[start : start + step], np.float64)
        if not np.isfinite(values).all():
            raise DataError("expected numbers for agreed statistics, got a value that is none")
        u_NCHW = ((values - middle) / half).clip(-1.0, 1.0)
        firsts_C += u_NCHW.mean(axis=(2, 3)).sum(axis=0)
        seconds_C += (np.square(u_NCHW).mean(axis=(2, 3)) - 0.5).sum(axis=0)
    return firsts_C, seconds_C


def _to_sums(num: int, low: float, high: float, m: float, v: float) -> tuple[int, int]:
    """The sums that so many values between `low` and `high` have, and their squares, whose mean and variance are these
    where `low` is -1 and `high` 1: in units and square units, and so that values can have them."""
    middle, half = (Fraction(low) + Fraction(high)) / 2, (Fraction(high) - Fraction(low)) / 2
    mean = middle + half * Fraction(m)
    total = round(num * mean * (1 << UNIT_BITS))
    square = round(num * (mean**2 + half**2 * Fraction(v)) * (1 << (2 * UNIT_BITS)))
    return total, max(square, -(-total * total // num), abs(total))


def count_classes(y_N: Labels, num_classes: int, min_count: int) -> Array:
    """int64[K]; 0 for a class with fewer than `min_count` samples, and for all where the rest would give these away."""
    counts_K = np.bincount(y_N, minlength=num_classes).astype(np.int64)
    counts_K[counts_K < min_count] = 0
    rest = len(y_N) - int(counts_K.sum())
    return np.zeros_like(counts_K) if 0 < rest < min_count else counts_K


def count_bins(x_NCHW: Images, agreement: Agreement) -> Array:
    """int64[B]: how many values of each feature lie in each of its bins, an edge in the one that it begins; rounded
    down."""
    told = []
    for values, edges in zip(x_NCHW[:, :, 0, 0].T, agreement.edges, strict=True):
        if edges:
            known = values[~np.isnan(values)].astype(np.float64)
            known = known[: 0 if len(known) < agreement.min_count else None]
            counts = np.bincount(np.searchsorted(edges, known, side="right"), minlength=len(edges) + 1)
            told.append(round_down(counts, agreement.min_count))
    return np.concatenate(told).astype(np.int64)


def _leave_out_empty(x_NCHW: Images, min_count: int) -> tuple[Images, NDArray[np.int64]]:
    """The samples with 0 where a cell is empty, which adds nothing to a sum, and how many are not, by channel; of one
    with fewer than `min_count` nothing is left."""
    is_empty = np.isnan(x_NCHW)
    present_C = (~is_empty).sum(axis=(0, 2, 3), dtype=np.int64)
    present_C[present_C < min_count] = 0
    left: Images = np.where(is_empty | (present_C == 0).reshape(1, -1, 1, 1), np.float32(0), x_NCHW)
    return left, present_C


def _round_categories(x_NCHW: Images, agreement: Agreement) -> Images:
    """The samples with so few rows of each value of a category left that there is a multiple of `min_count` of each."""
    x_NCHW = x_NCHW.copy() if agreement.categories else x_NCHW
    for channel in (channel for places in agreement.categories for channel in places):
        rows = np.flatnonzero(x_NCHW[:, channel, 0, 0])
        x_NCHW[rows[: len(rows) % agreement.min_count], channel] = 0.0
    return x_NCHW


def _sum(x_NCHW: Images | FittedImages) -> tuple[list[int], list[int]]:
    """The sums of each channel and of its squares, in units and in square units."""
    num_channels = x_NCHW.shape[1]
    sums, squares = [0] * num_channels, [0] * num_channels
    step = max(1, _CHUNK_VALUES // max(1, int(np.prod(x_NCHW.shape[1:]))))
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
