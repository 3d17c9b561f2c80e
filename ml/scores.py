"""Scores of contributions: the distance of each from the centre of its round. They are advice for people, and no rule
uses them.

For every aggregation rule, the centre is the coordinate-wise median of the contributions, which less than half of them
cannot move arbitrarily. With D elements in x_i,

    d_i        = sqrt( 1/D * sum over elements of (x_i - centre)^2 )
    distance_i = d_i / lower median of all d

so that 1 is usual and 10 stands out, for any model. Running statistics of batch norm, whose scale is not that of
weights, are measured separately. Prototypes are compared class by class, several of a class by their mean, and an
author by the classes it has. An author's distance is the largest of its ratios. Fewer than three contributions have no
distance, since none of them can be called far.

Floats are added here in no fixed order: the last bits differ between machines, and nobody votes on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ml.aggregation import RULES, carry
from ml.aggregation.contributed import BLOCK_ELEMENTS
from ml.aggregation.gathered import stack
from ml.aggregation.means import get_lower_median
from ml.aggregation.robust import RUNNING_STATISTICS
from ml.aggregation.sorting import compute_median
from ml.aggregation.sums import sum_, trimmed_sum
from ml.payload import Array, Arrays
from ml.specs import AuthorPayloads, MethodSpec

MIN_COMPARED = 3

Lengths = list[float | None]  # each author's distance, None where it has nothing that enough others have


def get_compared_kinds(spec: MethodSpec, height: int) -> list[str]:
    """Returns the payload kinds in which a round's members have a common centre. Leaves out kinds in which each keeps
    its own place, kinds that are carried along or masked, and statistics, in which sites differ."""
    no_centre = (carry, stack, sum_, trimmed_sum)
    return [kind for kind, rule in sorted(spec.rules(height).items()) if RULES.get(rule, carry) not in no_centre]


def compute_distances(contributions: Sequence[AuthorPayloads], kinds: Sequence[str]) -> list[float | None]:
    """Computes the distance of each contribution, in their order, by payloads that the method's spec has validated.

    It is None where there is nothing to compare, and where more than half are equal to the bit and this one is not: it
    would be infinite then. Raises AggregationError for arrays that do not go together.
    """
    farthest: list[float | None] = [None] * len(contributions)
    for kind in kinds:
        given = [contribution.payloads[kind] for contribution in contributions]
        for lengths in _measure(given):
            for i, ratio in enumerate(_divide_by_median(lengths)):
                known = farthest[i]
                if ratio is not None:
                    farthest[i] = ratio if known is None else max(known, ratio)
    return [ratio if ratio is not None and math.isfinite(ratio) else None for ratio in farthest]


def _divide_by_median(lengths: Lengths) -> list[float | None]:
    known = [length for length in lengths if length is not None]
    if len(known) < MIN_COMPARED:
        return [None] * len(lengths)
    usual = get_lower_median(known)
    return [None if length is None else _divide(length, usual) for length in lengths]


def _divide(length: float, usual: float) -> float:
    if usual:
        return length / usual
    return math.inf if length else 0.0


def _measure(given: Sequence[Arrays]) -> list[Lengths]:
    """Returns each author's distances, for each part of a kind that has a scale of its own."""
    if not given:
        return []
    if "classes" in given[0]:
        return [_measure_rows(given)]
    names = sorted(name for name, array in given[0].items() if array.dtype == np.float32)
    statistics = [name for name in names if name.endswith(RUNNING_STATISTICS)]
    weights = [name for name in names if name not in statistics]
    return [_measure_arrays(given, part) for part in (weights, statistics) if part]


def _measure_arrays(given: Sequence[Arrays], names: Sequence[str]) -> Lengths:
    totals, size = [0.0] * len(given), 0
    for name in names:
        rows = [arrays[name] for arrays in given]
        _add_squares(totals, range(len(rows)), rows)
        size += rows[0].size
    return [math.sqrt(total / size) for total in totals]


def _measure_rows(given: Sequence[Arrays]) -> Lengths:
    """Measures by class, over the classes that enough authors have."""
    rows_by_class: dict[int, dict[int, Array]] = {}
    for i, arrays in enumerate(given):
        for class_id in np.unique(arrays["classes"]).tolist():
            rows = arrays["prototypes"][arrays["classes"] == class_id]
            rows_by_class.setdefault(class_id, {})[i] = rows.mean(0, dtype=np.float64).astype(np.float32)
    totals, sizes = [0.0] * len(given), [0] * len(given)
    for held in rows_by_class.values():
        if len(held) >= MIN_COMPARED:
            _add_squares(totals, list(held), list(held.values()))
            for i, row in held.items():
                sizes[i] += row.size
    return [math.sqrt(total / size) if size else None for total, size in zip(totals, sizes, strict=True)]


def _add_squares(totals: list[float], authors: Sequence[int], rows: Sequence[Array]) -> None:
    """Adds the squared distance of each author's array from their median."""
    centre = compute_median(rows, "centre", BLOCK_ELEMENTS).reshape(-1)
    for i, row in zip(authors, rows, strict=True):
        flat = row.reshape(-1)
        for start in range(0, centre.size, BLOCK_ELEMENTS):
            block = slice(start, start + BLOCK_ELEMENTS)
            way = flat[block].astype(np.float64)
            way -= centre[block]
            totals[i] += float(np.square(way).sum())
