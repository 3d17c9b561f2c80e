"""The placement of arrays in memory: the worst place for one to begin, and products that differ by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ml.payload import Array, Arrays

LINE = 64  # bytes: the alignment of memory that torch allocates, and that its kernels expect
PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"),
        *("convolution", "convolution_backward", "_cdist_forward", "_euclidean_dist"),
    )
)


def displace(arrays: Arrays, offset: int = 4) -> dict[str, Array]:
    """Returns the same arrays, each beginning so many bytes after a line."""
    displaced = {}
    for name, array in arrays.items():
        room = np.empty(array.nbytes + 2 * LINE, np.uint8)
        start = -room.ctypes.data % LINE + offset
        displaced[name] = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        displaced[name][...] = array
    return displaced


class ProductsWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's, as is the next
    """Records, while entered, the products with a factor whose memory does not begin on a line: numpy's rarely does,
    torch's always."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_seen = 0
        self.displaced: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if name in PRODUCTS:
            self.num_seen += 1
            factors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.numel()]
            if any(factor.untyped_storage().data_ptr() % LINE for factor in factors):
                self.displaced.append(name)
        return func(*args, **(kwargs or {}))
