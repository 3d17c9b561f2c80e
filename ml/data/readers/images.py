"""Image files, decoded one by one: the only place that knows Pillow.

The same rules decode all formats below:

    turned        as the EXIF tag says
    grey          1 bit and 8 bits: uint8 in one channel; 16 bits: float32, where 65,535 is 1, or the value of `white`
    colour        RGB in three channels, uint8: palettes are looked up, CMYK and other spaces converted without their
                  profiles, and of 16 bits the upper 8 are kept
    transparent   alpha is dropped, and the colour beneath shows
    pages         the first page or frame, or the one that `page` names
    refused       pixels of 32 bits and of floats, whose range is not known

The size in an image's header is checked before memory is taken for it.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from ml.data.base import Samples, Shape
from ml.data.memory import validate_fits
from ml.errors import DataError, suggest

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 1 << 26  # 8192 x 8192; a few bytes of PNG can claim more than any memory holds
DECODED_BYTES = 4  # bytes that Pillow takes for a pixel of colour
WHITE = 65_535  # of 16 bits
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
SUFFIXES = frozenset(
    (
        *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp"),
        *(".ppm", ".pgm", ".pbm", ".pnm"),
    )
)
_GREY = frozenset(("1", "L", "LA", "La"))
_GREY_16 = frozenset(("I;16", "I;16L", "I;16B", "I;16N"))
_COLOUR = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"))
_TURNED = range(5, 9)  # orientations that swap height and width
_ORIENTATION = 0x0112
_TAGS_OF_PNG = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")
_BROKEN = (
    *(OSError, SyntaxError, ValueError, TypeError, EOFError, IndexError, KeyError, OverflowError, MemoryError),
    *(struct.error, zlib.error),
)
_KEYS = ("page", "pixels", "white")

Encoded = bytes | Path
GetEncoded = Callable[[int], Encoded]


@dataclass(frozen=True, slots=True)
class ImageRules:
    """A site's rules for its image files: the `page` to read, from 1, None for the first; the value of 16 bits that is
    `white`; and whether resized images are rounded to 8 bits (`is_rounded`)."""

    page: int | None = None
    white: int = WHITE
    is_rounded: bool = False

    @classmethod
    def from_mapping(cls, images: object) -> ImageRules:
        """Reads `{page: 2, white: 4095, pixels: uint8}`, in which each key may be left out or null. Raises
        DataError."""
        if images is None:
            return cls()
        if not isinstance(images, Mapping):
            raise DataError(f"data.images: expected {{page: N, white: VALUE, pixels: uint8}}, got {images!r}")
        for key in images:
            if key not in _KEYS:
                raise DataError(f"data.images.{key}: unknown key: {suggest(str(key), _KEYS)}")
        page, pixels, white = (images.get(key) for key in _KEYS)
        for key, value, most in (("page", page, 1 << 16), ("white", white, WHITE)):
            if value is not None and not (type(value) is int and 1 <= value <= most):
                raise DataError(f"data.images.{key}: expected 1 to {most}, got {value!r}")
        if pixels not in (None, "float32", "uint8"):
            raise DataError(f"data.images.pixels: expected float32 or uint8, got {pixels!r}")
        return cls(page, WHITE if white is None else white, pixels == "uint8")


AS_THEY_ARE = ImageRules()


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The description of an image by its header: its shape after turning it upright, whether it is grey of 16 bits
    (`is_deep`), and how many pages or frames its file has."""

    shape: Shape
    is_deep: bool
    num_pages: int


def decode_image(
    encoded: Encoded, place: str, max_pixels: int = MAX_PIXELS, rules: ImageRules = AS_THEY_ARE
) -> Samples:
    """Decodes one image of at most `max_pixels` to uint8 or float32 [C, H, W], C = 1 or 3. Raises DataError naming
    `place`."""
    from PIL import ImageOps

    with _opened(encoded, place, max_pixels, rules) as image:
        image.load()  # loading turns a TIFF already
        ImageOps.exif_transpose(image, in_place=True)
        return _to_array(image, place, rules)


