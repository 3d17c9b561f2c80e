"""Notes about rows of a table beside what a site has trained on: values outside the range of its training rows.

A model answers every question. On samples far from all that it was trained on it is as sure as on others, and wrong.
The range is a site's own, and is never sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Samples
from ml.data.table_input import FLAG_SUFFIX, TableInput

MOST = 3  # features that a note names for a row, the farthest first


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRange:
    """The least and the largest value of each of F features among a site's training rows, not-a-number for a feature
    that is empty in all rows."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @classmethod
    def measure(cls, x_NCHW: Samples) -> TrainedRange | None:
        """Returns the range of the rows of a table; None for images, or where there is no row."""
        if x_NCHW.shape[2:] != (1, 1) or not len(x_NCHW):
            return None
        x_NF = x_NCHW.reshape(len(x_NCHW), -1).astype(np.float32)
        low = np.fmin.reduce(x_NF, axis=0)
        return cls(low, np.fmax.reduce(x_NF, axis=0))


def name_features(table: TableInput | None, num_features: int) -> list[str]:
    """Returns the names of features for notes: of their columns, where a run names these."""
    if table is None or table.columns is None:
        return [f"feature {i}" for i in range(num_features)]
    return table.get_features(table.columns)


def describe_unusual(
    x_NCHW: Samples, trained: TrainedRange, names: Sequence[str], is_number: Sequence[bool]
) -> Iterator[tuple[str, ...]]:
    """Yields the notes about each row, none for a row whose values all lie within the trained range."""
    spread = np.where(trained.high > trained.low, trained.high - trained.low, 1.0)
    for x_F in x_NCHW.reshape(len(x_NCHW), -1).astype(np.float64):
        with np.errstate(invalid="ignore"):
            beyond = np.maximum(trained.low - x_F, x_F - trained.high) / spread
        beyond = np.where(np.isnan(trained.low) & ~np.isnan(x_F), np.inf, beyond)
        ranked = map(int, np.argsort(-beyond, kind="stable"))
        outside = [i for i in ranked if beyond[i] > 0 and _is_told(names[i], is_number[i], x_F[i])]
        told = [
            _describe(names[i], is_number[i], x_F[i], float(trained.low[i]), float(trained.high[i])) for i in outside
        ]
        more = [f"{len(told) - MOST} more"] * (len(told) > MOST)
        yield (*told[:MOST], *more)


def _is_told(name: str, is_number: bool, value: float) -> bool:
    """Says whether a note names this value: of a category only the value that a row has, and never the flag of an empty
    cell."""
    return is_number or (value > 0 and not name.endswith(FLAG_SUFFIX))


def _describe(name: str, is_number: bool, value: float, low: float, high: float) -> str:
    if np.isnan(low):
        return f"{name} {value:.6g}: always empty in training here"
    if not is_number:
        return f"{name}: never in training here"
    between = f"{low:.6g} to {high:.6g}" if low < high else f"{low:.6g} alone"
    return f"{name} {value:.6g}: trained on {between}"
