"""Checks of tables: features whose scales are far apart, that are far from genesis' own or have only one value, and
labels that look like measurements.

    scale       one feature in 0..2398 beside another in 0..0.05, and nothing that normalises them: the large one drowns
                the other. With genesis' input known, what counts is what its mean and deviation leave
    unit        a feature far from genesis' mean and deviation, as where one site has grams and the others milligrams;
                far from those that members agreed on, or next to nothing beside them, as where a site has its columns
                in another order
    constant    a feature with one value in all rows, which nothing can be learned from
    label       many different numbers with few rows of each
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ml.data.base import ArrayDataset, Images, InputFormat, Samples
from ml.data.findings import Finding
from ml.data.labels import are_numbers
from ml.data.table_input import FLAG_SUFFIX

FLOAT32_NOISE = 1e-6  # of a value: the error of its float32, and a little more
APART = 100.0  # times as wide as another: beyond that, training sees the wider feature alone
FAR = 20.0  # of genesis' deviations: no site's patients differ so much
MANY_VALUES = 20  # different numbers as labels
FEW_ROWS = 10  # for each of them
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FeatureStats:
    """The range, mean and deviation of one column of a table over all rows."""

    name: str
    min: float
    max: float
    mean: float
    std: float

    @property
    def is_constant(self) -> bool:
        return self.std <= FLOAT32_NOISE * abs(self.mean)

    def describe_range(self) -> str:
        return f"{self.name!r} from {self.min:.4g} to {self.max:.4g}"


def compute_feature_stats(table: ArrayDataset) -> list[FeatureStats]:
    """Computes the range, mean and deviation of each column."""
    return _compute_stats(table.x, table.features or _number(table.x))


def _number(x: Samples) -> list[str]:
    return [f"feature {i}" for i in range(x.shape[1])]


def _compute_stats(x: Samples, names: Sequence[str]) -> list[FeatureStats]:
    stats = []
    for i, name in enumerate(names):
        x_N = x[:, i, 0, 0].astype(np.float64)
        x_N = x_N[~np.isnan(x_N)]  # an empty cell
        if not len(x_N):
            x_N = np.zeros(1)
        stats.append(FeatureStats(name, float(x_N.min()), float(x_N.max()), float(x_N.mean()), float(x_N.std())))
    return stats


def check_features(train: ArrayDataset, input_: InputFormat | None) -> Iterable[Finding]:
    """Yields the findings about a table's columns, after genesis' input has encoded them where that is known."""
    if not train.is_table or not len(train):
        return
    stats = compute_feature_stats(train)
    constant = [] if train.columns else [own for own in stats if own.is_constant]  # columns have a finding of their own
    if constant := [own for own in constant if not own.name.endswith(FLAG_SUFFIX)]:
        has = "has" if len(constant) == 1 else "have"
        yield Finding(
            "warning", f"{len(constant)} of {len(stats)} features {has} one value in all rows: {_list(constant)}"
        )
    if input_ is None or not input_.is_agreed:
        yield from _check_scales(stats, input_)
    if input_ is not None and _normalises(input_):
        yield from _check_units(stats, input_)


def check_labels(train: ArrayDataset) -> Iterable[Finding]:
    """Yields the finding about a table's labels that are numbers, each a class of its own."""
    if not train.is_table or not are_numbers(train.classes):
        return
    counts = train.count_classes()
    num = int((counts > 0).sum())
    if num > MANY_VALUES and len(train) < FEW_ROWS * num:
        yield Finding(
            "warning",
            f"the labels are {num} different numbers, with {len(train) / num:.1f} rows of each: is this a regression? "
            "Each number is a class of its own here, and no nearer to the next than to any other; task: regression "
            "learns numbers",
        )


def _check_scales(stats: Sequence[FeatureStats], input_: InputFormat | None) -> Iterable[Finding]:
    stds = (1.0,) * len(stats) if input_ is None else input_.std
    left = [(own.std / std, own) for own, std in zip(stats, stds, strict=True) if not own.is_constant]
    if len(left) < 2:
        return
    narrow, wide = min(left, key=lambda pair: pair[0]), max(left, key=lambda pair: pair[0])
    if wide[0] <= APART * narrow[0]:
        return
    shown = f"scales are far apart: {wide[1].describe_range()} beside {narrow[1].describe_range()}"
    if input_ is None:
        advice = "as they are, the wide ones drown the others; genesis new normalises unless told otherwise"
    elif _normalises(input_):
        advice = "also after genesis' input.mean and input.std, which may be of other units: the wide ones drown others"
    else:
        advice = "genesis leaves them so, and the wide ones drown the others: it needs input.mean and input.std"
    yield Finding("warning", f"{shown}; {advice}")


def _check_units(stats: Sequence[FeatureStats], input_: InputFormat) -> Iterable[Finding]:
    far = [pair for pair in zip(stats, input_.mean, input_.std, strict=True) if _is_far(*pair)]
    yield from _tell_far(far, len(stats), "genesis' mean and deviation", "in genesis; another unit?")


def check_agreed(
    x: Images, names: Sequence[str] | None, mean: Sequence[float], std: Sequence[float]
) -> Iterable[Finding]:
    """Yields the finding about a table's values `x`, of features with these names, compared with the mean and
    deviation that members agreed on. A site's wrong values are part of these and widen them, so that other sites'
    values look narrow."""
    stats = _compute_stats(x, names if names is not None and len(names) == x.shape[1] else _number(x))
    far = [
        (own, theirs, spread)
        for own, theirs, spread in zip(stats, mean, std, strict=True)
        if _is_far(own, theirs, spread) or (not own.is_constant and APART * own.std < spread)
    ]
    asked = "of all; does a site have another unit, or its columns in another order?"
    yield from _tell_far(far, len(stats), "what members agreed on", asked)


def _is_far(own: FeatureStats, mean: float, std: float) -> bool:
    return max(abs(own.mean - mean), own.std) > FAR * std


def _tell_far(far: Sequence[tuple[FeatureStats, float, float]], num: int, place: str, asked: str) -> Iterable[Finding]:
    if far:
        (own, mean, std), are = far[0], "is" if len(far) == 1 else "are"
        yield Finding(
            "warning",
            f"{len(far)} of {num} features {are} far from {place}, first {own.name!r}: "
            f"{own.mean:.4g} ± {own.std:.4g} here, {mean:.4g} ± {std:.4g} {asked}",
        )


def _normalises(input_: InputFormat) -> bool:
    return any(input_.mean) or any(std != 1.0 for std in input_.std)


def _list(stats: Sequence[FeatureStats]) -> str:
    names = ", ".join(repr(own.name) for own in stats[:_SHOWN])
    return names if len(stats) <= _SHOWN else f"{names}, …"
