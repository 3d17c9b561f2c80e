"""Outer optimisers: the result of a round's rule is not the next common model, but the direction of an optimiser's
step.

x is the common model before, m the result of the rule for the round's contributions, d = m - x. Element by element:

    momentum   v1 = beta1 v1 + d                                    x' = x + lr v1
               FedAvgM: Hsu, Qi, Brown, *Measuring the Effects of Non-Identical Data Distribution for Federated Visual
               Classification*, 2019
    nesterov   v1 = beta1 v1 + d                                    x' = x + lr (d + beta1 v1)
               DiLoCo: Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023
    adam       v1 = beta1 v1 + (1 - beta1) d
               v2 = beta2 v2 + (1 - beta2) d^2                      x' = x + lr v1 / (sqrt(v2) + eps)
    yogi       v1 as adam's
               v2 = v2 - (1 - beta2) d^2 sign(v2 - d^2)             x' as adam's
               FedAdam and FedYogi: Reddi et al., *Adaptive Federated Optimization*, 2021, algorithm 2, whose update has
               no correction of bias

v1 begins at 0 and v2 at eps^2. All is computed in float64 and in this order, and rounded to float32 once, when x', v1
and v2 are written. Each operation is one of IEEE 754's own on whole arrays, and numpy fuses none with the next, so they
round alike on every machine. Numbers beyond float32's range become its largest number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.aggregation.contributed import BLOCK_ELEMENTS
from ml.payload import Array

MOMENTUM, NESTEROV, ADAM, YOGI = OPTIMIZERS = ("momentum", "nesterov", "adam", "yogi")
ADAPTIVE = (ADAM, YOGI)  # they have a second moment
LARGEST = float(np.finfo(np.float32).max)

Block = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OuterSettings:
    """Names one of OPTIMIZERS and its numbers; `beta2` and `eps` are used only by those that have a second moment."""

    optimizer: str
    lr: float
    beta1: float
    beta2: float = 0.0
    eps: float = 0.0

    @property
    def num_moments(self) -> int:
        return 2 if self.optimizer in ADAPTIVE else 1

    def to_mapping(self) -> dict[str, Any]:
        """Returns the settings as genesis and a schema have them."""
        names = ("optimizer", "lr", "beta1", "beta2", "eps")
        return {name: getattr(self, name) for name in (names if self.num_moments == 2 else names[:3])}


def begin_moments(like: Array, settings: OuterSettings) -> list[Array]:
    """Returns the moments of one array before the first round: v1, and v2 for optimisers that have it."""
    moments = [np.zeros(like.shape, np.float32)]
    if settings.num_moments == 2:
        moments.append(np.full(like.shape, settings.eps**2, np.float32))
    return moments


def step_outer(
    before: Array, made: Array, moments: list[Array], settings: OuterSettings, *, block_elements: int = BLOCK_ELEMENTS
) -> tuple[Array, list[Array]]:
    """Returns x' and its moments, computed from x, m and the moments before, all float32 of one shape."""
    x_flat, m_flat, *v_flat = (array.reshape(-1) for array in (before, made, *moments))
    out, *v_out = (np.empty(x_flat.size, np.float32) for _ in (before, *moments))
    for start in range(0, out.size, block_elements):
        block = slice(start, start + block_elements)
        x = x_flat[block].astype(np.float64)
        d = m_flat[block].astype(np.float64) - x
        way, vs = _compute_way(d, [v[block].astype(np.float64) for v in v_flat], settings)
        out[block] = _to_float32(x + settings.lr * way)
        for written, v in zip(v_out, vs, strict=True):
            written[block] = _to_float32(v)
    return out.reshape(before.shape), [v.reshape(before.shape) for v in v_out]


def _compute_way(d: Block, moments: list[Block], settings: OuterSettings) -> tuple[Block, list[Block]]:
    """Computes (x' - x) / lr, and the moments after."""
    beta1, beta2 = settings.beta1, settings.beta2
    if settings.optimizer in (MOMENTUM, NESTEROV):
        v1 = beta1 * moments[0] + d
        return (v1 if settings.optimizer == MOMENTUM else d + beta1 * v1), [v1]
    v1 = beta1 * moments[0] + (1 - beta1) * d
    squares = d * d
    if settings.optimizer == ADAM:
        v2 = beta2 * moments[1] + (1 - beta2) * squares
    else:
        v2 = moments[1] - (1 - beta2) * squares * np.sign(moments[1] - squares)
    return v1 / (np.sqrt(v2) + settings.eps), [v1, v2]


def _to_float32(values: Block) -> Array:
    return np.clip(values, -LARGEST, LARGEST, out=values).astype(np.float32)