def read_header(encoded: Encoded, place: str, rules: ImageRules = AS_THEY_ARE) -> ImageHeader:
    """Reads the header of an image, without decoding its pixels. Raises DataError naming `place`."""
    with _opened(encoded, place, MAX_PIXELS, rules) as image:
        is_deep = _is_deep(image)
        if not is_deep and image.mode not in _GREY | _COLOUR:
            raise _refuse_mode(image, place)
        height, width = image.height, image.width
        if height != width and _read_orientation(image, encoded) in _TURNED:
            height, width = width, height
        channels = 1 if is_deep or image.mode in _GREY else 3
        return ImageHeader((channels, height, width), is_deep, _count_pages(image))


def describe_decoder() -> str:
    """Returns the versions of the decoding libraries: another version may decode the same file to other pixels."""
    from PIL import features

    names = ("jpg", "libjpeg_turbo", "zlib", "webp", "libtiff")
    return f"Pillow {features.version('pil')} {' '.join(f'{name} {features.version(name)}' for name in names)}"


@contextmanager
def _opened(encoded: Encoded, place: str, max_pixels: int, rules: ImageRules) -> Iterator[Image]:
    """Opens the page of an image file that the rules name, if it is small enough to be decoded. Raises DataError
    otherwise, and for a broken image within the context."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images, for which our limit is lower, and odd metadata
            # Given a path, Pillow would map an uncompressed TIFF, and turning the image would change its pixels.
            with _open(encoded) as file, Image.open(file, formats=FORMATS) as image:
                if rules.page is not None:
                    num_pages = getattr(image, "n_frames", 1)
                    if num_pages < rules.page:
                        raise DataError(f"{place}: expected a page {rules.page} (data.images.page), got {num_pages}")
                    image.seek(rules.page - 1)
                _validate_size(image, place, max_pixels)
                yield image
    except FileNotFoundError as error:
        raise DataError(f"{place}: no such file") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{place}: expected at most {max_pixels} pixels: {error}") from error
    except _BROKEN as error:
        raise DataError(f"{place}: not a readable image: {error}") from error


def hash_encoded(encoded: Encoded, place: str) -> bytes:
    """Returns the SHA-256 of an encoded image. Raises DataError."""
    if isinstance(encoded, bytes):
        return sha256(encoded).digest()
    try:
        with encoded.open("rb") as file:
            return file_digest(file, "sha256").digest()
    except OSError as error:
        raise DataError(f"{place}: cannot be read ({error.strerror or error})") from error


def _open(encoded: Encoded) -> IO[bytes]:
    return io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded.open("rb")


def _validate_size(image: Image, place: str, max_pixels: int) -> None:
    num_pixels = image.width * image.height
    if num_pixels > max_pixels:
        raise DataError(f"{place}: expected at most {max_pixels} pixels, got {image.width}x{image.height}")
    validate_fits(DECODED_BYTES * num_pixels, place)


def _is_deep(image: Image) -> bool:
    return image.mode in _GREY_16 or (image.mode == "I" and image.format == "PPM")  # Pillow converts it to 16 bits


def _count_pages(image: Image) -> int:
    """Counts the pages that a user can ask for, without the preview that a camera adds to a JPEG."""
    return 1 if image.format == "MPO" else getattr(image, "n_frames", 1)


def _read_orientation(image: Image, encoded: Encoded) -> int | None:
    """Returns the EXIF tag, None where the size is that of the upright image already. In a PNG the tag may follow the
    pixels, which are then decoded to reach it."""
    if image.format == "TIFF":
        return None
    if image.format == "PNG":
        whole = encoded if isinstance(encoded, bytes) else encoded.read_bytes()
        if not any(word in whole for word in _TAGS_OF_PNG):
            return None
    return image.getexif().get(_ORIENTATION)


def _to_array(image: Image, place: str, rules: ImageRules) -> Samples:
    if _is_deep(image):
        deep = np.asarray(image)
        if rules.white != WHITE and int(deep.max()) > rules.white:
            raise DataError(f"{place}: expected at most {rules.white} (data.images.white), got {int(deep.max())}")
        return deep.astype(np.float32)[None] / np.float32(rules.white)
    if image.mode in _GREY:
        return np.array(image if image.mode == "L" else image.convert("L"), np.uint8)[None]
    if image.mode in _COLOUR:
        colour = image if image.mode == "RGB" else image.convert("RGB")
        return np.ascontiguousarray(np.asarray(colour, np.uint8).transpose(2, 0, 1))
    raise _refuse_mode(image, place)


def _refuse_mode(image: Image, place: str) -> DataError:
    return DataError(f"{place}: expected 8- or 16-bit pixels, got Pillow's mode {image.mode}")
