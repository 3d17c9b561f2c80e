"""Rules that hold against lies of fewer than a third of the members: median, trimmed mean, clipped mean and multi-krum
(PROTOCOL §2).

They ignore weights, about which authors can lie. m is the number of authors, for a class that of its holders; f is how
many of the members may lie (`RuleSettings.max_liars`), whoever of them contributed. If f followed from the number of
contributions, the trim would be 0 at three of four, and one honest site that comes late would leave the liar in a plain
mean.

    median         element by element
    trimmed_mean   element by element, without the t = min(f, (m - 1) // 2) lowest and highest values
                   both: Yin, Chen, Ramchandran, Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal
                   Statistical Rates*, 2018
    clipped_mean   the mean of the differences from p, those longer than the lower median one cut to its length
                   Karimireddy, He, Jaggi, *Learning from History for Byzantine Robust Optimization*, 2021; around what
                   peers hold themselves: He, Karimireddy, Jaggi, *Byzantine-Robust Decentralized Learning via
                   ClippedGossip*, 2022
    multi_krum     the mean of the m - f authors whose nearest others are nearest
                   Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries: Byzantine Tolerant
                   Gradient Descent*, 2017. Proven for m >= 2f + 3, which four members are not. A distance is over all
                   elements and leaves room for a lie in a few of them: El Mhamdi, Guerraoui, Rouault, *The Hidden
                   Vulnerability of Distributed Learning in Byzantium*, 2018

p is the parent's aggregate; for rows of a class, which the parent may not have, the lower median of its holders,
element by element. Distances are integers (`ml.aggregation.distances`). They leave out running statistics of batch
norm, whose scale is not that of weights, and arrays that the parent does not have; these take the median. With one or
two authors nobody can say which one lies: they are not protected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import isqrt

import numpy as np

from ml.aggregation.contributed import (
    BLOCK_ELEMENTS,
    PLAIN,
    Contributed,
    Given,
    RuleSettings,
    check_averaged,
    check_parent,
    combine_by_class,
    get_common_names,
    order_by_author,
)
from ml.aggregation.distances import INFINITE, SCALE, Layer, Vectors
from ml.aggregation.gathered import pool
from ml.aggregation.means import compute_mean, get_lower_median
from ml.aggregation.sorting import compute_median, compute_trimmed_mean, get_lower_medians
from ml.errors import AggregationError
from ml.payload import Array, Arrays

RUNNING_STATISTICS = (".running_mean", ".running_var")  # how the names of batch norm's buffers end
WHOLE = 1 << 16  # the weight of an author that `clipped_mean` does not cut
MIN_KRUM_AUTHORS = 3

# Returns the weights of m authors, and of p after them; None if the median has to be taken instead.
Weigh = Callable[[Vectors, RuleSettings, int], list[int] | None]


# ---- whole arrays


def median(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each element's median over the authors; for an even number the mean of the two middle ones."""
    return _combine(contributions, partial(compute_median, block_elements=block_elements))


