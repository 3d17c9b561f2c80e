"""The number of samples that are processed at a time, in a forward pass or a sum."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

MOST = 2048
_BYTES = 24 << 20  # of float32: 2048 images of 3x32x32, or 41 of 3x224x224, of which a ResNet18 then needs half a GB


def get_chunk(shape: Sequence[int]) -> int:
    """Returns how many samples of this shape, [N, ...], make a chunk."""
    return max(1, min(MOST, _BYTES // max(1, 4 * prod(shape[1:]))))
