"""Five ways to see the same images, for federations whose clients differ in features (ALGORITHMS §7.3).

They replace data sets that show the same classes in different ways (Digit-5's MNIST, SVHN, USPS, …), where these are
not available. All are deterministic, take pixels in 0..1 before any normalisation, and return pixels in 0..1 of the
same shape:

    identity    x
    inversion   1 - x
    noise       x + NOISE_STD e, clipped; e is normal, and the same for a sample at any client
    rotation    by ROTATION_DEG counter-clockwise about the centre, bilinear, black where nothing was
    blur        a binomial kernel, 3 x 3 up to 27 pixels and wider above, the border repeated

Shapes: x_NCHW float32, indices_N int64 (a sample's place in its data set).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Images
from ml.errors import DataError
from ml.seeding import numpy_rng

DOMAINS = ("identity", "inversion", "noise", "rotation", "blur")

NOISE_STD = 0.2
ROTATION_DEG = 25.0
_BLUR_PIXELS = 14  # of height or width, for each pixel of the kernel's radius
_CHUNK = 256  # samples rotated at a time, to bound the memory for the four corners of each pixel


def apply_domain(domain: str, x: Images, indices: NDArray[np.int64], *, seed: int, split: str) -> Images:
    """Returns the samples `indices` of a `split` ("train" or "test"), whose pixels are `x`, changed as in `domain`.

    The noise of a sample follows from seed, split and index alone. Raises DataError for an unknown domain, for samples
    that are no images, and for pixels outside 0..1.
    """
    if domain not in DOMAINS:
        raise DataError(f"domain: expected one of {', '.join(DOMAINS)}, got {domain!r}")
    validate_shape(x.shape[1:])
    if x.size and not 0 <= float(x.min()) <= float(x.max()) <= 1:
        raise DataError(f"domains: expected pixels in 0..1, got {float(x.min()):g} to {float(x.max()):g}")
    match domain:
        case "inversion":
            inverted: Images = np.float32(1) - x
            return inverted
        case "noise":
            return _add_noise(x, indices, seed, split)
        case "rotation":
            return np.concatenate([_rotate(x[i : i + _CHUNK]) for i in range(0, max(len(x), 1), _CHUNK)])
        case "blur":
            return _blur(_blur(x, 2), 3)
        case _:
            return x


def validate_shape(shape: Sequence[int]) -> None:
    """Raises DataError unless samples of [C, H, W] are images, which can be turned and blurred."""
    if len(shape) != 3 or min(shape[1:]) < 3:
        raise DataError(f"domains: expected images of at least 3 x 3 pixels, got samples of {list(shape)}")


def _add_noise(x_NCHW: Images, indices_N: NDArray[np.int64], seed: int, split: str) -> Images:
    noisy: Images = np.empty_like(x_NCHW)
    for row, index in enumerate(indices_N.tolist()):
        noise_CHW = numpy_rng("noise", seed, split, index).standard_normal(x_NCHW.shape[1:], np.float32)
        noisy[row] = np.clip(x_NCHW[row] + np.float32(NOISE_STD) * noise_CHW, 0, 1)
    return noisy


def _rotate(x_NCHW: Images) -> Images:
    height, width = x_NCHW.shape[2:]
    sine, cosine = math.sin(math.radians(ROTATION_DEG)), math.cos(math.radians(ROTATION_DEG))
    dy_HW, dx_HW = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    # The pixel for (dy, dx) comes from that place turned back; rows count downwards. The border of zeros is 1 wide.
    from_y = cosine * dy_HW + sine * dx_HW + (height - 1) / 2 + 1
    from_x = cosine * dx_HW - sine * dy_HW + (width - 1) / 2 + 1
    padded = np.pad(x_NCHW, ((0, 0), (0, 0), (1, 1), (1, 1)))
    from_y, from_x = np.clip(from_y, 0, height + 1), np.clip(from_x, 0, width + 1)
    top, left = np.minimum(from_y.astype(np.int64), height), np.minimum(from_x.astype(np.int64), width)
    down, right = (from_y - top).astype(np.float32), (from_x - left).astype(np.float32)
    above = padded[:, :, top, left] * (1 - right) + padded[:, :, top, left + 1] * right
    below = padded[:, :, top + 1, left] * (1 - right) + padded[:, :, top + 1, left + 1] * right
    rotated: Images = np.clip(above * (1 - down) + below * down, 0, 1)
    return rotated


def _blur(x_NCHW: Images, axis: int) -> Images:
    """Blurs images along one axis, weighted by the binomial coefficients of twice the radius."""
    size = x_NCHW.shape[axis]
    radius = max(1, size // _BLUR_PIXELS)
    padded = np.pad(x_NCHW, [(radius, radius) if a == axis else (0, 0) for a in range(4)], mode="edge")
    blurred = np.zeros_like(x_NCHW)
    for k in range(2 * radius + 1):
        weight = np.float32(math.comb(2 * radius, k) / 4**radius)
        blurred += weight * padded[(slice(None),) * axis + (slice(k, k + size),)]
    clipped: Images = np.clip(blurred, 0, 1)  # the weights sum to 1, rounded products may not
    return clipped
