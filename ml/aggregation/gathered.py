"""Rules that average nothing: stacks, the pool of all rows, and the parent's aggregate unchanged."""

from __future__ import annotations

import numpy as np

from ml.aggregation.contributed import (
    PLAIN,
    Given,
    RuleSettings,
    check_alike,
    get_common_names,
    order_by_author,
    show_author,
)
from ml.errors import AggregationError
from ml.payload import Array, Arrays


def stack(contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN) -> dict[str, Array]:
    """Stacks every array of every author under a new first axis, in author order: row i is author i of the block."""
    ordered = order_by_author(contributions)
    stacked = {}
    for name in get_common_names(ordered):
        rows = [c.arrays[name] for c in ordered]
        check_alike(rows, name)
        stacked[name] = np.stack(rows)
    return stacked


def carry(contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN) -> dict[str, Array]:
    """Returns the parent's aggregate unchanged, for a round that exchanges something else.

    It works on the aggregate as a whole, so its `parent` has the kinds in front of the names, and so has its result.
    """
    if parent is None:
        raise AggregationError("carry: expected the parent's aggregate, got none")
    return dict(parent)


def pool(contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN) -> dict[str, Array]:
    """Returns all rows of all authors: MP-FedCL Eq. (8). `classes` may repeat, within an author and between authors.

    Rows are ordered by class, within a class by author, within an author as they came. The result has `authors`
    int64[n] besides, the place of each row's author in the block, so that everyone can tell the codebooks apart.
    """
    ordered = order_by_author(contributions)
    names = get_common_names(ordered)
    if "classes" not in names:
        raise AggregationError("pool: expected an array 'classes'")
    pooled: dict[str, Array] = {}
    for name in names:
        rows = [c.arrays[name] for c in ordered]
        for author, array in zip(ordered, rows, strict=True):
            if array.ndim == 0 or len(array) != len(author.arrays["classes"]):
                raise AggregationError(f"pool: array {name!r} of {show_author(author)} has not one row per class entry")
            if array.dtype != rows[0].dtype or array.shape[1:] != rows[0].shape[1:]:
                raise AggregationError(
                    f"pool: array {name!r} of {show_author(author)} is not like those of other authors"
                )
        pooled[name] = np.concatenate(rows)
    lengths = [len(c.arrays["classes"]) for c in ordered]
    pooled["authors"] = np.repeat(np.arange(len(ordered), dtype=np.int64), lengths)
    order = np.argsort(pooled["classes"], kind="stable")
    return {name: array[order] for name, array in pooled.items()}
