"""numpy's own archives: `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`, and if need be `classes`, the names.
`y` has a class for each sample, or by the run's task [N, T], several labels of 0 and 1 or several numbers.
`data.path` is the file, or a directory in which it is the only one of its kind.

Object arrays, which are pickles, are refused. The size in a member's header is checked before memory is taken for the
member, and the header's own length before that: a kilobyte of an archive can unpack to a megabyte of either.
"""

from __future__ import annotations

import io
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ml.data.array_layout import get_sample_shape, to_labels, to_samples
from ml.data.base import Outputs, Samples, Shape
from ml.data.memory import show_mib, validate_fits
from ml.data.outputs import validate_outputs
from ml.data.part import Part, Parts
from ml.data.source import ALL, DataSource
from ml.errors import DataError, suggest
from ml.tasks import CLASSIFICATION

MAX_HEADER_BYTES = 10_000  # numpy refuses a longer header, but unpacks all of it first
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, SyntaxError),
    *(ValueError, EOFError, RuntimeError, LookupError, TypeError, ArithmeticError),
)


@dataclass(frozen=True, slots=True)
class NpzFile:
    """An archive whose members are read one by one, each of at most `max_bytes` or the free memory. Raises DataError,
    naming file and member."""

    path: Path
    names: tuple[str, ...]
    max_bytes: int | None = None

    @classmethod
    def open(cls, path: Path, max_bytes: int | None = None) -> NpzFile:
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except IsADirectoryError as error:
            raise DataError(f"{path}: expected an .npz file, got a directory") from error
        except _BROKEN as error:
            raise DataError(f"{path}: expected an .npz archive: {error}") from error
        return cls(path, tuple(name.removesuffix(".npy") for name in names), max_bytes)

    def get_place(self, name: str) -> str:
        return f"{self.path}: {name}"

    def get_shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape in the header, checked against the member's size."""
        with self._open(name) as member:
            return member.shape

    def read(self, name: str) -> NDArray[Any]:
        with self._open(name) as member:
            if self.max_bytes is not None and member.num_bytes > self.max_bytes:
                raise DataError(
                    f"{self.get_place(name)}: expected at most {show_mib(self.max_bytes)} unpacked, "
                    f"got {show_mib(member.num_bytes)}"
                )
            validate_fits(member.num_bytes, self.get_place(name))
            array: NDArray[Any] = npy.read_array(member.file, allow_pickle=False)
            return array

    @contextmanager
    def _open(self, name: str) -> Iterator[_Member]:
        """Opens a member at its beginning, and checks its header."""
        if name not in self.names:
            raise DataError(f"{self.path}: expected an array {name} (got {', '.join(self.names) or 'none'})")
        place = self.get_place(name)
        try:
            with zipfile.ZipFile(self.path) as archive:
                info = archive.getinfo(f"{name}.npy")
                with archive.open(info) as file:
                    shape, num_bytes = _read_header(file, info.file_size, place)
                with archive.open(info) as file:
                    yield _Member(shape, num_bytes, file)
        except KeyError as error:
            raise DataError(f"{place}: expected a member {name}.npy") from error
        except _BROKEN as error:
            raise DataError(f"{place}: broken: {error}") from error


class _Member(NamedTuple):
    shape: tuple[int, ...]
    num_bytes: int  # of the array
    file: IO[bytes]


