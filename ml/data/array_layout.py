"""Arrays as people store them, made into samples: the meaning of each axis, and the numbers that stand for 0..1.

    [N, H, W]               grey images
    [N, H, W, C]            images, C = 1 or 3 the last axis (what libraries for images write)
    [N, C, H, W]            images, channels first (what libraries for training write); [N, 64, 64, 4] is refused, since
                            it is not this
    [N, F]                  F numbers a sample, no pixels: unchanged float32

Pixels may be uint8 (255 is 1.0), uint16 (65535 is), bool, other integers in 0..255, or floats, which stay unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Samples, Shape
from ml.data.labels import IS_REGRESSION
from ml.errors import DataError

_COLOURS = (1, 3)


def get_sample_shape(shape: Sequence[int], place: str) -> Shape:
    """Returns [C, H, W] of the samples in an array of this shape. Raises DataError."""
    match shape:
        case (_, features):
            return features, 1, 1
        case (_, height, width):
            return 1, height, width
        case (_, first, second, last) if last in _COLOURS and first not in _COLOURS:
            return last, first, second
        case (_, height, width, channels) if height == width and channels <= 4 < width:
            raise DataError(
                f"{place}: expected 1 or 3 channels as the last axis of images, or channels first, got {list(shape)}"
            )
        case (_, channels, height, width):
            return channels, height, width
    raise DataError(f"{place}: expected shape [N, H, W], [N, H, W, C], [N, C, H, W] or [N, F], got {list(shape)}")


def to_samples(array: NDArray[np.generic], place: str) -> Samples:
    """Returns the array as uint8 or float32 [N, C, H, W], without a copy where it is such an array already. Raises
    DataError."""
    shape = get_sample_shape(array.shape, place)
    if array.dtype.kind not in "buif":
        raise DataError(f"{place}: expected numbers, got {array.dtype}")
    if array.ndim == 4 and array.shape[1:] != shape:
        array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    array = array.reshape(len(array), *shape)
    if array.dtype == np.uint8 and shape[1:] != (1, 1):
        return array.view(np.uint8)
    with np.errstate(over="ignore"):  # a number that is too large becomes inf, and is reported later with its place
        return _convert(array, place, is_image=shape[1:] != (1, 1))


def to_labels(array: NDArray[np.generic], count: int, place: str) -> NDArray[np.int64] | NDArray[np.str_]:
    """Returns labels [N] or [N, 1] as [N], whole numbers or text, one for each of `count` samples. Raises DataError."""
    if array.ndim == 2 and array.shape[1] > 1:
        raise DataError(
            f"{place}: expected one label for each sample, got {array.shape[1]} (shape {list(array.shape)})"
        )
    if array.shape not in ((count,), (count, 1)):
        raise DataError(f"{place}: expected shape [{count}], a label for each sample, got {list(array.shape)}")
    if array.dtype.kind == "U":
        return array.reshape(count).astype(np.str_)
    if array.dtype.kind not in "bui":
        hint = IS_REGRESSION if array.dtype.kind == "f" else ""
        raise DataError(f"{place}: expected whole numbers or text, got {array.dtype}{hint}")
    if array.dtype == np.uint64 and count and int(array.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{place}: expected labels of at most 64 bits, got {int(array.max())}")
    return array.reshape(count).astype(np.int64)


def _convert(array: NDArray[np.generic], place: str, *, is_image: bool) -> Samples:
    if array.dtype.kind == "f" or not is_image:
        return array.astype(np.float32, copy=False)
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return array.astype(np.float32) / np.float32(65_535)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if low < 0 or high > 255:
        raise DataError(
            f"{place}: expected pixels from 0 to 255, or uint16 or float, got {array.dtype} {low} to {high}"
        )
    return array.astype(np.uint8)
