"""The input of a rule: the authors' arrays of one payload kind, and the settings that all members share.

Every rule uses contributions in the order of their authors' keys. The checks in here find arrays that do not fit
together; they raise AggregationError and name the author.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from ml.errors import AggregationError
from ml.payload import Array, Arrays

BLOCK_ELEMENTS = 64 * 1024
MAX_WEIGHT = (1 << 29) - 1


@dataclass(frozen=True, slots=True)
class Contributed:
    """Holds one author's arrays for one payload kind, and its weight."""

    author: bytes
    weight: int
    arrays: Arrays


Given = Sequence[Contributed]  # the contributions that a rule receives


@dataclass(frozen=True, slots=True)
class Box:
    """Describes the box around the last aggregate to which a mean is clipped (`ml.aggregation.box`): how far an element
    may be from there, and a running statistic of batch norm."""

    radius: float
    buffer_radius: float | None = None


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Holds the settings of a rule besides its contributions. They come from genesis, and so are the same for all.

    `max_liars` is f, how many of the members in force may lie, whoever of them contributed. `weight_cap` bounds the
    weights of means: no author counts more than so many times the lower median. `clip` is the greatest distance that
    `clipped_mean` lets an author move the aggregate; by default it follows from the authors' own distances. `momentum`
    is the method's own, from which FedNova's norms follow. `fraction_bits` is how exact sums in fixed point are, and
    `box` the box to which their means are clipped.
    """

    max_liars: int = 0
    weight_cap: int | None = None
    clip: float | None = None
    momentum: float = 0.0
    fraction_bits: int | None = None
    box: Box | None = None


PLAIN = RuleSettings()


class Rule(Protocol):
    """Turns contributions and the parent's aggregate, both without "kind/" in front of their names, into an
    aggregate."""

    def __call__(
        self, contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, /
    ) -> dict[str, Array]: ...


def compute_max_liars(num_members: int) -> int:
    """Computes f = floor((n - 1) / 3): with so many liars among n members `quorum: bft` stays safe."""
    return (num_members - 1) // 3


# ---- order and agreement


def order_by_author(contributions: Given) -> list[Contributed]:
    """Returns the contributions sorted by key. Raises AggregationError if there are none, and for two of one author."""
    ordered = sorted(contributions, key=lambda c: c.author)
    if not ordered:
        raise AggregationError("expected at least one contribution, got none")
    for one, other in pairwise(ordered):
        if one.author == other.author:
            raise AggregationError(f"expected one contribution per author, got two of {show_author(one)}")
    return ordered


def get_common_names(ordered: Sequence[Contributed]) -> list[str]:
    """Returns the names of the arrays, sorted. Raises AggregationError unless all authors sent the same names."""
    names = sorted(ordered[0].arrays)
    for contribution in ordered:
        if (got := sorted(contribution.arrays)) != names:
            raise AggregationError(f"expected arrays {names} as of {show_author(ordered[0])}, got {got}")
    return names


def check_alike(arrays: Sequence[Array], name: str) -> None:
    """Raises AggregationError unless all arrays have one shape and dtype."""
    first = arrays[0]
    for array in arrays:
        if array.shape != first.shape or array.dtype != first.dtype:
            raise AggregationError(
                f"array {name!r}: expected {first.dtype} {list(first.shape)} of every author,"
                f" got {array.dtype} {list(array.shape)}"
            )


def check_averaged(arrays: Sequence[Array], name: str) -> None:
    """Raises AggregationError unless all arrays are float32 of one shape."""
    check_alike(arrays, name)
    if arrays[0].dtype != np.float32:
        raise AggregationError(f"array {name!r}: only float32 is averaged, got {arrays[0].dtype}")


def check_weights(weights: Sequence[int]) -> None:
    """Raises AggregationError for a weight that a mean cannot have."""
    for weight in weights:
        if not 1 <= weight <= MAX_WEIGHT:
            raise AggregationError(f"expected weights from 1 to {MAX_WEIGHT}, got {weight}")


def check_parent(array: Array, like: Array, name: str) -> None:
    """Raises AggregationError unless the parent's array is float32 and of the authors' shape."""
    if array.shape != like.shape or array.dtype != np.float32:
        raise AggregationError(
            f"array {name!r}: expected float32 {list(like.shape)} in the parent's model,"
            f" got {array.dtype} {list(array.shape)}"
        )


def show_author(contribution: Contributed) -> str:
    return contribution.author.hex()[:8]


# ---- rows by class: `classes` int64[n] sorted, `prototypes` float32[n, D]


def combine_by_class(
    contributions: Given, combine: Callable[[Sequence[Array], Sequence[int]], Array]
) -> dict[str, Array]:
    """Applies `combine(rows, counts)` to the rows of each class in author order. Counts are 1 if blobs have none.

    The result has the sorted classes with at least one holder in this round; other classes are absent.
    """
    ordered = order_by_author(contributions)
    names = get_common_names(ordered)
    dim = _get_class_rows(ordered[0])[1].shape[1]
    rows_by_class: dict[int, list[Array]] = {}
    counts_by_class: dict[int, list[int]] = {}
    for contribution in ordered:
        classes, prototypes = _get_class_rows(contribution)
        if prototypes.shape[1] != dim:
            raise AggregationError(f"expected prototypes of length {dim}, got {prototypes.shape[1]}")
        counts = contribution.arrays["counts"] if "counts" in names else np.ones(len(classes), np.int64)
        for class_id, row, num_samples in zip(classes.tolist(), prototypes, counts.tolist(), strict=True):
            rows_by_class.setdefault(class_id, []).append(row)
            counts_by_class.setdefault(class_id, []).append(num_samples)
    held = sorted(rows_by_class)
    out_KD = np.empty((len(held), dim), np.float32)
    for index, class_id in enumerate(held):
        out_KD[index] = combine(rows_by_class[class_id], counts_by_class[class_id])
    return {"classes": np.array(held, np.int64), "prototypes": out_KD}


def _get_class_rows(contribution: Contributed) -> tuple[Array, Array]:
    classes = contribution.arrays.get("classes")
    prototypes = contribution.arrays.get("prototypes")
    if classes is None or prototypes is None:
        raise AggregationError(f"expected arrays 'classes' and 'prototypes' of {show_author(contribution)}")
    if classes.ndim != 1 or prototypes.ndim != 2 or len(classes) != len(prototypes):
        raise AggregationError(f"expected one row of 'prototypes' per class of {show_author(contribution)}")
    if not np.all(classes[1:] > classes[:-1]):
        raise AggregationError(f"expected the classes of {show_author(contribution)} sorted and once each")
    return classes, prototypes
