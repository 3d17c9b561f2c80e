"""The rules that turn a round's contributions into one aggregate, the same bytes on every machine (PROTOCOL §2).

    out = float32( (sum over authors in key order of float64(x) * w) / sum(w) )        element by element

A float32 times an integer below 2^29 is exact in float64, so neither fused multiply-add, nor vector width, nor threads
can matter: only the order of the authors, which is that of their keys, whatever order contributions came in. Hence
no sum across elements in here, no norm, no exp or log, no matrix product. Work goes in blocks of 64 Ki elements, which
bounds the float64 scratch and changes no byte.

Averaged entries are float32 and nothing else; the class ids, counts and whatever `pool` and `stack` copy keep their
type. Integer buffers of a model (`num_batches_tracked`) are not part of a model payload: receivers keep their own.

A rule sees the contributions and the parent block's aggregate, both without the "kind/" in front of their names
(`carry` apart, see there), and raises AggregationError where they do not go together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ml.errors import AggregationError
from ml.payload import Array, Arrays

BLOCK_ELEMENTS = 64 * 1024
MAX_WEIGHT = (1 << 29) - 1
MAX_NORM = 1 << 40  # of `nova`: far above what 2^20 steps can have, far below where its float64 could overflow
MIN_ROBUST_HOLDERS = 3
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Contributed:
    """What one author gave for one payload kind."""

    author: bytes
    weight: int
    arrays: Arrays


NOVA_NUMBERS = ("local_steps", "norm")  # what `nova`'s blobs have besides a model
RUNNING_STATISTICS = (".running_mean", ".running_var")  # how the names of batch norm's buffers end

Rule = Callable[[Sequence[Contributed], Arrays | None], dict[str, Array]]


# ---- whole arrays


def weighted_mean(
    contributions: Sequence[Contributed], parent: Arrays | None, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Each array's mean over the authors, weighted by their signed integer weights: FedAvg's aggregate."""
    ordered = _in_author_order(contributions)
    weights = [c.weight for c in ordered]
    names = _get_common_names(ordered)
    return {name: _compute_mean([c.arrays[name] for c in ordered], weights, name, block_elements) for name in names}


