"""Input fitting: turns samples of a file into a model's input, with values in 0..1, grey or colour, of its size.

Torch is imported only where an image is fitted to another size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Images, Samples, Shape
from ml.data.memory import validate_fits
from ml.errors import DataError

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601: the weights of red, green and blue in grey
_CHUNK_BYTES = 4 << 20  # of float32 at a time: keeps the memory of a conversion small, and in cache


def fit(x_NCHW: Samples, shape: Shape) -> Images:
    """Returns float32 samples of `shape`; uint8 becomes 0..1. Returns the same array when there is nothing to do.

    Grey becomes three equal channels, colour its luma. Sizes change by bilinear interpolation; where an image shrinks,
    it averages over the pixels that fall together. Raises DataError when the channels differ otherwise, or an image is
    empty.
    """
    if x_NCHW.dtype == np.float32 and x_NCHW.shape[1:] == shape:
        return x_NCHW.astype(np.float32, copy=False)
    validate_fit(_get_shape(x_NCHW), shape)
    validate_fits(4 * len(x_NCHW) * math.prod(shape), f"{len(x_NCHW)} samples made {list(shape)}")
    fitted = np.empty((len(x_NCHW), *shape), np.float32)
    size = max(int(np.prod(x_NCHW.shape[1:])), int(np.prod(shape)))
    step = max(1, _CHUNK_BYTES // (4 * size))
    for start in range(0, len(x_NCHW), step):
        fitted[start : start + step] = _fit(x_NCHW[start : start + step], shape)
    return fitted


def reduce(x_NCHW: Samples, max_bytes: int) -> Samples:
    """Returns the same images at a whole fraction of their size, each of at most `max_bytes`: the mean of the pixels
    that fall together, without a last row or column that is incomplete. Returns the same array where there is nothing
    to do."""
    sample_bytes = x_NCHW[0].nbytes
    if sample_bytes <= max_bytes:
        return x_NCHW
    factor = math.ceil(math.sqrt(sample_bytes / max_bytes))
    num, channels, height, width = x_NCHW.shape
    rows, columns = min(factor, height), min(factor, width)
    h, w = height // rows, width // columns
    blocks = x_NCHW[:, :, : h * rows, : w * columns].reshape(num, channels, h, rows, w, columns)
    means: Images = blocks.mean(axis=(3, 5), dtype=np.float32)
    return np.rint(means).astype(np.uint8) if x_NCHW.dtype == np.uint8 else means


def round_to_bytes(x_NCHW: Images) -> NDArray[np.uint8]:
    """Rounds values in 0..1 to the nearest of 256 steps, values outside to 0 or 255."""
    rounded: NDArray[np.uint8] = np.rint(np.clip(x_NCHW, 0, 1) * np.float32(255)).astype(np.uint8)
    return rounded


def validate_fit(got: Shape, wanted: Shape) -> None:
    """Raises DataError unless samples of one shape can be fitted to another."""
    if got == wanted:
        return
    if got[1:] == (1, 1):
        raise DataError(f"input.shape: expected {list(got)}, the data's own features, got {list(wanted)}")
    if wanted[0] != got[0] and {wanted[0], got[0]} != {1, 3}:
        choice = f"{got[0]}" if got[0] not in (1, 3) else "1 or 3"
        raise DataError(f"input.shape: the data's images come in {choice} channels, got {wanted[0]}")


def validate_finite(x_NCHW: Samples, locate: Callable[[int], str], *, takes_empty: bool = False) -> None:
    """Raises DataError, naming the sample as `locate` does, unless all numbers are finite, or not-a-number where that
    stands for an empty cell."""
    if x_NCHW.dtype != np.float32:
        return
    for start in range(0, len(x_NCHW), 4096):
        is_finite = np.isfinite(x_NCHW[start : start + 4096])
        if takes_empty:
            is_finite |= np.isnan(x_NCHW[start : start + 4096])
        if not is_finite.all():
            i, channel, row, column = (int(n) for n in np.argwhere(~is_finite)[0])
            is_feature = x_NCHW.shape[2:] == (1, 1)
            place = f"feature {channel}" if is_feature else f"channel {channel}, row {row}, column {column}"
            value = x_NCHW[start + i, channel, row, column]
            raise DataError(f"{locate(start + i)}: expected finite numbers, got {value} in {place}")


def _fit(x_NCHW: Samples, shape: Shape) -> Images:
    is_bytes = x_NCHW.dtype == np.uint8
    x: Images = np.divide(x_NCHW, np.float32(255), dtype=np.float32) if is_bytes else x_NCHW.astype(np.float32)
    if shape[0] == 1 and x.shape[1] == 3:
        red, green, blue = (np.float32(weight) for weight in LUMA)
        x = red * x[:, 0:1] + green * x[:, 1:2] + blue * x[:, 2:3]
    x = _resize(x, shape[1:])
    return np.repeat(x, 3, axis=1) if shape[0] == 3 and x.shape[1] == 1 else x


def _resize(x_NCHW: Images, size: tuple[int, int]) -> Images:
    if x_NCHW.shape[2:] == size or not len(x_NCHW):
        return x_NCHW.reshape(*x_NCHW.shape[:2], *size)
    import torch  # only resizing needs it
    import torch.nn.functional as F

    shrinks = x_NCHW.shape[2] > size[0] or x_NCHW.shape[3] > size[1]
    x = torch.from_numpy(np.ascontiguousarray(x_NCHW))
    resized = F.interpolate(x, size=size, mode="bilinear", align_corners=False, antialias=shrinks)
    if float(x.min()) >= 0 and float(x.max()) <= 1:
        resized = resized.clamp_(0, 1)  # rounding may go a little beyond
    return resized.numpy()


def _get_shape(x_NCHW: Samples) -> Shape:
    channels, height, width = x_NCHW.shape[1:]
    return channels, height, width
