"""The keys that identify a source's samples, and the sides that a column of it sets.

A table's columns for this (`data.group`, `data.id`, `data.split`) are no features. The content of a row is its cells in
the columns that are features, in the order of their names, each as a float32 or as text; that of an image is its
encoded bytes; that of anything else the sample's own bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Samples
from ml.data.cells import Cells, is_empty, parse_numbers, to_text
from ml.data.part import Part, choose_columns
from ml.data.source import PARENT, DataSource
from ml.data.split import Side
from ml.data.table_input import TableInput
from ml.errors import DataError, suggest

_SIDES = {
    **{side.value: side for side in Side},
    **{"training": Side.TRAIN, "testing": Side.TEST, "valid": Side.VAL, "validation": Side.VAL},
}


@dataclass(frozen=True, slots=True)
class Keys:
    """The key of each sample, and the digest of its content."""

    keys: Sequence[bytes]
    contents: Sequence[bytes]


def set_aside(part: Part, source: DataSource) -> Part:
    """Returns the part without the columns that identify or split its samples among its features. Raises DataError."""
    named = source.aside
    cells = part.cells
    if cells is None or not named:
        return part
    for key, names in (("group", source.group or ()), ("id", (source.id,)), ("split", (source.split,))):
        for name in names:
            if name is not None and name not in part.features:
                raise DataError(f"data.{key}: {part.place} has no column {name!r}: {suggest(name, part.features)}")
    kept = tuple(name for name in part.features if name not in named)
    if not kept:
        raise DataError(f"{part.place}: expected a column besides the labels and {', '.join(named)}, got none")
    return replace(
        part,
        shape=(len(kept), 1, 1),
        read=lambda _: TableInput().encode(choose_columns(cells(), kept), part.locate),
        read_rows=None,
        features=kept,
        cells=lambda: choose_columns(cells(), kept),
        beside=lambda: choose_columns(cells(), named),
    )


def read_sides(part: Part, source: DataSource) -> NDArray[np.str_] | None:
    """Reads the side of each sample from the column `data.split`, None where none is set. Raises DataError."""
    if source.split is None:
        return None
    sides = []
    for i, cell in enumerate(_get_columns(part, (source.split,), "split")[0]):
        side = _SIDES.get(to_text(cell).lower())
        if side is None:
            raise DataError(
                f"{part.locate(i)}: column {source.split!r}: expected train, test or val, got {to_text(cell)!r}"
            )
        sides.append(side.value)
    return np.array(sides, "U5")


def read_keys(part: Part, source: DataSource, x_NCHW: Samples | None = None) -> Keys:
    """Returns the keys of a part's samples. `x_NCHW` are the samples, if they were read already. Raises DataError."""
    contents = read_contents(part, x_NCHW)
    named = read_groups(part, source)
    if named is None and source.id is not None:
        named = [b"id " + own for own in _read_named(part, (source.id,), "id")]
    return Keys(contents if named is None else named, contents)


def read_groups(part: Part, source: DataSource) -> list[bytes] | None:
    """Returns the group of each sample, None where there are no groups. Raises DataError."""
    if source.group is None:
        return None if part.groups is None else [b"group " + str(own).encode() for own in part.groups]
    if part.groups is not None:
        own: Sequence[bytes] = [str(name).encode() for name in part.groups]
    elif part.paths is not None and (part.beside is None or not set(source.group) <= part.beside().keys()):
        own = [name.encode() for name in _read_paths(part, part.paths, source)]
    elif part.beside is not None:
        own = _read_named(part, source.group, "group")
    else:
        raise DataError(
            f"data.group: data.format {source.format} has no columns and no files by which samples are one group's"
        )
    return [b"group " + name for name in own]


def read_contents(part: Part, x_NCHW: Samples | None = None) -> list[bytes]:
    """Returns the SHA-256 of each sample. Raises DataError."""
    if part.get_digests is not None:
        return part.get_digests()
    if part.cells is not None:
        return hash_rows(part.cells())
    return hash_samples(part.read(None) if x_NCHW is None else x_NCHW)


def hash_samples(x_NCHW: Samples) -> list[bytes]:
    """Returns SHA-256 of the bytes of each sample."""
    digests: list[bytes] = []
    for start in range(0, len(x_NCHW), 4096):
        rows: NDArray[np.uint8] = np.ascontiguousarray(x_NCHW[start : start + 4096]).view(np.uint8)
        digests += [sha256(row.data).digest() for row in rows.reshape(len(rows), -1)]
    return digests


def hash_rows(cells: Cells) -> list[bytes]:
    """Returns the SHA-256 of each row of these columns, independent of their order and of the file."""
    columns = [_encode_cells(cells[name]) for name in sorted(cells)]
    return [sha256(b"".join(row)).digest() for row in zip(*columns, strict=True)]


def _encode_cells(cells: Sequence[Any]) -> list[bytes]:
    """Encodes each cell as a number in float32, as empty, or as text, in different forms."""
    values_N, is_text = parse_numbers(cells)
    with np.errstate(over="ignore"):
        raw = (values_N + 0.0).astype("<f4").tobytes()
    encoded = [b"n" + raw[at : at + 4] for at in range(0, len(raw), 4)]
    for i in np.flatnonzero(np.isnan(values_N)).tolist():
        encoded[i] = b"-"
    for i in np.flatnonzero(is_text).tolist():
        text = to_text(cells[i]).encode("utf-8", "surrogatepass")
        encoded[i] = b"t" + struct.pack("<I", len(text)) + text
    return encoded


def _read_named(part: Part, names: Sequence[str], key: str) -> list[bytes]:
    """Returns the name of each row, joined of its cells in these columns. Raises DataError for a row with an empty cell
    there."""
    columns = _get_columns(part, names, key)
    for name, cells in zip(names, columns, strict=True):
        for i, cell in enumerate(cells):
            if is_empty(cell):
                raise DataError(
                    f"{part.locate(i)}: column {name!r}: expected a value, as data.{key} names it, got none"
                )
    return [b"".join(row) for row in zip(*map(_encode_cells, columns), strict=True)]


def _get_columns(part: Part, names: Sequence[str], key: str) -> list[Sequence[Any]]:
    if part.beside is None:
        raise DataError(f"data.{key}: {part.place} has no columns, got {', '.join(names)}")
    beside = part.beside()
    for name in names:
        if name not in beside:
            raise DataError(f"data.{key}: {part.place} has no column {name!r}: {suggest(name, beside)}")
    return [beside[name] for name in names]


def _read_paths(part: Part, paths: Sequence[str], source: DataSource) -> list[str]:
    """Returns the group of each file: the folder above it, or the part of its path that a pattern's groups match."""
    pattern = "/".join(source.group or ())
    if pattern == PARENT:
        return [path.split("/")[-2] if "/" in path else "" for path in paths]
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise DataError(f"data.group: expected {PARENT} or a regular expression, got {pattern!r}: {error}") from error
    if not re.compile(pattern).groups:
        raise DataError(f"data.group: expected a group in parentheses in the pattern, as (p\\d+), got {pattern!r}")
    names = []
    for i, path in enumerate(paths):
        found = search(path)
        if found is None:
            raise DataError(f"{part.locate(i)}: data.group: expected a path in which {pattern!r} is found, got {path}")
        names.append("\0".join(own or "" for own in found.groups()))
    return names