def trimmed_mean(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each element's mean over the authors, without the t lowest and highest."""
    trim = compute_trim(len(contributions), settings.max_liars)
    return _combine(contributions, partial(compute_trimmed_mean, trim=trim, block_elements=block_elements))


def clipped_mean(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns the parent's aggregate plus the mean of the authors' differences from it, each cut to the lower median of
    their lengths, or to `clip`. Returns the authors' median if more than half are infinitely far: the parent itself was
    spoiled."""
    return _combine_by_weight(contributions, parent, settings, weigh_by_length, block_elements)


def multi_krum(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns the mean of the m - f authors with the lowest scores. It is the median if there are fewer than three
    authors, or more than f that are infinitely far from the parent's aggregate."""
    return _combine_by_weight(contributions, parent, settings, weigh_by_score, block_elements)


# ---- rows by class


def class_median(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each class's median over its holders."""
    return combine_by_class(contributions, lambda rows, counts: compute_median(rows, "prototypes", block_elements))


def class_trimmed_mean(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each class's trimmed mean over its holders."""

    def combine(rows: Sequence[Array], counts: Sequence[int]) -> Array:
        trim = compute_trim(len(rows), settings.max_liars)
        return compute_trimmed_mean(rows, "prototypes", trim=trim, block_elements=block_elements)

    return combine_by_class(contributions, combine)


def class_clipped_mean(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each class's clipped mean over its holders, around their lower median."""
    return _combine_classes_by_weight(contributions, settings, weigh_by_length, block_elements)


def class_multi_krum(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns each class's multi-krum over its holders."""
    return _combine_classes_by_weight(contributions, settings, weigh_by_score, block_elements)


def trimmed_pool(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns MP-FedCL's pool, for each class without the max(0, min(f, m - 2)) holders whose mean row is farthest from
    the median of the m mean rows. Of holders equally far, those with higher keys are left out."""
    ordered = order_by_author(contributions)
    if "prototypes" not in get_common_names(ordered):
        raise AggregationError("trimmed_pool: expected an array 'prototypes'")
    classes = pool(ordered, parent)["classes"]  # raises if rows do not fit together
    kept = [np.ones(len(c.arrays["classes"]), bool) for c in ordered]
    for class_id in np.unique(classes):
        has_class = [c.arrays["classes"] == class_id for c in ordered]
        holders = [i for i, rows in enumerate(has_class) if rows.any()]
        means = [_compute_mean_row(ordered[i].arrays["prototypes"][has_class[i]], block_elements) for i in holders]
        for place in _find_farthest(means, settings.max_liars, block_elements):
            kept[holders[place]] &= ~has_class[holders[place]]
    trimmed = [
        Contributed(c.author, c.weight, {name: array[rows] for name, array in c.arrays.items()})
        for c, rows in zip(ordered, kept, strict=True)
    ]
    return pool(trimmed, parent)


# ---- weights


def compute_trim(num_authors: int, max_liars: int) -> int:
    """Computes t, how many values are left out on each side: f, as long as one value is left."""
    return min(max_liars, (num_authors - 1) // 2)


def weigh_by_length(vectors: Vectors, settings: RuleSettings, block_elements: int) -> list[int] | None:
    """Returns `clipped_mean`'s weights: with N_i the squared length of author i's difference from p and T the lower
    median of these, or (clip * 2^20)^2,

        k_i = 2^16 if N_i <= T, 0 if N_i is infinite, else isqrt((T << 32) // N_i)

    and the weight of p is what the authors lack of 2^16 each. Returns None if the lower median is infinite.
    """
    norms = vectors.compute_norms(block_elements)
    longest = get_lower_median(norms)
    if longest == INFINITE:
        return None
    if settings.clip is not None:
        longest = int((Fraction(settings.clip) * SCALE) ** 2)
    weights = [_compute_share(norm, longest) for norm in norms]
    return [*weights, sum(WHOLE - weight for weight in weights)]


def _compute_share(norm: int, longest: int) -> int:
    if norm == INFINITE:
        return 0
    return WHOLE if norm <= longest else isqrt((longest << 32) // norm)


def weigh_by_score(vectors: Vectors, settings: RuleSettings, block_elements: int) -> list[int] | None:
    """Returns `multi_krum`'s weights: 1 for the max(1, m - f) authors of the lowest scores, of equal scores the lower
    key's. A score is the sum of the max(1, m - f - 2) smallest squared distances from others.

    Returns None for fewer than three authors, if more than f are infinitely far, and if all are: such an author is
    never chosen.
    """
    m, f = vectors.num_authors, settings.max_liars
    if m < MIN_KRUM_AUTHORS:
        return None
    distances = vectors.compute_distances(block_elements)
    near = [i for i in range(m) if distances[i][i] != INFINITE]
    if not near or m - len(near) > f:
        return None
    num_others = max(1, m - f - 2)
    scores = {i: sum(sorted(distances[i][:i] + distances[i][i + 1 :])[:num_others]) for i in near}
    chosen = sorted(near, key=lambda i: (scores[i], i))[: max(1, m - f)]
    return [int(i in chosen) for i in range(m + 1)]


def _find_farthest(rows: Sequence[Array], max_liars: int, block_elements: int) -> list[int]:
    """Returns the places of the rows of a class that the pool leaves out."""
    num_left_out = max(0, min(max_liars, len(rows) - 2))
    if not num_left_out:
        return []
    center = compute_median(rows, "prototypes", block_elements)
    norms = Vectors(len(rows), [Layer(rows, center)]).compute_norms(block_elements)
    return sorted(range(len(rows)), key=lambda i: (norms[i], i))[-num_left_out:]


# ---- how arrays combine


def _combine(contributions: Given, combine: Callable[[Sequence[Array], str], Array]) -> dict[str, Array]:
    """Applies `combine(arrays, name)` to the arrays of each name in author order."""
    ordered = order_by_author(contributions)
    return {name: combine([c.arrays[name] for c in ordered], name) for name in get_common_names(ordered)}


def _combine_by_weight(
    contributions: Given, parent: Arrays | None, settings: RuleSettings, weigh: Weigh, block_elements: int
) -> dict[str, Array]:
    """Returns the mean by the weights that `weigh` computes around the parent's arrays; for all other arrays the
    median."""
    ordered = order_by_author(contributions)
    layers = get_layers(ordered, parent)
    weights = weigh(Vectors(len(ordered), list(layers.values())), settings, block_elements)

    def combine(arrays: Sequence[Array], name: str) -> Array:
        if weights is None or name not in layers:
            return compute_median(arrays, name, block_elements)
        return _mix(layers[name], weights, name, block_elements)

    return _combine(ordered, combine)


def _combine_classes_by_weight(
    contributions: Given, settings: RuleSettings, weigh: Weigh, block_elements: int
) -> dict[str, Array]:
    def combine(rows: Sequence[Array], counts: Sequence[int]) -> Array:
        check_averaged(rows, "prototypes")
        layer = Layer(rows, get_lower_medians(rows))
        weights = weigh(Vectors(len(rows), [layer]), settings, block_elements)
        if weights is None:
            return compute_median(rows, "prototypes", block_elements)
        return _mix(layer, weights, "prototypes", block_elements)

    return combine_by_class(contributions, combine)


def get_layers(ordered: Sequence[Contributed], parent: Arrays | None) -> dict[str, Layer]:
    """Returns the arrays over which distances are taken, in name order: those that the parent has too, without running
    statistics.

    Raises AggregationError without a parent, and for arrays that are not float32 of one shape.
    """
    if parent is None:
        raise AggregationError("expected the parent's model, got none")
    layers = {}
    for name in get_common_names(ordered):
        if name.endswith(RUNNING_STATISTICS) or name not in parent:
            continue
        rows = [c.arrays[name] for c in ordered]
        check_averaged(rows, name)
        check_parent(parent[name], rows[0], name)
        layers[name] = Layer(rows, parent[name])
    return layers


def _mix(layer: Layer, weights: Sequence[int], name: str, block_elements: int) -> Array:
    """Returns the mean of the authors' arrays and p's, in that order, without those of weight 0."""
    pairs = [(array, w) for array, w in zip([*layer.rows, layer.origin], weights, strict=True) if w]
    return compute_mean([array for array, _ in pairs], [w for _, w in pairs], name, block_elements)


def _compute_mean_row(rows: Array, block_elements: int) -> Array:
    return compute_mean(list(rows), [1] * len(rows), "prototypes", block_elements)