def _read_header(file: IO[bytes], size: int, place: str) -> tuple[tuple[int, ...], int]:
    """Returns the shape of an array, and the number of its bytes."""
    version = npy.read_magic(file)
    length = file.read(2 if version == (1, 0) else 4)
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise DataError(f"{place}: expected a header of at most {MAX_HEADER_BYTES} bytes, got {header_bytes}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(io.BytesIO(length + file.read(header_bytes)))
    if dtype.hasobject:
        raise DataError(f"{place}: expected numbers or text, got {dtype}: pickles are never loaded")
    num_bytes = prod(shape) * dtype.itemsize
    expected = file.tell() + num_bytes
    if expected != size:
        raise DataError(f"{place}: expected {expected} bytes for {dtype} {list(shape)}, got {size}")
    return tuple(shape), num_bytes


def find_archive(path: Path) -> Path:
    """Returns the archive that `path` is or, as a directory, contains; `path` itself where there is none, or more than
    one."""
    found = [file for file in path.glob("*.npz") if not file.name.startswith(".")] if path.is_dir() else []
    return found[0] if len(found) == 1 else path


def open_parts(source: DataSource) -> Parts:
    """Opens the splits of an archive by the names of its arrays."""
    source.refuse_columns()
    file = NpzFile.open(find_archive(source.get_path()))
    keys = {ALL: ("x", "y")} if "x" in file.names and "y" in file.names else {}
    keys |= {name[2:]: (name, f"y_{name[2:]}") for name in file.names if name.startswith("x_")}
    if not keys:
        raise DataError(
            f"{file.path}: expected arrays x and y, or x_train, y_train, x_test and y_test "
            f"(got {', '.join(file.names) or 'none'})"
        )
    if source.task != CLASSIFICATION:
        return Parts(
            str(file.path), {split: partial(_open_outputs, file, *names, source) for split, names in keys.items()}
        )
    splits = {split: partial(_open_classes, file, x, y, source) for split, (x, y) in keys.items()}
    return Parts(str(file.path), splits, read_classes(file))


def _open_classes(file: NpzFile, x: str, y: str, source: DataSource) -> Part:
    part = open_part(file, x, y)
    return replace(part, groups=_read_groups(file, x, source, len(part.labels)))


def _read_groups(file: NpzFile, x: str, source: DataSource, num_samples: int) -> list[str] | None:
    """Reads the group of each sample from the member that `data.group` names or, for a split, from the member of that
    name with the split's ending. Raises DataError."""
    if source.group is None:
        return None
    name = "/".join(source.group)
    own = f"{name}{x[1:]}" if f"{name}{x[1:]}" in file.names else name
    if own not in file.names:
        raise DataError(f"data.group: {file.path} has no array {own!r}: {suggest(own, file.names)}")
    groups = file.read(own)
    if groups.dtype.kind not in "iuU" or groups.shape != (num_samples,):
        raise DataError(
            f"{file.get_place(own)}: expected a whole number or text for each of {num_samples} samples, "
            f"got {groups.dtype} {list(groups.shape)}"
        )
    return [str(group) for group in groups.tolist()]


def read_classes(file: NpzFile) -> tuple[str, ...] | None:
    """Returns the names in member `classes`, None where there is none."""
    if "classes" not in file.names:
        return None
    names = file.read("classes")
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(f"{file.get_place('classes')}: expected a list of names, got {names.dtype} {list(names.shape)}")
    return tuple(str(name) for name in names)


def read_outputs(file: NpzFile, y: str, num_samples: int, source: DataSource) -> tuple[Outputs, tuple[str, ...]]:
    """Returns the labels or targets [N, T] in member `y`, which may be [N] where there is one, and their names from
    member `classes`, or else their numbers. Raises DataError."""
    array, place = file.read(y), file.get_place(y)
    if array.dtype.kind not in "buif":
        raise DataError(f"{place}: expected numbers, got {array.dtype}")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or len(array) != num_samples or not array.shape[1]:
        raise DataError(f"{place}: expected shape [{num_samples}, T], got {list(array.shape)}")
    y_NT = array.astype(np.float64)
    validate_outputs(y_NT, source.task, lambda i, t: f"{place}[{i}, {t}]")
    names = read_classes(file) or tuple(map(str, range(y_NT.shape[1])))
    if len(names) != y_NT.shape[1]:
        raise DataError(f"{file.get_place('classes')}: expected {y_NT.shape[1]} names, got {len(names)}")
    return y_NT, names


def _open_outputs(file: NpzFile, x: str, y: str, source: DataSource) -> Part:
    shape, place = file.get_shape(x), file.get_place(x)

    def read(_: Shape | None) -> Samples:
        return to_samples(file.read(x), place)

    y_NT, names = read_outputs(file, y, shape[0] if shape else 0, source)
    sample = get_sample_shape(shape, place)
    groups = _read_groups(file, x, source, len(y_NT))
    return Part(place, y_NT, sample, read, lambda i: f"{file.path}: {x}[{i}], {y}[{i}]", outputs=names, groups=groups)


def open_part(file: NpzFile, x: str, y: str) -> Part:
    """Returns a part with the samples in member `x` and the labels in member `y`."""
    shape = file.get_shape(x)

    def read(_: Shape | None) -> Samples:
        return to_samples(file.read(x), file.get_place(x))

    labels = to_labels(file.read(y), shape[0] if shape else 0, file.get_place(y))
    place = file.get_place(x)
    return Part(place, labels, get_sample_shape(shape, place), read, lambda i: f"{file.path}: {x}[{i}], {y}[{i}]")
