"""Image files, decoded one by one and stacked: the only place that knows Pillow.

Only the formats below are decoded. An image is measured by its header before memory is taken for it; one turned by its
EXIF tag is turned; transparency is dropped; 16-bit grey keeps its depth as float32, everything else is uint8.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from hashlib import file_digest, sha256
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ml.data.base import Samples, Shape
from ml.data.fit_input import fit, validate_fit
from ml.data.memory import validate_fits
from ml.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 1 << 26  # 8192 x 8192; a few bytes of PNG can claim more than any memory holds
DECODED_BYTES = 4  # that Pillow takes for a pixel of colour, before anything is made of it
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"))
_GREY = frozenset(("1", "L", "LA", "La"))
_GREY_16 = frozenset(("I;16", "I;16L", "I;16B", "I;16N"))
_COLOUR = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"))
_BROKEN = (
    *(OSError, SyntaxError, ValueError, TypeError, EOFError, IndexError, KeyError, OverflowError, MemoryError),
    *(struct.error, zlib.error),
)

Encoded = bytes | Path
GetEncoded = Callable[[int], Encoded]


def decode_image(encoded: Encoded, place: str, max_pixels: int = MAX_PIXELS) -> Samples:
    """One image of at most `max_pixels` as uint8 or float32 [C, H, W], C = 1 or 3. Raises DataError naming `place`."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, for which our limit is lower, and of odd metadata
            file = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
            with Image.open(file, formats=FORMATS) as image:
                _validate_size(image, place, max_pixels)
                ImageOps.exif_transpose(image, in_place=True)
                return _to_array(image, place)
    except FileNotFoundError as error:
        raise DataError(f"{place}: no such file") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{place}: expected at most {max_pixels} pixels: {error}") from error
    except _BROKEN as error:
        raise DataError(f"{place}: not a readable image: {error}") from error


def hash_encoded(encoded: Encoded, place: str) -> bytes:
    """SHA-256 of an image as it lies there. Raises DataError."""
    if isinstance(encoded, bytes):
        return sha256(encoded).digest()
    try:
        with encoded.open("rb") as file:
            return file_digest(file, "sha256").digest()
    except OSError as error:
        raise DataError(f"{place}: cannot be read ({error.strerror or error})") from error


def get_image_shape(encoded: Encoded, place: str) -> Shape:
    """[C, H, W] of an image, which is decoded for it. Raises DataError."""
    channels, height, width = decode_image(encoded, place).shape
    return channels, height, width


def stack_images(get_encoded: GetEncoded, count: int, shape: Shape | None, locate: Callable[[int], str]) -> Samples:
    """All images as [N, C, H, W]: uint8 as long as none has to change, float32 otherwise.

    Each becomes `shape`. Without one they must be of one size; where one is in colour all are. Raises DataError.
    """
    if not count:
        return np.empty((0, *(shape or (1, 1, 1))), np.uint8)
    stacked: Samples | None = None
    for i in range(count):
        image = decode_image(get_encoded(i), locate(i))[None]
        channels, height, width = image.shape[1:]
        if stacked is None:
            sample = shape or (channels, height, width)
            validate_fits(count * prod(sample), f"{count} images like {locate(i)}")
            stacked = np.empty((count, *sample), np.uint8)
            first = locate(i)
        if shape is None and stacked.shape[2:] != (height, width):
            raise DataError(
                f"{locate(i)}: {width}x{height} pixels, where {first} has {stacked.shape[3]}x{stacked.shape[2]}: "
                "expected images of one size, or a size to bring them to (--size)"
            )
        if shape is None and channels > stacked.shape[1]:
            validate_fits(channels * stacked.nbytes, f"{count} images in colour, as {locate(i)} is")
            stacked = np.concatenate([stacked] * channels, axis=1)
        if stacked.dtype == np.uint8 and not (image.dtype == np.uint8 and _is_like(image, stacked)):
            validate_fits(4 * stacked.nbytes, f"{count} images as numbers, as {locate(i)} asks for")
            stacked = stacked.astype(np.float32)
            stacked /= np.float32(255)
        if stacked.dtype == np.uint8:
            stacked[i] = image[0]  # grey is repeated
            continue
        wanted = (stacked.shape[1], stacked.shape[2], stacked.shape[3])
        try:
            validate_fit((channels, height, width), wanted)
        except DataError as error:
            raise DataError(f"{locate(i)}: {error}") from error
        stacked[i] = fit(image, wanted)[0]
    assert stacked is not None  # noqa: S101 - there was at least one
    return stacked


def _is_like(image: Samples, stacked: Samples) -> bool:
    """Whether bytes can be copied as they are: same size, same channels or grey into colour."""
    return image.shape[2:] == stacked.shape[2:] and image.shape[1] in (1, stacked.shape[1])


def _validate_size(image: Image, place: str, max_pixels: int) -> None:
    num_pixels = image.width * image.height
    if num_pixels > max_pixels:
        raise DataError(f"{place}: expected at most {max_pixels} pixels, got {image.width}x{image.height}")
    validate_fits(DECODED_BYTES * num_pixels, place)


def _to_array(image: Image, place: str) -> Samples:
    if image.mode in _GREY_16:
        return np.asarray(image).astype(np.float32)[None] / np.float32(65_535)
    if image.mode in _GREY:
        return np.array(image if image.mode == "L" else image.convert("L"), np.uint8)[None]
    if image.mode in _COLOUR:
        colour = image if image.mode == "RGB" else image.convert("RGB")
        return np.ascontiguousarray(np.asarray(colour, np.uint8).transpose(2, 0, 1))
    raise DataError(f"{place}: expected 8- or 16-bit pixels, got Pillow's mode {image.mode}")
