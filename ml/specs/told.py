"""Measures as a site signs them for all others: whole numbers within bounds, the same in every payload of a run.

A figure is three numbers in units of 1e-6: its value, and the ends of the interval that contains it with 95 %
confidence; ABSENT if there are none. Figures are rounded to four digits after the point, except for those in a target's
own unit. Counts of samples are rounded down to multiples of `min_count`, so that fewer are sent as none. A class has
figures only if it has at least so many samples, and the others together have as many too, or none.

    samples    int64[]         of the test set; 0: this site sends no figures
    figures    int64[F, 3]     of all classes together, in the order of FIGURES
    by_class   int64[K, G, 3]  of each class, label or target; left out if there are very many
    counts     int64[K]        samples of each class or label
    confusion  int64[K, K]     of a classification: samples by their class and by the answered class
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.errors import PayloadError
from ml.measures.classification import MAX_CLASSES, ClassMeasures, Ints
from ml.measures.intervals import Interval
from ml.measures.kinds import AnyMeasures
from ml.measures.regression import OneTarget
from ml.payload import Array, Arrays, ArraySpec
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION

UNITS = 1_000_000  # that make 1
MOST = (1 << 53) - 1  # the largest absolute value: JavaScript reads it exactly, too
ABSENT = -MOST - 1
DIGITS = 4  # after the point

FIGURES: Mapping[str, tuple[str, ...]] = {
    CLASSIFICATION: (
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "weighted_f1",
        "auc",
        "average_precision",
        "brier",
        "calibration_error",
        "loss",
    ),
    MULTILABEL: ("exact_match", "hamming_loss", "macro_f1", "micro_f1", "auc", "average_precision", "brier", "loss"),
    REGRESSION: ("r2", "mae", "rmse", "loss"),
}
OF_CLASS: Mapping[str, tuple[str, ...]] = {
    CLASSIFICATION: ("sensitivity", "specificity", "auc"),
    MULTILABEL: ("sensitivity", "specificity", "auc"),
    REGRESSION: ("r2", "mae", "rmse"),
}
IN_OWN_UNIT = ("mae", "rmse")
_BOUNDS = {"brier": (0, 2 * UNITS), "loss": (0, MOST), "mae": (0, MOST), "rmse": (0, MOST), "r2": (-MOST, UNITS)}


class Figures(NamedTuple):
    """Holds the values by name, and the intervals of those that have one."""

    values: dict[str, float]
    intervals: dict[str, Interval]


def get_shapes(kind: str, num_classes: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each array, by its name."""
    shapes: dict[str, tuple[int, ...]] = {"samples": (), "figures": (len(FIGURES[kind]), 3)}
    if num_classes > MAX_CLASSES:
        return shapes
    shapes["by_class"] = (num_classes, len(OF_CLASS[kind]), 3)
    if kind != REGRESSION:
        shapes["counts"] = (num_classes,)
    if kind == CLASSIFICATION:
        shapes["confusion"] = (num_classes, num_classes)
    return shapes


def describe_arrays(kind: str, num_classes: int) -> dict[str, ArraySpec]:
    """Returns the description of each array, by its name."""
    return {
        name: ArraySpec("int64", shape, (ABSENT if name in ("figures", "by_class") else 0, MOST))
        for name, shape in get_shapes(kind, num_classes).items()
    }


# ---- writing


def tell_nothing(kind: str, num_classes: int) -> dict[str, Array]:
    """Returns the arrays of a site that has too few samples to send figures."""
    return {
        name: np.full(shape, ABSENT if name in ("figures", "by_class") else 0, np.int64)
        for name, shape in get_shapes(kind, num_classes).items()
    }


