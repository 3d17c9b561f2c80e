"""Encrypted sets of others: reads rows from memory or from a mapped file to the device.

A set is the arrays of one `encrypted_set` payload (`ml.specs.methods.fededs`). It may be on a disk, and too large to
read in one step: only drawn rows are read, for many steps at once, and become float32 where they are used.

Legend: N samples of a set, B rows of it, C classes, S width of the random layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ml.payload import Array, Arrays
from ml.training.loop import Tensors

Rows = NDArray[np.int64]

_READ = ("x", "y")  # arrays of a set that a step uses besides its layer


def decode_images(x: Tensor, scale: Tensor | None, offset: Tensor | None) -> Tensor:
    """Returns x'_BCHW float32 of the numbers that were sent: offset + scale * x, by channel, where both were sent."""
    x = x.float()
    if scale is None or offset is None:
        return x
    return x.mul_(scale.view(1, -1, 1, 1)).add_(offset.view(1, -1, 1, 1))


def take_rows(array: Array, rows: Rows) -> Tensor:
    """Copies some rows straight into memory that torch takes (`ml.training.loop`)."""
    taken = torch.from_numpy(np.empty(0, array.dtype)).new_empty((len(rows), *array.shape[1:]))
    array.take(rows, 0, out=taken.numpy(), mode="clip")  # with another mode numpy buffers all rows
    return taken


@dataclass(frozen=True, slots=True, eq=False)
class EncryptedSet:
    """One author's encrypted set. `rows` are those that may be drawn, `layer` is its theta^l on the device, None for
    identity."""

    arrays: Arrays
    device: torch.device
    rows: Rows
    layer: Tensor | None

    @classmethod
    def open(cls, arrays: Arrays, device: torch.device, per_class: int | None = None) -> Self:
        """Opens a set. With `per_class` only the first so many rows of each class, by the larger soft label, may be
        drawn."""
        rows = np.arange(len(arrays["y"])) if per_class is None else find_first(arrays["y"].argmax(1), per_class)
        layer = torch.tensor(arrays["layer"], device=device) if "layer" in arrays else None
        return cls(arrays, device, rows, layer)

    def draw(self, size: int, rng: Generator) -> Rows:
        """Draws `size` different rows, or all if there are fewer."""
        return self.rows[rng.choice(len(self.rows), min(size, len(self.rows)), replace=False, shuffle=False)]

    def read(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Returns x'_BCHW and y'_BC, both float32 on the device."""
        x, y = (take_rows(self.arrays[name], rows).to(self.device) for name in ("x", "y"))
        return decode_images(x, self._get("scale"), self._get("offset")), y

    def _get(self, name: str) -> Tensor | None:
        return torch.tensor(self.arrays[name], device=self.device) if name in self.arrays else None

    @property
    def row_bytes(self) -> int:
        """The bytes that one sample takes once it is read."""
        return 4 * sum(int(np.prod(self.arrays[name].shape[1:])) for name in ("x", "y"))


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """The rows of another author's set that one step uses."""

    source: EncryptedSet
    rows: Rows


def gather_draws(draws: Sequence[Draw | None], max_bytes: int) -> Iterator[Tensors]:
    """Yields `x`, `y` and, unless it is identity, `layer` for each step; an empty mapping for a step without a draw.
    Reads as many steps at once as `max_bytes` allows, and each set in one go."""
    start = 0
    while start < len(draws):
        end = _find_end(draws, start, max_bytes)
        steps = _gather_block(draws[start:end])
        last = steps.pop()
        yield from steps
        steps.clear()  # frees the block of the last step's view before the next one is read
        last = {name: tensor.clone() if name in _READ else tensor for name, tensor in last.items()}
        yield last
        start = end


def _find_end(draws: Sequence[Draw | None], start: int, max_bytes: int) -> int:
    """Returns the end of the block from `start`, which has at least one step."""
    total, end = 0, start
    while end < len(draws):
        draw = draws[end]
        total += 0 if draw is None else len(draw.rows) * draw.source.row_bytes
        if total > max_bytes and end > start:
            break
        end += 1
    return end


def _gather_block(draws: Sequence[Draw | None]) -> list[Tensors]:
    steps: list[Tensors] = [{}] * len(draws)
    by_set: dict[int, list[int]] = {}
    for step, draw in enumerate(draws):
        if draw is not None:
            by_set.setdefault(id(draw.source), []).append(step)
    for places in by_set.values():
        drawn = [draw for place in places if (draw := draws[place]) is not None]
        source, sizes = drawn[0].source, [len(draw.rows) for draw in drawn]
        x, y = source.read(np.concatenate([draw.rows for draw in drawn]))
        layer = {} if source.layer is None else {"layer": source.layer}
        for place, x_part, y_part in zip(places, torch.split(x, sizes), torch.split(y, sizes), strict=True):
            steps[place] = {"x": x_part, "y": y_part, **layer}
    return steps


def find_first(labels_N: Rows, per_class: int) -> Rows:
    """Returns the rows that are among the first `per_class` of their class, sorted."""
    by_class = np.argsort(labels_N, kind="stable")
    sizes = np.bincount(labels_N)
    rank = np.arange(len(labels_N)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(by_class[rank < per_class])
