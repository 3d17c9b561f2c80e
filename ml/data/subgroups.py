"""Subgroups of the rows of a table, by the values of one of its columns: each value where they are few, else ranges of
numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.data.cells import is_empty, parse_numbers, to_text
from ml.errors import DataError

MAX_NUMBERS = 6  # different numbers that are groups of their own; more are cut at quartiles
MAX_GROUPS = 24
MAX_NAME_CHARS = 40
EMPTY = "(empty)"


class Subgroup(NamedTuple):
    """The rows of a table, by their places, that have the same value, or a value in one range; `name` says which."""

    name: str
    rows: NDArray[np.int64]


def split_rows(cells: Sequence[Any], cuts: Sequence[float] = ()) -> list[Subgroup]:
    """Groups the rows by their cells; rows without a value come last. Numbers are cut at `cuts`, or at their quartiles
    where they have more than a few values. Raises DataError for more texts than groups, and for cuts of texts."""
    is_empty_N = np.array([is_empty(cell) for cell in cells], np.bool_)
    values_N, is_text_N = parse_numbers(cells)
    known_N = values_N[~is_empty_N]
    is_numbers = len(known_N) > 0 and not is_text_N[~is_empty_N].any()
    if cuts and not is_numbers:
        raise DataError("expected a column of numbers, as it is to be cut into ranges")
    if is_numbers and (cuts or len(np.unique(known_N)) > MAX_NUMBERS):
        groups = _split_range(values_N, ~is_empty_N, cuts or _find_quartiles(known_N))
    else:
        groups = _split_texts([to_text(cell) for cell in cells], ~is_empty_N, is_numbers=is_numbers)
    return [*groups, *([Subgroup(EMPTY, np.flatnonzero(is_empty_N))] if is_empty_N.any() else [])]


def _find_quartiles(values_N: NDArray[np.float64]) -> list[float]:
    """Returns the quartiles above the least value or, where most rows have that value, the next larger value."""
    least = values_N.min()
    found: list[float] = [cut for cut in np.quantile(values_N, [0.25, 0.5, 0.75]).tolist() if cut > least]
    return found or [float(values_N[values_N > least].min())]


def _split_range(values_N: NDArray[np.float64], is_known_N: NDArray[np.bool_], cuts: Sequence[float]) -> list[Subgroup]:
    """Splits the rows into ranges, each from one cut to below the next. Leaves out a range without rows."""
    edges = sorted(set(cuts))
    names = [
        f"below {edges[0]:g}",
        *(f"{low:g} to below {high:g}" for low, high in pairwise(edges)),
    ]
    at_N = np.searchsorted(edges, values_N, side="right")
    found = [
        Subgroup(name, np.flatnonzero(is_known_N & (at_N == i)))
        for i, name in enumerate([*names, f"{edges[-1]:g} or more"])
    ]
    return [group for group in found if len(group.rows)]


def _split_texts(texts: Sequence[str], is_known_N: NDArray[np.bool_], *, is_numbers: bool) -> list[Subgroup]:
    places: dict[str, list[int]] = {}
    for i in np.flatnonzero(is_known_N).tolist():
        places.setdefault(texts[i], []).append(i)
    if len(places) > MAX_GROUPS:
        raise DataError(
            f"expected a column of numbers, or of at most {MAX_GROUPS} different values, to group rows by; got "
            f"{len(places)}"
        )
    names = sorted(places, key=float) if is_numbers and not set(places) & {"true", "false"} else sorted(places)
    return [Subgroup(name[:MAX_NAME_CHARS], np.array(places[name], np.int64)) for name in names]
