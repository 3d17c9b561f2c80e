"""MNIST's own format, in which Fashion-MNIST and EMNIST are published too, plain or gzipped.

    offset 0   two zero bytes, the type (8: unsigned byte), the number of dimensions
    offset 4   each dimension, 4 bytes, big-endian
    then       the values, the last dimension fastest

`data.path` is the directory with the published names (`train-images-idx3-ubyte`, `t10k-labels-idx1-ubyte.gz`), or one
of several sets in it by what their names begin with (`DIR/emnist-letters`). EMNIST's images lie on their side, as
published. A file that is not gzipped is memory-mapped.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.array_layout import to_samples
from ml.data.base import Samples, Shape
from ml.data.memory import validate_fits
from ml.data.part import Part, Parts
from ml.data.source import DataSource
from ml.errors import DataError

UNSIGNED_BYTE = 0x08
_MAX_RATIO = 1100  # bytes that deflate can make of one, with room; a header that needs more is wrong
_BROKEN = (OSError, EOFError, zlib.error)
_SPLITS = {"train": ("train",), "test": ("t10k", "test")}


def open_parts(source: DataSource) -> Parts:
    """Opens the splits train and test, as far as their files exist."""
    source.refuse_columns()
    path, prefix = _split_prefix(source)
    splits = {
        split: partial(_open_part, images, _find(path, prefix, names, "labels", 1) or path / f"{names[0]}-labels")
        for split, names in _SPLITS.items()
        if (images := _find(path, prefix, names, "images", 3)) is not None
    }
    if not splits:
        raise DataError(f"{source.path}: expected files named like train-images-idx3-ubyte, plain or .gz")
    return Parts(str(source.path), splits)


def _split_prefix(source: DataSource) -> tuple[Path, str]:
    if source.path is not None and not source.path.exists() and source.path.parent.is_dir():
        return source.path.parent, f"{source.path.name}-"
    path = source.get_path()
    if not path.is_dir():
        raise DataError(f"{path}: expected the directory of the idx files, got a file")
    return path, ""


def _find(directory: Path, prefix: str, names: tuple[str, ...], what: str, num_dimensions: int) -> Path | None:
    """Returns the file of one split; None if there is none. Raises DataError when several could be meant."""
    endings = [f"{what}{dash}idx{num_dimensions}-ubyte{gz}" for dash in "-." for gz in ("", ".gz")]
    exact = [directory / f"{prefix}{name}-{ending}" for name in names for ending in endings]
    found = [path for path in exact if path.is_file()]
    if not found and not prefix:
        every = [path for name in names for ending in endings for path in directory.glob(f"*-{name}-{ending}")]
        found = sorted(path for path in every if path.is_file())
        if len({path.name.removesuffix(".gz") for path in found}) > 1:
            raise DataError(
                f"{directory}: holds several data sets ({', '.join(path.name for path in found)}): expected data.path "
                "to end in what the names of one begin with, such as emnist-letters"
            )
    return found[0] if found else None


def _open_part(images: Path, labels: Path) -> Part:
    if not labels.is_file():
        raise DataError(f"{labels}*: no such file (the labels of {images.name})")
    header = _Header.read(images, 3)
    numbers = _Header.read(labels, 1)
    count, height, width = header.shape
    if numbers.shape != (count,):
        raise DataError(
            f"{labels}: expected {count} labels, one for each image of {images.name}, got {numbers.shape[0]}"
        )

    def read(_: Shape | None) -> Samples:
        return to_samples(header.read_values(), str(images))

    def locate(i: int) -> str:
        return f"{labels}: label {i}, byte {numbers.offset + i}"

    return Part(str(images), numbers.read_values().astype(np.int64), (1, height, width), read, locate)


@dataclass(frozen=True, slots=True)
class _Header:
    """A file's dimensions, checked against its length where that is possible without reading it."""

    path: Path
    shape: tuple[int, ...]
    offset: int

    @classmethod
    def read(cls, path: Path, num_dimensions: int) -> _Header:
        offset = 4 + 4 * num_dimensions
        try:
            with cls._open(path) as file:
                data = file.read(offset)
        except _BROKEN as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        expected = bytes([0, 0, UNSIGNED_BYTE, num_dimensions])
        if data[:4] != expected:
            raise DataError(
                f"{path}: byte 0: expected the magic number {expected.hex(' ')} of {num_dimensions}-dimensional "
                f"unsigned bytes, got {data[:4].hex(' ') or 'nothing'}"
            )
        if len(data) < offset:
            raise DataError(f"{path}: expected {num_dimensions} dimensions up to byte {offset}, got {len(data)} bytes")
        header = cls(path, struct.unpack(f">{num_dimensions}I", data[4:]), offset)
        held = path.stat().st_size
        end = offset + prod(header.shape)
        if not header.is_gzipped and held != end:
            raise DataError(f"{path}: expected {end} bytes for {list(header.shape)}, got {held}")
        if header.is_gzipped and end > held * _MAX_RATIO:
            raise DataError(f"{path}: byte 4: {list(header.shape)} is more than {held} compressed bytes can hold")
        return header

    @property
    def is_gzipped(self) -> bool:
        return self.path.suffix == ".gz"

    def read_values(self) -> NDArray[np.uint8]:
        if not self.is_gzipped:
            if not prod(self.shape):
                return np.empty(self.shape, np.uint8)  # an empty array cannot be mapped
            return np.memmap(self.path, np.uint8, "r", self.offset, self.shape)
        end = self.offset + prod(self.shape)
        validate_fits(end, str(self.path))
        try:
            with self._open(self.path) as file:
                data = file.read(end)
                more = file.read(1)
        except _BROKEN as error:
            raise DataError(f"{self.path}: broken before byte {end} of its contents: {error}") from error
        if len(data) != end or more:
            got = "more" if more else str(len(data))
            raise DataError(f"{self.path}: expected {end} bytes uncompressed for {list(self.shape)}, got {got}")
        return np.frombuffer(data, np.uint8, offset=self.offset).reshape(self.shape)

    @staticmethod
    def _open(path: Path) -> Any:
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