def tell(
    kind: str, num_classes: int, measures: AnyMeasures, intervals: Mapping[str, Interval], min_count: int
) -> dict[str, Array]:
    """Returns the arrays of measures and their intervals, as `ml.measures.evaluation` computes them."""
    told = tell_nothing(kind, num_classes)
    told["samples"] = np.array(measures.num_samples, np.int64)
    told["figures"] = _write(FIGURES[kind], measures.summarise(), {**intervals, **measures.intervals})
    by_class: Sequence[ClassMeasures | OneTarget] = measures.by_class
    for k, one in enumerate(by_class):
        own = {name.partition("/")[0]: found for name, found in intervals.items() if name.endswith(f"/{one.name}")}
        others = measures.num_samples - one.num_samples
        if kind == REGRESSION or (one.num_samples >= min_count and (not others or others >= min_count)):
            told["by_class"][k] = _write(OF_CLASS[kind], one.get_values(), {**own, **one.get_intervals()})
        if "counts" in told:
            told["counts"][k] = one.num_samples - one.num_samples % min_count
        if "confusion" in told:
            given = np.array(one.given, np.int64)
            told["confusion"][k] = given - given % min_count
    return told


def _write(names: Sequence[str], values: Mapping[str, float], intervals: Mapping[str, Interval]) -> Ints:
    rows = np.full((len(names), 3), ABSENT, np.int64)
    for row, name in zip(rows, names, strict=True):
        if name in values:
            row[0] = _to_units(name, values[name])
            if name in intervals:
                row[1:] = [_to_units(name, end) for end in intervals[name]]
    return rows


def _to_units(name: str, value: float) -> int:
    """Returns the nearest whole number that the figure may have."""
    low, high = _get_bounds(name)
    rounded = value if name in IN_OWN_UNIT else round(value, DIGITS)
    return round(min(max(rounded * UNITS, low), high))


# ---- reading


def read_figures(names: Sequence[str], rows: NDArray[np.int64]) -> Figures:
    """Returns the figures with these names, leaving out absent ones."""
    found = Figures({}, {})
    for name, (value, low, high) in zip(names, rows.tolist(), strict=True):
        if value != ABSENT:
            found.values[name] = value / UNITS
        if low != ABSENT:
            found.intervals[name] = Interval(low / UNITS, high / UNITS)
    return found


# ---- checks


def validate_told(arrays: Arrays, kind: str, *, min_samples: int, min_count: int) -> None:
    """Raises PayloadError unless these are figures that a site may send, in arrays of the right shapes."""
    samples = int(arrays["samples"])
    if 0 < samples < min_samples:
        raise PayloadError(f"array 'samples': expected 0 or at least {min_samples}, got {samples}")
    if not samples:
        for name in arrays.keys() - {"samples"}:
            if (arrays[name] != (ABSENT if name in ("figures", "by_class") else 0)).any():
                raise PayloadError(f"array {name!r}: expected nothing of 0 samples")
        return
    _validate_figures("figures", FIGURES[kind], arrays["figures"])
    for rows in arrays.get("by_class", ()):
        _validate_figures("by_class", OF_CLASS[kind], rows)
    if "counts" in arrays:
        _validate_counts(arrays, kind, samples, min_count)


def _validate_figures(array: str, names: Sequence[str], rows: NDArray[np.int64]) -> None:
    for name, (value, low, high) in zip(names, rows.tolist(), strict=True):
        if value == low == high == ABSENT:
            continue
        least, most = _get_bounds(name)
        if not least <= value <= most:
            raise PayloadError(f"array {array!r}: expected {name} from {least} to {most}, got {value}")
        if not (low == high == ABSENT or least <= low <= high <= most):
            raise PayloadError(f"array {array!r}: expected an interval of {name}, got {low} to {high}")


def _validate_counts(arrays: Arrays, kind: str, samples: int, min_count: int) -> None:
    counts: list[int] = arrays["counts"].tolist()
    most = sum(counts) if kind == CLASSIFICATION else max(counts)
    if any(count % min_count for count in counts) or most > samples:
        raise PayloadError(f"array 'counts': expected multiples of {min_count}, of {samples} samples, got {counts}")
    for k, (count, rows) in enumerate(zip(counts, arrays["by_class"], strict=True)):
        if not count and (rows != ABSENT).any():
            raise PayloadError(f"array 'by_class': expected nothing of class {k}, which has no samples told")
    if "confusion" not in arrays:
        return
    for count, row in zip(counts, arrays["confusion"].tolist(), strict=True):
        if any(given % min_count for given in row) or sum(row) > count:
            raise PayloadError(f"array 'confusion': expected multiples of {min_count}, of {count} samples, got {row}")


def _get_bounds(name: str) -> tuple[int, int]:
    return _BOUNDS.get(name, (0, UNITS))
