"""A site's part in agreed statistics where samples are hidden: sums of values within bounds, and counts, with noise.

Each value is cut to its channel's bounds, and scaled to u in [-1, 1]. For sample i and channel c, a is the mean of u
over its pixels and b that of u^2. The sums are of (a, b - 1/2) for each of C channels. Since a^2 <= b and 0 <= b <= 1,

    a^2 + (b - 1/2)^2  <=  b^2 + 1/4  <=  5/4.

Where cells may be empty, a sample also adds 1 to the number of values of channel c, or nothing at all to c; for a
feature with bins it adds 1 to one of them, and 1 to its class where classes are counted. Where sums are also computed
by class, it adds the same once more to those of its class. With E = 1 where cells may be empty, and 2 C in place of C
where there are sums by class, a sample contributes to all numbers together at most

    Delta^2  =  C (5/4 + E) [+ C (5/4 + E)]  +  features with bins  [+ 1, where classes are counted]:

Replacing a sample by zero changes the numbers by that length at most. Each number gets Gaussian noise of standard
deviation sigma Delta, which is one Gaussian mechanism of noise sigma. The number of samples is not hidden. Results
computed from these numbers reveal no more. With n samples, or n values of a channel,

    m = A / n cut to [-1, 1],    v = B / n + 1/2 - m^2 cut to [min(sigma Delta / n, 1), 1]

are the mean and the variance of u as far as the noise leaves them; a variance below that of the noise is not known, and
values within [-1, 1] have none above 1. The payload has the sums that n samples of this mean and variance have, so that
noise never makes an agreed variance negative or zero. Counts are rounded to possible whole numbers, and few samples are
reported as none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from ml.aggregation import MAX_WEIGHT
from ml.aggregation.sums import (
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
from ml.data.statistics import CHUNK_VALUES, compute_statistics, count_by_class, sort_into_bins
from ml.errors import DataError
from ml.gaussian import add_noise
from ml.payload import Array
from ml.secret_stream import SecretStream
from ml.specs.statistics import Agreement
from ml.specs.statistics_checks import round_down

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StatisticsPrivacy:
    """The noise that hides samples in sums of values within `bounds`, by channel. `noise` is in units of the
    sensitivity, the most that one sample contributes to all sums."""

    noise: float
    bounds: Sequence[tuple[float, float]]
    stream: SecretStream

    def get_sensitivity(self, agreement: Agreement) -> float:
        """Returns Delta, the most that one sample contributes to all numbers together."""
        by_channel = 1.25 + agreement.counts_present
        times = 1 + agreement.correlations
        counted = sum(map(bool, agreement.edges)) + (agreement.class_counts or agreement.correlations)
        return math.sqrt(len(self.bounds) * by_channel * times + counted)


def compute_hidden_statistics(
    x_NCHW: Images | FittedImages, y_N: Labels, num_classes: int, agreement: Agreement, privacy: StatisticsPrivacy
) -> dict[str, Array]:
    """Returns the payload of `compute_statistics` with noise that hides each sample's values and its class."""
    payload = compute_statistics(x_NCHW[:0], y_N[:0], num_classes, agreement)
    if len(y_N) < agreement.min_count:
        return payload
    summed = add_up_hidden(x_NCHW, y_N, num_classes, agreement, privacy.bounds)
    delta = privacy.get_sensitivity(agreement)
    flat = torch.from_numpy(np.concatenate([part.reshape(-1) for part in summed.values()]))
    noisy = add_noise(flat, privacy.noise, delta, privacy.stream).numpy()
    ends = np.cumsum([part.size for part in summed.values()])[:-1]
    parts = zip(summed.items(), np.split(noisy, ends), strict=True)
    hidden = {name: own.reshape(part.shape) for (name, part), own in parts}

    all_ = len(y_N)
    site = _Site(privacy.bounds, math.prod(x_NCHW.shape[2:]), privacy.noise * delta, agreement)
    present_C = np.full(len(privacy.bounds), all_)
    if agreement.counts_present:
        present_C = np.rint(hidden[PRESENT]).clip(0, all_).astype(np.int64)
        present_C[present_C < agreement.min_count] = 0
        payload[PRESENT] = present_C
    sums, squares = site.make_sums(present_C, *hidden["moments"], most=all_)
    payload |= {
        "count": np.array(all_, np.int64),
        "sums": to_digits(sums, SUM_DIGITS),
        "squares": to_digits(squares, SQUARE_DIGITS),
    }
    if agreement.edges:
        told = [
            round_down(settle(hidden[f"{PER_BIN}/{feature}"], int(present_C[feature])), agreement.min_count)
            for feature, edges in enumerate(agreement.edges)
            if edges
        ]
        payload[PER_BIN] = np.concatenate(told)
    if agreement.class_counts:
        payload[PER_CLASS] = settle_classes(hidden[PER_CLASS], all_, agreement.min_count)
    if agreement.correlations:
        is_counted = agreement.counts_present
        there_KC = hidden["class_present"] if is_counted else np.tile(hidden[PER_CLASS][:, None], len(present_C))
        payload |= write_by_class(_hide_by_class(site, there_KC, hidden["class_moments"], present_C))
    return payload


