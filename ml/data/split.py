"""The split of a site's own samples into those it trains on and those that test the result.

    train   samples that a model is trained on
    test    held out of training: every figure is measured on these
    val     held out of both, where the configuration sets it: rounds are compared by these

A sample's key is its group, else its id, else its content. When a site first reads its data, the keys with the lowest
SHA-256(seed || key) of each class are held out, about `data.held_out` of its samples, and those with the next lowest
are val, about `data.val` of the others. Each key's side is stored and does not change. A key that appears later is held
out if its hash is below `data.held_out` of the hashes' range, and val if it is in the part above that. Samples of the
same content are on one side, whatever their keys.

A site that has already trained without val samples continues so, and so does one that would have too few of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.base import AnyLabels

KEY_BYTES = 16  # of a hash that are kept: two of a billion keys share them with a probability of 1e-21
SEED_BYTES = 32
PUBLIC_SEED = bytes(SEED_BYTES)  # of a split that is not stored
CONTENT = ("content",)
TOO_FEW = 5  # held-out samples of a class: among five, one answer changes the figure by a fifth
VAL_SHARE = 0.1  # share of the training samples that is val, where a run selects a round
MIN_VAL = 10  # val samples: fewer, or samples of one class, do not show which round is better


Rule = tuple[str, ...]  # what keys are made of: ("group", "patient"), ("id", "visit") or CONTENT


class Side(StrEnum):
    """A side of a split, spelled as in data and on the disk."""

    TRAIN = "train"
    TEST = "test"
    VAL = "val"


@dataclass(slots=True, eq=False)
class Sides:
    """A site's own split: its secret `seed`, None where the site keeps the split of a release that had no seed, and the
    side of each key that the site has seen, by the key's hash. `rule` says what keys are made of, None where that is
    not known yet; `columns` are a table's columns whose cells make up its rows' keys. `place` adds what it decides to
    `known`."""

    seed: bytes | None = PUBLIC_SEED
    known: dict[bytes, Side] = field(default_factory=dict)
    rule: Rule | None = None
    columns: tuple[str, ...] | None = None
    is_first: bool = field(init=False)  # no side was known before
    has_val: bool = field(init=False)  # some keys known are val

    def __post_init__(self) -> None:
        self.is_first = not self.known
        self.has_val = Side.VAL in self.known.values()

    def place(
        self, keys: Sequence[bytes], contents: Sequence[bytes], y: AnyLabels, share: float, val: float | None = None
    ) -> NDArray[np.str_]:
        """Returns the side of each sample by its key. A `share` of the samples is held out to test, and a share `val`
        of the others to compare rounds by. If `val` is 0, none is val, and keys that were val train from then on.
        `contents` are digests of the samples, `y` their classes; labels and targets [N, T] count as one class."""
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
            drawn_U = _draw(hash_U, unit_N, y if y.ndim == 1 else np.zeros(len(y), np.int64), share, val or 0.0)
        else:
            later = (1 - share) * (val or 0.0) if self.has_val else 0.0
            drawn_U = [_find_band(one, share, later) for one in hash_U]
        side_U = [side or drawn for side, drawn in zip(known_U, drawn_U, strict=True)]
        side_K = [self.known.setdefault(one, side_U[unit]) for one, unit in zip(hashes, unit_K.tolist(), strict=True)]
        side_N = np.array([side.value for side in side_K], "U5")[key_N]
        is_val = side_N == Side.VAL.value
        if is_val.any() and (val == 0 or not are_enough(y[is_val])):
            side_N[is_val] = Side.TRAIN.value
            self.known |= {one: Side.TRAIN for one, side in zip(hashes, side_K, strict=True) if side is Side.VAL}
        return side_N

    def carry_over(self, before: Sequence[bytes], keys: Sequence[bytes]) -> int:
        """Records, for samples whose keys have changed, the sides that they had by their keys `before`. Returns the
        number of samples that had a side. Where one key belongs to samples of two sides, it trains."""
        num, found = 0, dict[bytes, Side]()
        for key, side in zip(keys, self.get_sides(before), strict=True):
            if side is not None:
                num += 1
                one = self._hash(key)
                found[one] = side if found.get(one, side) is side else Side.TRAIN
        self.known |= found
        return num

    def get_sides(self, keys: Sequence[bytes]) -> list[Side | None]:
        """Returns the side of each key, None for a key that has none."""
        return [self.known.get(self._hash(key)) for key in keys]

    def _hash(self, key: bytes) -> bytes:
        assert self.seed is not None  # noqa: S101 - there is nothing to place or to look up by
        return sha256(self.seed + key).digest()[:KEY_BYTES]

    def _find_side(self, hashes: Sequence[bytes]) -> Side | None:
        """Returns the side of samples that belong together, of which some keys are known: training if any was trained
        on."""
        sides = {self.known[one] for one in hashes if one in self.known}
        return None if not sides else Side.TRAIN if Side.TRAIN in sides else min(sides)


def are_enough(y: AnyLabels) -> bool:
    """Says whether val samples of these classes, or labels and targets [N, T], suffice to show which round is
    better."""
    return len(y) >= MIN_VAL and (y.ndim > 1 or len(np.unique(y)) > 1)


def complete_val(data: Mapping[str, Any], *, selects: bool) -> dict[str, Any]:
    """Returns `data` of a configuration as a run uses it: if the run `selects` a round and no share of val samples is
    set, it is a tenth."""
    return {**data, "val": VAL_SHARE} if selects and data.get("val") is None else {**data}


def divide(
    rows: NDArray[np.int64], is_val: NDArray[np.bool_], y: AnyLabels
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the rows of one client that train, and its val rows: none where they would be too few."""
    val = rows[is_val[rows]]
    return (rows[~is_val[rows]], val) if are_enough(y[val]) else (rows, rows[:0])


