"""The split of a site's own samples into those it trains on and those that test what came of it.

    train   what a model is trained on
    test    held out of it: every figure is measured on these
    val     held out of both, where the data themselves say so

A sample's key is its group, else its id, else its content. When a site first reads its data, the keys with the lowest
SHA-256(seed || key) of each class are held out, about `data.held_out` of its samples. Each key's side is remembered and
never changes. A key that comes later is held out if its hash is below `data.held_out` of the hashes' range. Samples of
the same content are on one side, whatever their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ml.data.base import AnyLabels

KEY_BYTES = 16  # of a hash that are kept: two of a billion keys share them with a probability of 1e-21
SEED_BYTES = 32
PUBLIC_SEED = bytes(SEED_BYTES)  # of a split that nobody remembers
CONTENT = ("content",)
TOO_FEW = 5  # held-out samples of a class, of which one more or less right is a fifth of the figure


Rule = tuple[str, ...]  # what keys are made of: ("group", "patient"), ("id", "visit") or CONTENT


class Side(StrEnum):
    """A side of a split, as it is spelled in data and on the disk."""

    TRAIN = "train"
    TEST = "test"
    VAL = "val"


@dataclass(slots=True, eq=False)
class Sides:
    """A site's own split: its secret `seed`, None where the site keeps the split of a release that had none, and the
    side of each key that it has seen, by the key's hash. `rule` is what keys are made of, None where that is not known
    yet, and `columns` are those of a table whose cells are its rows' keys. What `place` decides is `known` from then
    on."""

    seed: bytes | None = PUBLIC_SEED
    known: dict[bytes, Side] = field(default_factory=dict)
    rule: Rule | None = None
    columns: tuple[str, ...] | None = None
    is_first: bool = field(init=False)  # nothing was known

    def __post_init__(self) -> None:
        self.is_first = not self.known

    def place(self, keys: Sequence[bytes], contents: Sequence[bytes], y: AnyLabels, share: float) -> NDArray[np.str_]:
        """The side of each sample by its key, of which `share` is held out. `contents` are digests of the samples, `y`
        their classes, or labels and targets [N, T], of which all are one class."""
        if not keys:
            return np.empty(0, "U5")
        numbers: dict[bytes, int] = {}
        key_N = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
        hashes = list(map(self._hash, numbers))
        unit_K = _join(key_N, contents, len(hashes))
        gathered = _gather(unit_K, hashes)
        hash_U, known_U = list(map(min, gathered)), list(map(self._find_side, gathered))
        unit_N = unit_K[key_N]
        if self.is_first:
            is_test = choose_lowest(hash_U, unit_N, y if y.ndim == 1 else np.zeros(len(y), np.int64), share)
        else:
            is_test = np.array([is_below(one, share) for one in hash_U], np.bool_)
        side_U = [side or (Side.TEST if test else Side.TRAIN) for side, test in zip(known_U, is_test, strict=True)]
        side_K = [self.known.setdefault(one, side_U[unit]) for one, unit in zip(hashes, unit_K.tolist(), strict=True)]
        return np.array([side.value for side in side_K], "U5")[key_N]

    def carry_over(self, before: Sequence[bytes], keys: Sequence[bytes]) -> int:
        """Gives samples that are known by other keys now the sides that they had by those `before`. Returns how many
        had one. Where one key is of samples of two sides, it trains."""
        num, found = 0, dict[bytes, Side]()
        for key, side in zip(keys, self.get_sides(before), strict=True):
            if side is not None:
                num += 1
                one = self._hash(key)
                found[one] = side if found.get(one, side) is side else Side.TRAIN
        self.known |= found
        return num

    def get_sides(self, keys: Sequence[bytes]) -> list[Side | None]:
        """The side of each key that has one."""
        return [self.known.get(self._hash(key)) for key in keys]

    def _hash(self, key: bytes) -> bytes:
        assert self.seed is not None  # noqa: S101 - there is nothing to place or to look up by
        return sha256(self.seed + key).digest()[:KEY_BYTES]

    def _find_side(self, hashes: Sequence[bytes]) -> Side | None:
        """The side of samples of one content, of which some keys are known: training if any was trained on."""
        sides = {self.known[one] for one in hashes if one in self.known}
        return None if not sides else Side.TRAIN if Side.TRAIN in sides else min(sides)


def is_below(one: bytes, share: float) -> bool:
    """Whether a hash lies in the lowest `share` of all there may be."""
    return int.from_bytes(one[:8], "big") < share * 2**64


def choose_lowest(
    hash_U: Sequence[bytes], unit_N: NDArray[np.int64], y_N: AnyLabels, share: float
) -> NDArray[np.bool_]:
    """The units of samples that are held out: of each class, the rarest first, those with the lowest hashes, until it
    has as near to `share` of its samples as whole units allow. At least one, and never the last one that trains."""
    classes, class_N = np.unique(y_N, return_inverse=True)
    size_UC = np.zeros((len(hash_U), len(classes)), np.int64)
    np.add.at(size_UC, (unit_N, class_N.reshape(-1)), 1)
    is_test = np.zeros(len(hash_U), np.bool_)
    order = np.array(sorted(range(len(hash_U)), key=hash_U.__getitem__), np.int64)
    train_C = (size_UC > 0).sum(0)  # units of each class that train
    for c in np.argsort(size_UC.sum(0), kind="stable"):
        wanted, held = share * size_UC[:, c].sum(), size_UC[is_test, c].sum()
        for unit in order[(size_UC[order, c] > 0) & ~is_test[order]]:
            if held and held + size_UC[unit, c] - wanted > wanted - held:
                break
            has = size_UC[unit] > 0
            if (train_C[has] == 1).any():
                continue
            is_test[unit] = True
            train_C[has] -= 1
            held += size_UC[unit, c]
    return is_test


def _join(key_N: NDArray[np.int64], contents: Sequence[bytes], num_keys: int) -> NDArray[np.int64]:
    """The unit of each key: keys that share a content are in one."""
    root = list(range(num_keys))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = root[root[k]]
            k = root[k]
        return k

    first: dict[bytes, int] = {}
    for k, content in zip(key_N.tolist(), contents, strict=True):
        root[find(k)] = find(first.setdefault(content, k))
    _, unit_K = np.unique([find(k) for k in range(num_keys)], return_inverse=True)
    return np.asarray(unit_K.reshape(-1), np.int64)


def _gather(unit_K: NDArray[np.int64], hashes: Sequence[bytes]) -> list[list[bytes]]:
    gathered: list[list[bytes]] = [[] for _ in range(int(unit_K.max()) + 1)]
    for unit, one in zip(unit_K.tolist(), hashes, strict=True):
        gathered[unit].append(one)
    return gathered