def _hide_by_class(site: _Site, there_KC: Floats, moments_K2C: Floats, present_C: NDArray[np.int64]) -> Integers:
    min_count = site.agreement.min_count
    columns = zip(there_KC.T, present_C.tolist(), strict=True)
    counts_KC = np.stack([settle_classes(there_K, present, min_count) for there_K, present in columns], axis=1)
    numbers_3KC: Integers = np.zeros((3, *counts_KC.shape), object)
    for k, counts_C in enumerate(counts_KC):
        numbers_3KC[:, k] = counts_C.tolist(), *site.make_sums(counts_C, *moments_K2C[k], most=None)
    return numbers_3KC


def add_up_hidden(
    x_NCHW: Images | FittedImages,
    y_N: Labels,
    num_classes: int,
    agreement: Agreement,
    bounds: Sequence[tuple[float, float]],
) -> dict[str, Floats]:
    """Returns the sums and counts that noise is added to, by name."""
    low_C, high_C = np.array(bounds).T
    parts = {"moments": np.stack(sum_moments(x_NCHW, low_C, high_C, may_be_empty=agreement.counts_present))}
    is_there_NC = np.ones((len(y_N), len(low_C)), bool)
    if not isinstance(x_NCHW, FittedImages):  # a table
        if agreement.counts_present:
            is_there_NC = ~np.isnan(x_NCHW[:, :, 0, 0])
            parts[PRESENT] = is_there_NC.sum(axis=0).astype(np.float64)
        if agreement.edges:
            bins = sort_into_bins(x_NCHW, agreement)
            parts |= {f"{PER_BIN}/{feature}": counts.astype(np.float64) for feature, counts in bins.items()}
    if agreement.class_counts or agreement.correlations:
        parts[PER_CLASS] = np.bincount(y_N, minlength=num_classes).astype(np.float64)
    if agreement.correlations:
        if agreement.counts_present:
            parts["class_present"] = count_by_class(is_there_NC, y_N, num_classes).astype(np.float64)
        rows = (x_NCHW[np.flatnonzero(y_N == k)] for k in range(num_classes))
        moments = [sum_moments(own, low_C, high_C, may_be_empty=agreement.counts_present) for own in rows]
        parts["class_moments"] = np.array(moments)
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """The terms by which a site's noisy moments are turned into sums: the `bounds` of values by channel, the number of
    values that a sample has in each, and the `spread`, the noise's deviation."""

    bounds: Sequence[tuple[float, float]]
    num_values: int
    spread: float
    agreement: Agreement

    def make_sums(
        self, counts_C: NDArray[np.int64], firsts_C: Floats, seconds_C: Floats, *, most: int | None
    ) -> tuple[list[int], list[int]]:
        """Returns the sums and the sums of squares, by channel. The counts of all values of a category add up to at
        most `most`."""
        n_C = np.maximum(counts_C, 1)
        m_C = (firsts_C / n_C).clip(-1.0, 1.0)
        v_C = (seconds_C / n_C + 0.5 - m_C**2).clip(np.minimum(self.spread / n_C, 1.0), 1.0)
        ends = zip(*self.bounds, strict=True)
        columns = zip(counts_C.tolist(), *ends, m_C.tolist(), v_C.tolist(), strict=True)
        pairs = [_to_sums(n * self.num_values, *numbers) if n else (0, 0) for n, *numbers in columns]
        sums, squares = [total for total, _ in pairs], [square for _, square in pairs]
        for places in self.agreement.categories:
            rows = np.array([sums[i] / (1 << UNIT_BITS) for i in places])
            own = settle(rows.clip(0, counts_C[list(places)]), most)
            for i, count in zip(places, round_down(own, self.agreement.min_count).tolist(), strict=True):
                sums[i], squares[i] = count << UNIT_BITS, count << 2 * UNIT_BITS
        return sums, squares