def uniform_mean(
    contributions: Sequence[Contributed], parent: Arrays | None, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Each array's mean over the authors, all alike: BLADE-FL's aggregate. Weights are ignored."""
    alike = [Contributed(c.author, 1, c.arrays) for c in contributions]
    return weighted_mean(alike, parent, block_elements=block_elements)


def stack(contributions: Sequence[Contributed], parent: Arrays | None) -> dict[str, Array]:
    """Every array of every author under a new first axis, in author order: row i is author i of the block."""
    ordered = _in_author_order(contributions)
    stacked = {}
    for name in _get_common_names(ordered):
        rows = [c.arrays[name] for c in ordered]
        _check_alike(rows, name)
        stacked[name] = np.stack(rows)
    return stacked


def carry(contributions: Sequence[Contributed], parent: Arrays | None) -> dict[str, Array]:
    """The parent's aggregate unchanged, for a round that exchanges something else.

    It is about the aggregate as a whole, so its `parent` has the kinds in front of the names, and so has its result.
    """
    if parent is None:
        raise AggregationError("carry: expected the parent's aggregate, got none")
    return dict(parent)


def nova(
    contributions: Sequence[Contributed], parent: Arrays | None, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """FedNova's aggregate, w_G - tau_eff * sum_k p_k (w_G - w_k) / a_k with tau_eff = sum_k p_k a_k, where w_G is the
    parent's, p_k an author's share of the weights and a_k = ||a_k||_1 the `norm` float64[1] in its blob.

    In float64 and in this order, n_k the weights, n their sum, both sums over authors in key order:

        tau_eff = (0 + n_1 * a_1 + n_2 * a_2 ...) / n
        acc     = 0 + (w_G - w_1) * n_1 / a_1 + (w_G - w_2) * n_2 / a_2 ...
        out     = float32(w_G - acc * tau_eff / n)

    The products here do round, unlike those of a mean. But each operation is one of IEEE 754's own on whole arrays, and
    numpy fuses none with the next, so they round alike on every machine.

    The result has the arrays of the models and no others, whatever else the parent has (block 0's has a frozen encoder
    too). Running statistics of batch norm are averaged as by `weighted_mean`: a way that is made longer could lead a
    variance below zero. What leaves float32's range becomes its largest number, since a sum of finite models could
    otherwise be infinite.
    """
    ordered = _in_author_order(contributions)
    weights, norms = [c.weight for c in ordered], [_get_norm(c) for c in ordered]
    if parent is None:
        raise AggregationError("nova: expected the parent's model, got none")
    out = {}
    for name in _get_common_names(ordered):
        if name in NOVA_NUMBERS:
            continue
        arrays = [c.arrays[name] for c in ordered]
        if name.endswith(RUNNING_STATISTICS):
            out[name] = _compute_mean(arrays, weights, name, block_elements)
        else:
            if name not in parent:
                raise AggregationError(f"nova: expected array {name!r} in the parent's model, got none")
            out[name] = _compute_nova(parent[name], arrays, weights, norms, name, block_elements)
    return out


# ---- rows by class: `classes` int64[n] sorted, `prototypes` float32[n, D]


def class_mean(
    contributions: Sequence[Contributed], parent: Arrays | None, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Each class's mean over those who hold it: DFPL Eq. (2) over owners. Weights are ignored.

    Rows are the sorted classes with at least one holder in this round; other classes are absent.
    """
    return _combine_by_class(
        contributions, lambda rows, counts: _compute_mean(rows, [1] * len(rows), "prototypes", block_elements)
    )


def class_divide_by_k(
    contributions: Sequence[Contributed], parent: Arrays | None, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """DFPL Eq. (2) as printed: each class's sum over its holders divided by all K authors of the round."""
    num_authors = len(contributions)
    return _combine_by_class(
        contributions,
        lambda rows, counts: _compute_mean(rows, [1] * len(rows), "prototypes", block_elements, divisor=num_authors),
    )


def class_weighted_mean(
    contributions: Sequence[Contributed], parent: Arrays | None, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Each class's mean over its holders, weighted by the `counts` int64[n] in their blobs: FedProto's paper."""
    return _combine_by_class(
        contributions, lambda rows, counts: _compute_mean(rows, counts, "prototypes", block_elements)
    )


def class_median(
    contributions: Sequence[Contributed], parent: Arrays | None, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Each class's median over its holders, coordinate by coordinate. With fewer than three holders, their mean."""
    return _combine_by_class(contributions, lambda rows, counts: _compute_sorted_mean(rows, _median, block_elements))


def class_trimmed_mean(
    contributions: Sequence[Contributed], parent: Arrays | None, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Each class's mean over its holders without the lowest and highest fifth (at least one each), coordinate by
    coordinate. With fewer than three holders, their mean."""
    return _combine_by_class(contributions, lambda rows, counts: _compute_sorted_mean(rows, _trim, block_elements))


def pool(contributions: Sequence[Contributed], parent: Arrays | None) -> dict[str, Array]:
    """All rows of all authors: MP-FedCL Eq. (8). `classes` may repeat, both with an author and between authors.

    Rows are ordered by class, within a class by author, within an author as they came. The result has `authors`
    int64[n] besides, the place of each row's author in the block, so that everyone can tell the codebooks apart.
    """
    ordered = _in_author_order(contributions)
    names = _get_common_names(ordered)
    if "classes" not in names:
        raise AggregationError("pool: expected an array 'classes'")
    pooled: dict[str, Array] = {}
    for name in names:
        rows = [c.arrays[name] for c in ordered]
        for author, array in zip(ordered, rows, strict=True):
            if array.ndim == 0 or len(array) != len(author.arrays["classes"]):
                raise AggregationError(f"pool: array {name!r} of {_show(author)} has not one row per class entry")
            if array.dtype != rows[0].dtype or array.shape[1:] != rows[0].shape[1:]:
                raise AggregationError(f"pool: array {name!r} of {_show(author)} is not like those of other authors")
        pooled[name] = np.concatenate(rows)
    lengths = [len(c.arrays["classes"]) for c in ordered]
    pooled["authors"] = np.repeat(np.arange(len(ordered), dtype=np.int64), lengths)
    order = np.argsort(pooled["classes"], kind="stable")
    return {name: array[order] for name, array in pooled.items()}


RULES: dict[str, Rule] = {
    "class_mean": class_mean,
    "class_divide_by_k": class_divide_by_k,
    "class_weighted_mean": class_weighted_mean,
    "class_median": class_median,
    "class_trimmed_mean": class_trimmed_mean,
    "weighted_mean": weighted_mean,
    "uniform_mean": uniform_mean,
    "pool": pool,
    "stack": stack,
    "nova": nova,
    "carry": carry,
}
RULES_ON_PARENT = frozenset({"nova", "carry"})  # that need the parent's aggregate


# ---- arithmetic


def _compute_mean(
    arrays: Sequence[Array], weights: Sequence[int], name: str, block_elements: int, *, divisor: int | None = None
) -> Array:
    """The formula at the top, on arrays of one shape in author order. `divisor` stands in for the sum of weights."""
    _check_averaged(arrays, weights, name)
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


def _compute_nova(
    parent: Array,
    arrays: Sequence[Array],
    weights: Sequence[int],
    norms: Sequence[float],
    name: str,
    block_elements: int,
) -> Array:
    """`nova`'s formula, on arrays of one shape in author order."""
    _check_averaged(arrays, weights, name)
    if parent.shape != arrays[0].shape or parent.dtype != np.float32:
        raise AggregationError(
            f"array {name!r}: expected float32 {list(arrays[0].shape)} in the parent's model,"
            f" got {parent.dtype} {list(parent.shape)}"
        )
    total = np.float64(sum(weights))
    tau_eff = np.float64(0)
    for weight, norm in zip(weights, norms, strict=True):
        tau_eff += np.float64(weight) * np.float64(norm)
    tau_eff /= total
    start_model, flat = parent.reshape(-1), [array.reshape(-1) for array in arrays]
    out = np.empty(start_model.size, np.float32)
    for start in range(0, out.size, block_elements):
        block = slice(start, start + block_elements)
        w_G = start_model[block].astype(np.float64)
        acc = np.zeros(w_G.size, np.float64)
        for x, weight, norm in zip(flat, weights, norms, strict=True):
            term = w_G - x[block].astype(np.float64)
            term *= np.float64(weight)
            term /= np.float64(norm)
            acc += term
        acc *= tau_eff
        acc /= total
        out[block] = (w_G - acc).clip(-LARGEST, LARGEST).astype(np.float32)
    return out.reshape(parent.shape)


def _compute_sorted_mean(
    rows: Sequence[Array], choose: Callable[[NDArray[np.float64]], NDArray[np.float64]], block_elements: int
) -> Array:
    """The mean, in ascending order, of those of the sorted values of each coordinate that `choose` keeps.

    Adding 0.0 first makes every -0.0 a 0.0, so that equal values are equal bytes and their order cannot show.
    """
    if len(rows) < MIN_ROBUST_HOLDERS:
        return _compute_mean(rows, [1] * len(rows), "prototypes", block_elements)
    _check_alike(rows, "prototypes")
    flat = [row.reshape(-1) for row in rows]
    out = np.empty(flat[0].size, np.float32)
    for start in range(0, out.size, block_elements):
        block = slice(start, start + block_elements)
        x_ND = np.stack([row[block].astype(np.float64) + 0.0 for row in flat])
        x_ND.sort(axis=0)
        kept_ND = choose(x_ND)
        acc = np.zeros(out[block].size, np.float64)
        for x in kept_ND:
            acc += x
        acc /= np.float64(len(kept_ND))
        out[block] = acc.astype(np.float32)
    return out.reshape(rows[0].shape)


def _median(x_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    n = len(x_ND)
    return x_ND[(n - 1) // 2 : n // 2 + 1]


def _trim(x_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    cut = max(1, len(x_ND) // 5)
    return x_ND[cut : len(x_ND) - cut]


# ---- order and agreement of the contributions


def _in_author_order(contributions: Sequence[Contributed]) -> list[Contributed]:
    ordered = sorted(contributions, key=lambda c: c.author)
    if not ordered:
        raise AggregationError("expected at least one contribution, got none")
    for one, other in pairwise(ordered):
        if one.author == other.author:
            raise AggregationError(f"expected one contribution per author, got two of {_show(one)}")
    return ordered


def _get_common_names(ordered: Sequence[Contributed]) -> list[str]:
    names = sorted(ordered[0].arrays)
    for contribution in ordered:
        if (got := sorted(contribution.arrays)) != names:
            raise AggregationError(f"expected arrays {names} as of {_show(ordered[0])}, got {got}")
    return names


def _check_alike(arrays: Sequence[Array], name: str) -> None:
    first = arrays[0]
    for array in arrays:
        if array.shape != first.shape or array.dtype != first.dtype:
            raise AggregationError(
                f"array {name!r}: expected {first.dtype} {list(first.shape)} of every author,"
                f" got {array.dtype} {list(array.shape)}"
            )


def _check_averaged(arrays: Sequence[Array], weights: Sequence[int], name: str) -> None:
    _check_alike(arrays, name)
    if arrays[0].dtype != np.float32:
        raise AggregationError(f"array {name!r}: only float32 is averaged, got {arrays[0].dtype}")
    for weight in weights:
        if not 1 <= weight <= MAX_WEIGHT:
            raise AggregationError(f"array {name!r}: expected weights from 1 to {MAX_WEIGHT}, got {weight}")


def _get_norm(contribution: Contributed) -> float:
    norm = contribution.arrays.get("norm")
    if norm is None or norm.dtype != np.float64 or norm.shape != (1,):
        raise AggregationError(f"nova: expected an array 'norm' float64[1] of {_show(contribution)}")
    if not 1 <= norm[0] <= MAX_NORM:
        raise AggregationError(f"nova: expected a norm from 1 to {MAX_NORM} of {_show(contribution)}, got {norm[0]}")
    return float(norm[0])


def _combine_by_class(
    contributions: Sequence[Contributed], combine: Callable[[Sequence[Array], Sequence[int]], Array]
) -> dict[str, Array]:
    """Apply `combine(rows, counts)` to the rows of each class in author order. Counts are 1 where blobs have none."""
    ordered = _in_author_order(contributions)
    names = _get_common_names(ordered)
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
        raise AggregationError(f"expected arrays 'classes' and 'prototypes' of {_show(contribution)}")
    if classes.ndim != 1 or prototypes.ndim != 2 or len(classes) != len(prototypes):
        raise AggregationError(f"expected one row of 'prototypes' per class of {_show(contribution)}")
    if not np.all(classes[1:] > classes[:-1]):
        raise AggregationError(f"expected the classes of {_show(contribution)} sorted and once each")
    return classes, prototypes


def _show(contribution: Contributed) -> str:
    return contribution.author.hex()[:8]
