"""Means: each array's over the authors, and each class's over its holders.

    out = float32( (sum over authors in key order of float64(x) * w) / sum(w) )        element by element

Weights are integers below 2^29. Where the run sets a cap c on them, w = min(w, c * the lower median of the weights), so
that one author's word for how many samples it has is worth c typical authors' at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ml.aggregation.contributed import (
    BLOCK_ELEMENTS,
    PLAIN,
    Contributed,
    Given,
    RuleSettings,
    check_averaged,
    check_weights,
    combine_by_class,
    get_common_names,
    order_by_author,
)
from ml.payload import Array, Arrays

N = TypeVar("N", int, float)


def weighted_mean(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each array's mean over the authors, weighted by their signed integer weights: FedAvg's aggregate."""
    ordered = order_by_author(contributions)
    weights = cap_weights([c.weight for c in ordered], settings.weight_cap)
    names = get_common_names(ordered)
    return {name: compute_mean([c.arrays[name] for c in ordered], weights, name, block_elements) for name in names}


def uniform_mean(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each array's mean over the authors, all counted alike: BLADE-FL's aggregate. Weights are ignored."""
    alike = [Contributed(c.author, 1, c.arrays) for c in contributions]
    return weighted_mean(alike, parent, block_elements=block_elements)


def class_mean(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each class's mean over the authors that hold it: DFPL Eq. (2) over owners. Weights are ignored."""
    return combine_by_class(
        contributions, lambda rows, counts: compute_mean(rows, [1] * len(rows), "prototypes", block_elements)
    )


def class_divide_by_k(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns DFPL Eq. (2) as printed: each class's sum over its holders divided by all K authors of the round."""
    num_authors = len(contributions)
    return combine_by_class(
        contributions,
        lambda rows, counts: compute_mean(rows, [1] * len(rows), "prototypes", block_elements, divisor=num_authors),
    )


def class_weighted_mean(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each class's mean over its holders, weighted by the `counts` int64[n] in their blobs, as in FedProto's
    paper."""
    return combine_by_class(
        contributions,
        lambda rows, counts: compute_mean(rows, cap_weights(counts, settings.weight_cap), "prototypes", block_elements),
    )


# ---- arithmetic


def get_lower_median(values: Sequence[N]) -> N:
    """Returns the middle one of m values; of the two middle ones of an even number the lower."""
    return sorted(values)[(len(values) - 1) // 2]


def cap_weights(weights: Sequence[int], cap: int | None) -> list[int]:
    """Returns the weights, those above `cap` times their lower median cut to that; unchanged without a cap."""
    if cap is None:
        return list(weights)
    most = cap * get_lower_median(weights)
    return [min(weight, most) for weight in weights]


def compute_mean(
    arrays: Sequence[Array], weights: Sequence[int], name: str, block_elements: int, *, divisor: int | None = None
) -> Array:
    """Computes the formula at the top, on arrays of one shape in author order. `divisor` replaces the sum of
    weights."""
    check_averaged(arrays, name)
    check_weights(weights)
    total = np.float64(sum(weights) if divisor is None else divisor)
    flat = [array.reshape(-1) for array in arrays]
    out = np.empty(flat[0].size, np.float32)
    for start in range(0, out.size, block_elements):
        block = slice(start, start + block_elements)
        acc = np.zeros(out[block].size, np.float64)
        for x, weight in zip(flat, weights, strict=True):
            term = x[block].astype(np.float64)
            term *= np.float64(weight)
            acc += term
        acc /= total
        out[block] = acc.astype(np.float32)
    return out.reshape(arrays[0].shape)
