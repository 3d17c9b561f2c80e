"""Sums of what sites send about their samples: how many there are, their values and the squares of these.

All numbers are integers, so that a sum is exact whatever the order, and the same however the samples are dealt out. A
value is counted in units of 2^-44, a square in units of 2^-88. Such sums have more digits than an int64: each stands as
a row of digits to the base 2^40, lowest first, all of the sum's own sign.

If cells may be empty, a site sends for each channel how many values are `present`, and its sums are those of these.

A site that sends nothing has `count` 0, and is left out. If the run caps weights, no site counts more samples than
that; its sums shrink alike. The trimmed sum leaves out, channel by channel, the f sites with the smallest and the f
with the largest mean square. What is left is no larger than some honest site's, and its mean cannot be either. The sums
by class of a channel, if sites send these, are over the sites that are left for that channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ml.aggregation.contributed import PLAIN, Given, RuleSettings, check_alike, get_common_names, order_by_author
from ml.aggregation.means import get_lower_median
from ml.errors import AggregationError
from ml.payload import Array, Arrays

UNIT_BITS = 44  # a value of 1 is 2^44 units
LIMIT_BITS = 40  # values are between -2^40 and 2^40
DIGIT_BITS = 40
BASE = 1 << DIGIT_BITS
SUM_DIGITS = 5  # 2^200: of values below 2^84 units, and 2^112 of them
SQUARE_DIGITS = 7  # 2^280, of squares below 2^168
PER_CLASS, PRESENT, PER_BIN = "classes", "present", "bins"
CLASS_PRESENT, CLASS_SUMS, CLASS_SQUARES = "class_present", "class_sums", "class_squares"

Integers = NDArray[np.object_]  # of any size


@dataclass(frozen=True, slots=True)
class _Site:
    """Holds the numbers of one site as integers: its samples, and for each channel how many of them have a value, and
    the sums of values and of squares. `counted` has how many samples each class has, and how many values each bin, and
    `by_class` what `read_by_class` returns, in runs that ask for them."""

    count: int
    present: list[int]
    sums: list[int]
    squares: list[int]
    counted: dict[str, list[int]]
    by_class: Integers | None = None


def to_digits(totals: Iterable[int], num_digits: int) -> Array:
    """Returns the digits int64[C, num_digits] of C integers that fit."""
    rows = [
        [(abs(total) >> (DIGIT_BITS * i)) % BASE * (-1 if total < 0 else 1) for i in range(num_digits)]
        for total in totals
    ]
    return np.array(rows, np.int64).reshape(len(rows), num_digits)


def from_digits(digits_CD: Array) -> list[int]:
    """Returns the C integers whose digits these are."""
    return [sum(digit << (DIGIT_BITS * i) for i, digit in enumerate(row)) for row in digits_CD.tolist()]


def read_by_class(arrays: Arrays) -> Integers | None:
    """Returns [3, K, C]: for each class and channel how many samples have a value, and the sums of these values and of
    their squares; None if the run does not ask for sums by class."""
    if CLASS_SUMS not in arrays:
        return None
    shape = arrays[CLASS_PRESENT].shape
    rows = (from_digits(arrays[name].reshape(-1, arrays[name].shape[-1])) for name in (CLASS_SUMS, CLASS_SQUARES))
    return np.array([arrays[CLASS_PRESENT].reshape(-1).tolist(), *rows], object).reshape(3, *shape)


def write_by_class(numbers_3KC: Integers) -> dict[str, Array]:
    """Returns the arrays from which `read_by_class` reads these numbers."""
    shape = numbers_3KC.shape[1:]
    present, sums, squares = numbers_3KC.reshape(3, -1).tolist()
    return {
        CLASS_PRESENT: np.array(present, np.int64).reshape(shape),
        CLASS_SUMS: to_digits(sums, SUM_DIGITS).reshape(*shape, SUM_DIGITS),
        CLASS_SQUARES: to_digits(squares, SQUARE_DIGITS).reshape(*shape, SQUARE_DIGITS),
    }


def sum_(contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN) -> dict[str, Array]:
    """Returns the sums over all sites that send something: `sums` and `squares` as the authors have them, `classes`,
    `bins` and sums by class if they have them, and `counts` int64[C], the samples with a value in these sums, by
    channel. `sites` int64[] and `samples` int64[] count the sites that sent something, and their samples."""
    return _combine(contributions, settings, num_dropped=0)


def trimmed_sum(contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN) -> dict[str, Array]:
    """Returns what `sum_` does, for each channel without the sites that are farthest out on both sides."""
    return _combine(contributions, settings, num_dropped=settings.max_liars)


def _combine(contributions: Given, settings: RuleSettings, num_dropped: int) -> dict[str, Array]:
    ordered = order_by_author(contributions)
    names = get_common_names(ordered)
    for name in names:
        check_alike([contribution.arrays[name] for contribution in ordered], name)
    if not {"count", "sums", "squares"} <= set(names):
        raise AggregationError(f"sum: expected arrays count, sums and squares, got {', '.join(names)}")
    num_channels = len(ordered[0].arrays["sums"])
    told = [_read(contribution.arrays) for contribution in ordered if contribution.arrays["count"] > 0]
    capped = _cap(told, settings.weight_cap)
    kept = [_trim(capped, channel, num_dropped) for channel in range(num_channels)]
    combined = {
        "sites": np.array(len(told), np.int64),
        "samples": np.array(sum(site.count for site in told), np.int64),
        "counts": np.array([sum(site.present[c] for site in sites) for c, sites in enumerate(kept)], np.int64),
        "sums": to_digits((sum(site.sums[c] for site in sites) for c, sites in enumerate(kept)), SUM_DIGITS),
        "squares": to_digits((sum(site.squares[c] for site in sites) for c, sites in enumerate(kept)), SQUARE_DIGITS),
    }
    for name in (PER_CLASS, PER_BIN):
        if name in names:
            zeros = [0] * len(ordered[0].arrays[name])
            by_place = zip(zeros, *(site.counted[name] for site in capped), strict=True)
            combined[name] = np.array([sum(counts) for counts in by_place], np.int64)
    if CLASS_SUMS in names:
        combined |= _combine_by_class(ordered[0].arrays[CLASS_PRESENT].shape, kept)
    return combined


def _combine_by_class(shape: tuple[int, ...], kept: Sequence[Sequence[_Site]]) -> dict[str, Array]:
    total_3KC: Integers = np.zeros((3, *shape), object)
    for channel, sites in enumerate(kept):
        for site in sites:
            if site.by_class is not None:
                total_3KC[:, :, channel] += site.by_class[:, :, channel]
    return write_by_class(total_3KC)


def _read(arrays: Arrays) -> _Site:
    counted = {name: arrays[name].tolist() for name in (PER_CLASS, PER_BIN) if name in arrays}
    count = int(arrays["count"])
    present = arrays[PRESENT].tolist() if PRESENT in arrays else [count] * len(arrays["sums"])
    sums, squares = from_digits(arrays["sums"]), from_digits(arrays["squares"])
    return _Site(count, present, sums, squares, counted, read_by_class(arrays))


def _cap(told: Sequence[_Site], cap: int | None) -> list[_Site]:
    """Limits each site to `cap` times the lower median of the sites' samples: the numbers of a larger site shrink to
    that, rounded toward 0."""
    if cap is None or not told:
        return list(told)
    most = cap * get_lower_median([site.count for site in told])
    return [site if site.count <= most else _shrink(site, most) for site in told]


def _shrink(site: _Site, most: int) -> _Site:
    def scale(total: int) -> int:
        return abs(total) * most // site.count * (-1 if total < 0 else 1)

    counted = {name: [scale(count) for count in counts] for name, counts in site.counted.items()}
    present, sums, squares = ([scale(total) for total in own] for own in (site.present, site.sums, site.squares))
    by_class = None if site.by_class is None else np.array(np.frompyfunc(scale, 1, 1)(site.by_class), object)
    return _Site(most, present, sums, squares, counted, by_class)


def _trim(sites: Sequence[_Site], channel: int, num_dropped: int) -> Sequence[_Site]:
    """Returns the sites that are left for one channel, of those that have a value of it: at least one, if there is
    one."""
    sites = [site for site in sites if site.present[channel]]
    dropped = min(num_dropped, (len(sites) - 1) // 2) if sites else 0
    if not dropped:
        return sites
    ranked = sorted(
        sites, key=lambda site: Fraction(site.squares[channel], site.present[channel])
    )  # stable: in author order
    return ranked[dropped:-dropped]