def settle(counts: Floats, most: int | None) -> NDArray[np.int64]:
    """Rounds counts to whole numbers from 0 on, which add up to at most `most`."""
    whole = np.rint(counts).clip(0, MAX_WEIGHT).astype(np.int64)
    together = int(whole.sum())
    return whole if most is None or together <= most else whole * most // together


def settle_classes(counts_K: Floats, all_: int, min_count: int) -> NDArray[np.int64]:
    """Settles counts as `settle` does, with 0 for a class below `min_count`. Where fewer than `min_count` samples are
    then in no class, adds them to the largest."""
    settled = settle(counts_K, all_)
    settled[settled < min_count] = 0
    rest = all_ - int(settled.sum())
    if 0 < rest < min_count:
        settled[settled.argmax()] += rest
    return settled


def sum_moments(
    x_NCHW: Images | FittedImages, low_C: Floats, high_C: Floats, *, may_be_empty: bool = False
) -> tuple[Floats, Floats]:
    """Returns the sums over samples of a, and of b - 1/2, by channel; an empty cell of a table adds nothing."""
    middle, half = ((part.reshape(1, -1, 1, 1)) for part in ((low_C + high_C) / 2, (high_C - low_C) / 2))
    firsts_C, seconds_C = np.zeros_like(low_C), np.zeros_like(low_C)
    step = max(1, CHUNK_VALUES // max(1, int(np.prod(x_NCHW.shape[1:]))))
    for start in range(0, len(x_NCHW), step):
        values = np.asarray(x_NCHW[start : start + step], np.float64)
        is_empty = np.isnan(values) & may_be_empty
        if not (np.isfinite(values) | is_empty).all():
            raise DataError("expected numbers for agreed statistics, got a value that is none")
        u_NCHW = np.where(is_empty, 0.0, ((values - middle) / half).clip(-1.0, 1.0))
        firsts_C += u_NCHW.mean(axis=(2, 3)).sum(axis=0)
        is_there_NC = ~is_empty.any(axis=(2, 3))
        seconds_C += ((np.square(u_NCHW).mean(axis=(2, 3)) - 0.5) * is_there_NC).sum(axis=0)
    return firsts_C, seconds_C


def _to_sums(num: int, low: float, high: float, m: float, v: float) -> tuple[int, int]:
    """Returns the sum and the sum of squares of `num` values between `low` and `high`, given their mean m and variance
    v on a scale where `low` is -1 and `high` is 1. Both are in units and square units, and possible for such values."""
    middle, half = (Fraction(low) + Fraction(high)) / 2, (Fraction(high) - Fraction(low)) / 2
    mean = middle + half * Fraction(m)
    total = round(num * mean * (1 << UNIT_BITS))
    square = round(num * (mean**2 + half**2 * Fraction(v)) * (1 << (2 * UNIT_BITS)))
    return total, max(square, -(-total * total // num), abs(total))