def is_below(one: bytes, share: float) -> bool:
    """Says whether a hash lies in the lowest `share` of all possible hashes."""
    return int.from_bytes(one[:8], "big") < share * 2**64


def _find_band(one: bytes, share: float, val: float) -> Side:
    """Returns the side of a key that was seen after the first split: a share `share` of such keys tests, and a share
    `val` is val."""
    return Side.TEST if is_below(one, share) else Side.VAL if is_below(one, share + val) else Side.TRAIN


def _draw(hash_U: Sequence[bytes], unit_N: NDArray[np.int64], y_N: AnyLabels, share: float, val: float) -> list[Side]:
    """Draws the side of each unit, where none is known: `share` of the samples tests, and `val` of the others is
    val."""
    is_test = np.zeros(len(hash_U), np.bool_)
    if share:
        is_test = choose_lowest(hash_U, unit_N, y_N, share)
    is_val = np.zeros(len(hash_U), np.bool_)
    if val:
        rest = np.flatnonzero(~is_test[unit_N])
        is_val = choose_lowest(hash_U, unit_N[rest], y_N[rest], val, least=0)
    return [Side.TEST if test else Side.VAL if own else Side.TRAIN for test, own in zip(is_test, is_val, strict=True)]


def choose_lowest(
    hash_U: Sequence[bytes], unit_N: NDArray[np.int64], y_N: AnyLabels, share: float, least: int = 1
) -> NDArray[np.bool_]:
    """Chooses the units of samples that are held out. For each class, the rarest first, takes the units with the lowest
    hashes until it has as near to `share` of the class's samples as whole units allow. Takes at `least` so many samples
    of a class, and never the last unit of it that trains."""
    classes, class_N = np.unique(y_N, return_inverse=True)
    size_UC = np.zeros((len(hash_U), len(classes)), np.int64)
    np.add.at(size_UC, (unit_N, class_N.reshape(-1)), 1)
    is_test = np.zeros(len(hash_U), np.bool_)
    order = np.array(sorted(range(len(hash_U)), key=hash_U.__getitem__), np.int64)
    train_C = (size_UC > 0).sum(0)  # units of each class that train
    for c in np.argsort(size_UC.sum(0), kind="stable"):
        wanted, held = share * size_UC[:, c].sum(), size_UC[is_test, c].sum()
        for unit in order[(size_UC[order, c] > 0) & ~is_test[order]]:
            if held >= least and held + size_UC[unit, c] - wanted > wanted - held:
                break
            has = size_UC[unit] > 0
            if (train_C[has] == 1).any():
                continue
            is_test[unit] = True
            train_C[has] -= 1
            held += size_UC[unit, c]
    return is_test


def _join(key_N: NDArray[np.int64], contents: Sequence[bytes], num_keys: int) -> NDArray[np.int64]:
    """Returns the unit of each key: keys that share a content are in one unit."""
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
