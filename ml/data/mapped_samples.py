"""Samples that training reads from a file as it needs them, in the form of a tensor.

An operation that reads some rows (`index_select`, an index, the mean over samples) returns a tensor of these, and a
slice or a split reads nothing. Any other operation reads all rows that it is called with. So a method that reads its
samples in batches or chunks needs memory for one of these, however large the file is; other methods work too, and need
memory for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ml.data.base import Images
from ml.data.chunks import get_chunk
from ml.data.fitted import FittedImages

_aten = torch.ops.aten


class MappedSamples(Tensor):
    """Samples that tensors are made of on demand, float32 [N, C, H, W] on a device: `make` turns `images` into tensors
    there when they are read."""

    _fitted: FittedImages
    _make: Callable[[Images], Tensor]

    @staticmethod
    def __new__(cls, images: FittedImages, make: Callable[[Images], Tensor], device: torch.device) -> MappedSamples:
        wrapped = Tensor._make_wrapper_subclass(cls, images.shape, dtype=torch.float32, device=device)
        wrapped._fitted, wrapped._make = images, make
        return wrapped

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # as torch calls it
        return f"MappedSamples({list(self.shape)})"

    def pick(self, rows: Any) -> MappedSamples:
        """Returns the samples at `rows`, or of a slice, without reading them."""
        return MappedSamples(self._fitted[rows], self._make, self.device)

    def read(self) -> Tensor:
        """Reads all samples."""
        return self._make(np.asarray(self._fitted))

    def chunks(self) -> Sequence[MappedSamples]:
        """Splits the samples into chunks, each of which is read at once."""
        size = get_chunk(self.shape)
        return [self.pick(slice(start, start + size)) for start in range(0, len(self), size)]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stubs have a function that is no method there
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[Any, Any] | None = None
    ) -> Any:
        own = args[0] if args and isinstance(args[0], MappedSamples) else None
        answer = None if own is None or kwargs else _answer(own, func, args[1:])
        if answer is not None:
            return answer
        args, kwargs = tree_map(_read_own, (args, kwargs or {}))
        return func(*args, **kwargs)


def _answer(own: MappedSamples, func: Any, args: Sequence[Any]) -> Any:
    """Returns the result of an operation over rows, None for any other operation."""
    if func in (_aten.detach.default, _aten.alias.default):
        return own.pick(slice(None))
    match func, args:
        case _aten.index_select.default, (0, rows):
            return own.pick(rows.cpu().numpy()).read()
        case _aten.index.Tensor, ([Tensor() as rows],) if rows.dim() == 1:
            return own.pick(rows.cpu().numpy()).read()
        case _aten.slice.Tensor, () | (0,):
            return own.pick(slice(None))
        case _aten.slice.Tensor, (0, *bounds):
            return own.pick(slice(*([*bounds, None] if len(bounds) == 1 else bounds)))
        case _aten.split.Tensor, (size,) | (size, 0):
            return [own.pick(slice(start, start + size)) for start in range(0, max(1, len(own)), size)]
        case _aten.split_with_sizes.default, (sizes,) | (sizes, 0):
            ends = list(accumulate(sizes))
            return [own.pick(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
        case _aten.mean.dim, ([0], *keepdim):
            return _average(own, any(keepdim))
    return None


def _average(own: MappedSamples, keepdim: bool) -> Tensor:
    """Returns the mean over samples. It is summed in float64, so that it hardly depends on how many are read at a
    time."""
    total = torch.zeros(own.shape[1:], dtype=torch.float64, device=own.device)
    for chunk in own.chunks():
        total += chunk.read().double().sum(0)
    mean = (total / len(own)).float()
    return mean[None] if keepdim else mean


def _read_own(value: Any) -> Any:
    return value.read() if isinstance(value, MappedSamples) else value
