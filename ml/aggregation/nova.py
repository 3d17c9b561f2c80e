"""FedNova's rule: a mean that divides each author's difference from the parent's model by its number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ml.aggregation.contributed import (
    BLOCK_ELEMENTS,
    PLAIN,
    Contributed,
    Given,
    RuleSettings,
    check_weights,
    get_common_names,
    order_by_author,
    show_author,
)
from ml.aggregation.distances import INFINITE, Vectors
from ml.aggregation.means import cap_weights, compute_mean, get_lower_median
from ml.aggregation.robust import RUNNING_STATISTICS, get_layers
from ml.errors import AggregationError
from ml.payload import Array, Arrays

NOVA_NUMBERS = ("local_steps", "norm")  # the arrays that a payload has besides a model
MAX_STEPS = 1 << 20  # of a local phase; validators add up as many numbers
MAX_NORM = 1 << 40  # far above what so many steps can have, far below where float64 could overflow in here
LARGEST = float(np.finfo(np.float32).max)


def nova(
    contributions: Given, parent: Arrays | None, settings: RuleSettings = PLAIN, *, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Returns FedNova's aggregate, w_G - tau_eff * sum_k p_k (w_G - w_k) / a_k with tau_eff = sum_k p_k a_k, where w_G
    is the parent's, p_k an author's share of the weights and a_k = ||a_k||_1 the `norm` float64[1] in its blob.

    In float64 and in this order, n_k the weights, n their sum, both sums over authors in key order:

        tau_eff = (0 + n_1 * a_1 + n_2 * a_2 ...) / n
        acc     = 0 + (w_G - w_1) * n_1 / a_1 + (w_G - w_2) * n_2 / a_2 ...
        out     = float32(w_G - acc * tau_eff / n)

    The products here do round, unlike those of a mean. But each operation is one of IEEE 754's own on whole arrays, and
    numpy fuses none with the next, so they round alike on every machine.

    With a `weight_cap` the steps from which a_k follows are capped as weights are, since one author's many steps make
    all others' differences longer: one author's claim of 2^20 steps turned a difference of 0.01 into 48.

    The result has the arrays of the models and no others, whatever else the parent has (block 0's has a frozen encoder
    too). Running statistics of batch norm are averaged as by `weighted_mean`: a longer difference could make a variance
    negative. Numbers beyond float32's range become its largest number, since a sum of finite models could otherwise be
    infinite. If more than half of the authors are infinitely far from the parent (`ml.aggregation.distances`), the
    parent itself was spoiled, and everything is averaged.
    """
    ordered = order_by_author(contributions)
    weights = cap_weights([c.weight for c in ordered], settings.weight_cap)
    check_weights(weights)
    norms = _get_norms(ordered, settings)
    models = [_get_model(c) for c in ordered]
    layers = get_layers(models, parent)
    is_spoiled = get_lower_median(Vectors(len(models), list(layers.values())).compute_norms(block_elements)) == INFINITE
    out = {}
    for name in get_common_names(models):
        arrays = [c.arrays[name] for c in models]
        if is_spoiled or name.endswith(RUNNING_STATISTICS):
            out[name] = compute_mean(arrays, weights, name, block_elements)
        else:
            if name not in layers:
                raise AggregationError(f"nova: expected array {name!r} in the parent's model, got none")
            out[name] = _compute_nova(layers[name].origin, arrays, weights, norms, block_elements)
    return out


@lru_cache(maxsize=256)
def compute_norm(num_steps: int, momentum: float) -> float:
    """Computes ||a||_1 = (tau - rho * (1 - rho^tau) / (1 - rho)) / (1 - rho): how often a gradient of each step enters
    the weights, summed over the steps.

    It uses the recursion c <- rho * c + 1, whose float64 is the same on every machine; that of a power or a logarithm
    depends on the C library.
    """
    c = total = 0.0
    for _ in range(num_steps):
        c = momentum * c + 1.0
        total += c
    return total


def _compute_nova(
    parent: Array, arrays: Sequence[Array], weights: Sequence[int], norms: Sequence[float], block_elements: int
) -> Array:
    """Computes `nova`'s formula, on arrays of one shape in author order."""
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


def _get_model(contribution: Contributed) -> Contributed:
    arrays = {name: array for name, array in contribution.arrays.items() if name not in NOVA_NUMBERS}
    return Contributed(contribution.author, contribution.weight, arrays)


def _get_norms(ordered: Sequence[Contributed], settings: RuleSettings) -> list[float]:
    """Returns ||a||_1 of each author, for no more steps than the cap allows."""
    norms = [_get_norm(c) for c in ordered]
    if settings.weight_cap is None:
        return norms
    steps = [_get_steps(c) for c in ordered]
    capped = cap_weights(steps, settings.weight_cap)
    return [
        norm if fewer == num else compute_norm(fewer, settings.momentum)
        for norm, num, fewer in zip(norms, steps, capped, strict=True)
    ]


def _get_norm(contribution: Contributed) -> float:
    norm = contribution.arrays.get("norm")
    if norm is None or norm.dtype != np.float64 or norm.shape != (1,):
        raise AggregationError(f"nova: expected an array 'norm' float64[1] of {show_author(contribution)}")
    if not 1 <= norm[0] <= MAX_NORM:
        raise AggregationError(
            f"nova: expected a norm from 1 to {MAX_NORM} of {show_author(contribution)}, got {norm[0]}"
        )
    return float(norm[0])


def _get_steps(contribution: Contributed) -> int:
    steps = contribution.arrays.get("local_steps")
    if steps is None or steps.dtype != np.int64 or steps.shape != (1,):
        raise AggregationError(f"nova: expected an array 'local_steps' int64[1] of {show_author(contribution)}")
    if not 1 <= steps[0] <= MAX_STEPS:
        raise AggregationError(
            f"nova: expected local_steps from 1 to {MAX_STEPS} of {show_author(contribution)}, got {steps[0]}"
        )
    return int(steps[0])
