"""Masks of sparse models: the entries of a tensor that are kept, and how they change. A mask is flat, and True for
entries that are kept.

DisPFL uses them (see `ml.methods.dispfl`); `ml.specs.methods.dispfl` says how a mask is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.random import Generator

from ml.payload import Array, Arrays
from ml.specs.methods.dispfl import Mask, pack_mask

Masks = Mapping[str, Mask]  # by the name of the tensor


def pack_masks(masks: Masks, prefix: str) -> dict[str, Array]:
    return {prefix + name: pack_mask(mask) for name, mask in masks.items()}


def apply_masks(arrays: Arrays, masks: Masks) -> dict[str, Array]:
    """Returns the arrays with zeros (and no minus zeros) for entries that a mask does not keep."""
    zero = np.float32(0)
    masked = {name: np.where(mask.reshape(arrays[name].shape), arrays[name], zero) for name, mask in masks.items()}
    return {**arrays, **masked}


def compute_consensus(parts: Sequence[tuple[Array, Mask | None]], size: int) -> Array:
    """Computes float32[size]: each coordinate's mean over the masks that have it, 0 if none has; element by element in
    float64, in the order of `parts`, each the kept values and the mask, None for a whole tensor."""
    total, count = np.zeros(size, np.float64), np.zeros(size, np.int64)
    for values, mask in parts:
        kept = slice(None) if mask is None else mask
        total[kept] += values.reshape(-1)
        count[kept] += 1
    mean: Array = (total / np.maximum(count, 1)).astype(np.float32)
    return mean


def prune(mask: Mask, weights: Array, ratio: float) -> tuple[Mask, int]:
    """Returns the mask without the smallest ceil(ratio * kept) of the weights it keeps, and how many those are."""
    kept = np.flatnonzero(mask)
    num = math.ceil(round(ratio * len(kept), 9))
    left = mask.copy()
    left[kept[np.argsort(np.abs(weights[kept]), kind="stable")[:num]]] = False
    return left, num


def regrow(mask: Mask, num: int, by: Generator | Array) -> Mask:
    """Returns the mask with `num` more entries of those it does not keep: drawn at random, or with the largest
    gradients."""
    free = np.flatnonzero(~mask)
    if isinstance(by, Generator):
        chosen = by.choice(free, num, replace=False)
    else:
        chosen = free[np.argsort(-np.abs(by[free]), kind="stable")[:num]]
    grown = mask.copy()
    grown[chosen] = True
    return grown
