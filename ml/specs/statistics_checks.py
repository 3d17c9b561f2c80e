"""Checks of a site's statistics: some samples must be able to have them, and few samples must not be described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml.aggregation.sums import (
    CLASS_PRESENT,
    CLASS_SQUARES,
    CLASS_SUMS,
    LIMIT_BITS,
    PER_BIN,
    PER_CLASS,
    PRESENT,
    UNIT_BITS,
    from_digits,
    read_by_class,
    to_digits,
    write_by_class,
)
from ml.errors import PayloadError
from ml.payload import Array, Arrays

if TYPE_CHECKING:
    from ml.specs.statistics import Agreement

MAX_UNITS = 1 << (LIMIT_BITS + UNIT_BITS)  # the greatest value, in units


def validate_statistics(arrays: Arrays, min_count: int, num_values: int) -> None:
    """Raises PayloadError unless some samples, all of them values below the limit, can have these sums."""
    count = int(arrays["count"])
    sums, squares = from_digits(arrays["sums"]), from_digits(arrays["squares"])
    if 0 < count < min_count:
        raise PayloadError(f"array 'count': expected 0 or at least {min_count}, got {count}")
    for name, totals in (("sums", sums), ("squares", squares)):
        if (to_digits(totals, arrays[name].shape[1]) != arrays[name]).any():
            raise PayloadError(f"array {name!r}: expected the digits of a number, all of one sign")
    present = arrays[PRESENT].tolist() if PRESENT in arrays else [count] * len(sums)
    for channel, (own, total, square) in enumerate(zip(present, sums, squares, strict=True)):
        if own > count or 0 < own < min_count:
            raise PayloadError(
                f"channel {channel}: expected 0 or {min_count} to {count} values that are present, got {own}"
            )
        _validate_sums(own, num_values, total, square, f"channel {channel}")
    if PER_CLASS in arrays:
        _validate_classes(arrays[PER_CLASS].tolist(), count, min_count)


def _validate_sums(count: int, num_values: int, total: int, square: int, where: str) -> None:
    """Raises PayloadError unless so many samples, with so many values each, can have these sums."""
    most = count * num_values
    if abs(total) > most * MAX_UNITS or square > most * MAX_UNITS**2:
        raise PayloadError(f"{where}: expected sums of {count} samples below 2^{LIMIT_BITS} either way")
    if square < abs(total) or square * most < total * total:
        raise PayloadError(f"{where}: expected a sum of squares that values with this sum can have")


def validate_by_class(arrays: Arrays, agreement: Agreement, num_values: int) -> None:
    """Raises PayloadError unless the samples of each class can have its sums, and no class has fewer samples than
    `min_count` and more than 0, nor have the samples whose class is not sent. Within a category each class has counts
    as `round_down` returns them."""
    numbers_3KC = read_by_class(arrays)
    if numbers_3KC is None:
        return
    if any((made != arrays[name]).any() for name, made in write_by_class(numbers_3KC).items()):
        raise PayloadError(f"arrays {CLASS_SUMS!r}, {CLASS_SQUARES!r}: expected the digits of numbers, all of one sign")
    min_count, num_channels = agreement.min_count, numbers_3KC.shape[2]
    present = arrays[PRESENT].tolist() if PRESENT in arrays else [int(arrays["count"])] * num_channels
    for channel in range(num_channels):
        counts, sums, squares = numbers_3KC[:, :, channel].tolist()
        rest = present[channel] - sum(counts)
        if any(n < 0 or 0 < n < min_count for n in counts) or rest < 0 or 0 < rest < min_count:
            raise PayloadError(
                f"array {CLASS_PRESENT!r}: channel {channel}: expected of each class, and of what is in none, 0 or at "
                f"least {min_count} of {present[channel]} samples, got {counts}"
            )
        for k, told in enumerate(zip(counts, sums, squares, strict=True)):
            _validate_sums(told[0], num_values, told[1], told[2], f"channel {channel} of class {k}")
    for channel in (channel for places in agreement.categories for channel in places):
        for count, total, square in numbers_3KC[:, :, channel].T.tolist():
            own = total >> UNIT_BITS
            if (total, square) != (own << UNIT_BITS, own << 2 * UNIT_BITS) or own % min_count or not 0 <= own <= count:
                raise PayloadError(
                    f"channel {channel}: expected sums by class of values that are 0 or 1, which are multiples of "
                    f"{min_count}"
                )


def validate_counts(arrays: Arrays, agreement: Agreement) -> None:
    """Raises PayloadError unless each feature's bins, and each category's values, have counts as `round_down` returns
    them, and no more than there are samples."""
    count = int(arrays["count"])
    present = arrays[PRESENT].tolist() if PRESENT in arrays else [count] * len(arrays["sums"])
    for feature, bins in split_bins(arrays, agreement.edges).items():
        _validate_hidden(bins.tolist(), present[feature], agreement.min_count, f"channel {feature}", "bin")
    sums, squares = from_digits(arrays["sums"]), from_digits(arrays["squares"])
    for places in agreement.categories:
        counts = [sums[i] >> UNIT_BITS for i in places]
        where = f"channels {places[0]} to {places[-1]}"
        own = [(sums[i], squares[i]) for i in places]
        if own != [(n << UNIT_BITS, n << 2 * UNIT_BITS) for n in counts]:
            raise PayloadError(f"{where}: expected sums of values that are 0 or 1")
        _validate_hidden(counts, count, agreement.min_count, where, "value of a category")


def _validate_hidden(counts: Sequence[int], all_: int, min_count: int, where: str, what: str) -> None:
    """Raises PayloadError unless these are counts of `all_` samples as `round_down` returns them."""
    if any(n < 0 or n % min_count for n in counts) or sum(counts) > all_:
        raise PayloadError(
            f"{where}: expected for each {what} a multiple of {min_count}, and no more than {all_} in all, "
            f"got {list(counts)}"
        )


def round_down(counts: NDArray[np.int64], min_count: int) -> NDArray[np.int64]:
    """Rounds counts down to multiples of `min_count`: fewer are sent as none, and nobody can compute them from the
    rest."""
    return counts - counts % min_count


def split_bins(arrays: Arrays, edges: Sequence[Sequence[float]]) -> dict[int, Array]:
    """Returns the counts of each feature that has a histogram, by its place."""
    split, start = {}, 0
    for feature, own in enumerate(edges):
        if own:
            split[feature] = arrays[PER_BIN][start : start + len(own) + 1]
            start += len(own) + 1
    return split


def _validate_classes(classes: Sequence[int], count: int, min_count: int) -> None:
    if any(0 < number < min_count for number in classes):
        raise PayloadError(f"array 'classes': expected 0 or at least {min_count} of each, got {list(classes)}")
    rest = count - sum(classes)
    if rest < 0 or (0 < rest < min_count):
        raise PayloadError(
            f"array 'classes': expected all {count} samples, or at least {min_count} of them in no class told, "
            f"got {sum(classes)}"
        )
