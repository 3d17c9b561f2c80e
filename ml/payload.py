"""Named arrays and their one canonical encoding: blobs, aggregates and checkpoints alike (PROTOCOL §1).

The layout is that of safetensors, with a header that leaves no choice, so that equal arrays have equal bytes and a
digest names their content:

    u64 little-endian length of the header | header | the arrays' bytes

The header is JSON with sorted keys, no whitespace and no metadata, filled with spaces to a multiple of 8; the arrays
follow in the order of their names, little-endian and row-major, without a gap. Any safetensors reader can read it;
ours accepts nothing else, so `encode_arrays(decode_arrays(b, len(b))) == b` for every `b` it accepts.

Sizes in the bytes are checked before memory is allocated for them, and the arrays are checked against a schema that
comes from genesis. Everything a peer can get wrong is a `PayloadError`.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.errors import PayloadError, suggest

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Shape = tuple[int, ...]

# Kinds of payload, by their codes in contributions.
KINDS = {
    "prototypes": 1,
    "model": 2,
    "unit": 3,
    "auxiliary": 4,
    "g": 5,
    "h": 6,
    "encrypted_set": 7,
    "chunk_digests": 8,
    "statistics": 9,
    "masked": 10,
    "control": 11,
    "evaluation": 12,
    "lent": 13,
    "representation": 14,
}
_KIND_NAMES = {code: name for name, code in KINDS.items()}

CHUNK_BYTES = 1 << 20  # of an encoding, each with its own entry in the list of chunks' digests
BLOCK_ELEMENTS = 64 * 1024  # of an array that are checked together
MAX_HEADER_BYTES = 1 << 20
KNOWN_HEADER_BYTES = 16 * 1024  # of the longest header that is cached
MAX_DIMENSIONS = 8
_MAX_ARRAY_BYTES = 1 << 48  # far above any payload limit, far below numpy's overflow of sizes

_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "|u1"}  # safetensors' names
_CODES = {np.dtype(text): code for code, text in _DTYPES.items()}

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_ENTRY = re.compile(
    rb'"([A-Za-z0-9_./-]{1,128})":'
    rb'\{"data_offsets":\[([0-9]{1,16}),([0-9]{1,16})\],"dtype":"([A-Z0-9]{2,4})",'
    rb'"shape":\[((?:[0-9]{1,16}(?:,[0-9]{1,16}){0,7})?)\]\}([,}])'
)


def kind_code(name: str) -> int:
    """Returns the code of a payload kind. Raises PayloadError."""
    if name not in KINDS:
        raise PayloadError(f"unknown payload kind {name!r}: {suggest(name, KINDS)}")
    return KINDS[name]


def kind_name(code: int) -> str:
    """Returns the name of a payload kind. Raises PayloadError."""
    if code not in _KIND_NAMES:
        raise PayloadError(f"unknown payload kind {code}: expected one of {sorted(_KIND_NAMES)}")
    return _KIND_NAMES[code]


# ---- bytes


def encode_arrays(arrays: Arrays) -> bytes:
    """Encodes `arrays` to their canonical bytes, the same for any order, byte order or memory layout.

    Takes float16, float32, float64, int64 and uint8, and names of letters, digits and `_ . / -`. Raises PayloadError.
    """
    return b"".join(iter_encoded(arrays))


def iter_encoded(arrays: Arrays) -> Iterator[bytes | memoryview]:
    """Yields the pieces that `encode_arrays` joins: arrays that are little-endian and row-major are not copied."""
    ordered = {name: np.asarray(arrays[name]) for name in sorted(arrays)}
    layout = {name: (_get_code(name, array.dtype), array.shape) for name, array in ordered.items()}
    header = _encode_header(layout)
    yield len(header).to_bytes(8, "little") + header
    for name, array in ordered.items():
        flat = np.ascontiguousarray(array, dtype=_DTYPES[layout[name][0]]).reshape(-1)
        yield flat.view(np.uint8).data


def decode_arrays(data: bytes | bytearray | memoryview, max_bytes: int) -> dict[str, Array]:
    """Decodes the arrays in `data`, in name order: read-only, and views of `data` wherever its alignment allows.

    Reads at most `max_bytes`. Raises PayloadError, saying what it expected, for anything but the exact output of
    `encode_arrays`.
    """
    total = len(data)
    if total > max_bytes:
        raise PayloadError(f"encoding too long: expected at most {max_bytes} bytes, got {total}")
    if total < 8:
        raise PayloadError(f"encoding too short: expected at least 8 bytes, got {total}")
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > min(MAX_HEADER_BYTES, total - 8) or header_bytes % 8 or header_bytes == 0:
        raise PayloadError(
            f"header length: expected a multiple of 8 up to {min(MAX_HEADER_BYTES, total - 8)}, got {header_bytes}"
        )
    header = bytes(data[8 : 8 + header_bytes])
    start = 8 + header_bytes
    layout = (_read_known_layout if header_bytes <= KNOWN_HEADER_BYTES else _read_layout)(header)
    if layout.num_bytes != total - start:
        raise PayloadError(f"data section: expected {layout.num_bytes} bytes, got {total - start}")
    return {name: _view(data, start + begin, code, shape) for name, begin, code, shape in layout.entries}


def map_arrays(path: Path, max_bytes: int) -> dict[str, Array]:
    """Decodes the arrays in a file, as `decode_arrays` does, mapped and not held in this process's memory.

    The file must not change as long as one of them is in use. Raises PayloadError, and OSError.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:  # an empty file cannot be mapped
            return decode_arrays(b"", max_bytes)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return decode_arrays(memoryview(mapped), max_bytes)


def read_arrays(source: Path | bytes) -> dict[str, Array]:
    """Decodes the arrays in a whole encoding: bytes, or a file, which is then mapped as by `map_arrays`. Raises
    PayloadError, and OSError."""
    if isinstance(source, bytes):
        return decode_arrays(source, len(source))
    return map_arrays(source, source.stat().st_size)


# ---- the digests of an encoding's chunks


def count_chunks(num_bytes: int) -> int:
    """Returns the number of chunks of an encoding of this length. All but the last have CHUNK_BYTES."""
    return -(-num_bytes // CHUNK_BYTES)


def compute_chunk_digests(arrays: Arrays) -> Array:
    """Computes uint8[m, 32]: the SHA-256 of each chunk of the encoding of `arrays`. Raises PayloadError."""
    digests: list[bytes] = []
    chunk, room = hashlib.sha256(), CHUNK_BYTES
    for piece in iter_encoded(arrays):
        rest = memoryview(piece)
        while rest:
            part, rest = rest[:room], rest[room:]
            chunk.update(part)
            room -= len(part)
            if not room:
                digests.append(chunk.digest())
                chunk, room = hashlib.sha256(), CHUNK_BYTES
    if room < CHUNK_BYTES:
        digests.append(chunk.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def compute_encoded_bytes(layout: Mapping[str, tuple[str, Shape]]) -> int:
    """Computes the length of the encoding of arrays with these (dtype, shape), without making them. Raises
    PayloadError."""
    coded = ((name, _get_code(name, np.dtype(dtype)), shape) for name, (dtype, shape) in layout.items())
    return _compute_encoded_bytes(tuple(coded))


@lru_cache(maxsize=32)
def _compute_encoded_bytes(coded: tuple[tuple[str, str, Shape], ...]) -> int:
    """Computes the length of an encoding by name, dtype code and shape of its arrays."""
    header = _encode_header({name: (code, shape) for name, code, shape in coded})
    return 8 + len(header) + sum(_compute_nbytes(name, code, shape) for name, code, shape in coded)


def _encode_header(layout: Mapping[str, tuple[str, Shape]]) -> bytes:
    entries = []
    cursor = 0
    for name in sorted(layout):
        code, shape = layout[name]
        if not _NAME.fullmatch(name):
            raise PayloadError(f"array name {name!r}: expected 1 to 128 letters, digits or any of _ . / -")
        end = cursor + _compute_nbytes(name, code, shape)
        dimensions = ",".join(map(str, shape))
        entries.append(f'"{name}":{{"data_offsets":[{cursor},{end}],"dtype":"{code}","shape":[{dimensions}]}}')
        cursor = end
    text = ("{" + ",".join(entries) + "}").encode("ascii")
    header = text + b" " * (-len(text) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise PayloadError(f"header too long: expected at most {MAX_HEADER_BYTES} bytes, got {len(header)}")
    return header


class _Layout(NamedTuple):
    """The content of a header: name, first byte, dtype code and shape of each array, and the number of bytes of all."""

    entries: tuple[tuple[str, int, str, Shape], ...]
    num_bytes: int


def _read_layout(header: bytes) -> _Layout:
    """Reads a header. Raises PayloadError where it is not in its one canonical form."""
    entries: list[tuple[str, int, str, Shape]] = []
    cursor = 0
    for name, begin, end, code, shape in _parse_header(header):
        size = _compute_nbytes(name, code, shape)
        if begin != cursor or end != cursor + size:
            raise PayloadError(f"array {name!r}: expected bytes {cursor} to {cursor + size}, got {begin} to {end}")
        entries.append((name, begin, code, shape))
        cursor = end
    if _encode_header({name: (code, shape) for name, _, code, shape in entries}) != header:
        raise PayloadError("header is not in canonical form (order of names, numbers or padding)")
    return _Layout(tuple(entries), cursor)


_read_known_layout = lru_cache(maxsize=32)(_read_layout)  # members send the same few headers in all rounds


def _parse_header(header: bytes) -> list[tuple[str, int, int, str, Shape]]:
    """Returns the (name, begin, end, dtype code, shape) of each array. Uses a regular expression, since a JSON parser
    accepts far more than the one canonical form and can be made to recurse."""
    text = header.rstrip(b" ")
    if text == b"{}":
        return []
    if text[:1] != b"{":
        raise PayloadError("header: expected a JSON object")
    found = []
    at = 1
    while True:
        match = _ENTRY.match(text, at)
        if match is None:
            raise PayloadError(f"header: expected the entry of an array at byte {at}, got {text[at : at + 40]!r}")
        name, begin, end, code, dimensions, after = match.groups()
        shape = tuple(int(n) for n in dimensions.split(b",")) if dimensions else ()
        found.append((name.decode("ascii"), int(begin), int(end), code.decode("ascii"), shape))
        at = match.end()
        if after == b"}":
            break
    if at != len(text):
        raise PayloadError(f"header: expected its end at byte {at}, got {text[at : at + 40]!r}")
    return found


def _get_code(name: str, dtype: np.dtype[Any]) -> str:
    code = _CODES.get(dtype.newbyteorder("<"))
    if code is None:
        raise PayloadError(f"array {name!r}: expected one of {', '.join(map(str, _CODES))}, got {dtype}")
    return code


def _compute_nbytes(name: str, code: str, shape: Shape) -> int:
    if code not in _DTYPES:
        raise PayloadError(f"array {name!r}: expected a dtype of {', '.join(_DTYPES)}, got {code}")
    if len(shape) > MAX_DIMENSIONS:
        raise PayloadError(f"array {name!r}: expected at most {MAX_DIMENSIONS} dimensions, got {len(shape)}")
    itemsize = np.dtype(_DTYPES[code]).itemsize
    if math.prod(max(n, 1) for n in shape) * itemsize > _MAX_ARRAY_BYTES:  # also where a 0 hides a huge dimension
        raise PayloadError(f"array {name!r}: shape {list(shape)} is too large")
    return math.prod(shape) * itemsize


def _view(data: bytes | bytearray | memoryview, offset: int, code: str, shape: Shape) -> Array:
    dtype = np.dtype(_DTYPES[code])
    if 0 in shape:
        array: Array = np.empty(shape, dtype)
    else:
        array = np.frombuffer(data, dtype, count=math.prod(shape), offset=offset).reshape(shape)
        if not array.flags.aligned:
            array = array.copy()
    array.flags.writeable = False
    return array


# ---- schemas of arrays


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The rule for one array of a schema. A dimension is a number, or a name that the schema's `bounds` limit. `range`
    has the least and the greatest value of its numbers; without one integers may have any value of their type, and
    floats any that the run allows."""

    dtype: str
    shape: tuple[int | str, ...]
    range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ArraySchema:
    """The arrays a payload must have, all of them and no others.

    `bounds` has the least and the greatest value of each symbolic dimension; the same symbol stands for the same number
    throughout. `max_bytes` is the length of the longest encoding that fits, computed from the rest when left at 0.
    """

    arrays: Mapping[str, ArraySpec]
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    max_bytes: int = 0

    def __post_init__(self) -> None:
        if self.max_bytes == 0:
            largest = {
                name: (spec.dtype, tuple(n if isinstance(n, int) else self.bounds[n][1] for n in spec.shape))
                for name, spec in self.arrays.items()
            }
            object.__setattr__(self, "max_bytes", compute_encoded_bytes(largest))


def make_empty_arrays(schema: ArraySchema) -> dict[str, Array]:
    """Makes the payload of a member with nothing of this kind: every symbolic dimension is 0."""
    return {
        name: np.empty([n if isinstance(n, int) else 0 for n in spec.shape], spec.dtype)
        for name, spec in schema.arrays.items()
    }


def to_rows(items: Sequence[bytes]) -> Array:
    """Returns uint8[n, 32] of n times 32 bytes."""
    return np.frombuffer(b"".join(items), np.uint8).reshape(len(items), 32)


def from_rows(rows: Array) -> list[bytes]:
    """Returns the bytes of each row."""
    return [row.tobytes() for row in rows]


def validate_arrays(arrays: Arrays, schema: ArraySchema, *, max_abs: float = math.inf) -> None:
    """Raises PayloadError unless `arrays` fit `schema` and all their numbers are finite and within their array's range;
    floats without a range must be at most `max_abs` from 0. Makes the cheapest checks first."""
    for name in schema.arrays:
        if name not in arrays:
            raise PayloadError(f"array {name!r} is missing: expected {', '.join(sorted(schema.arrays))}")
    for name in arrays:
        if name not in schema.arrays:
            raise PayloadError(f"array {name!r} is not expected: {suggest(name, schema.arrays)}")
    sizes: dict[str, int] = {}
    for name, spec in schema.arrays.items():
        array = arrays[name]
        if array.dtype != np.dtype(spec.dtype):
            raise PayloadError(f"array {name!r}: expected dtype {spec.dtype}, got {array.dtype}")
        if len(array.shape) != len(spec.shape):
            raise PayloadError(f"array {name!r}: expected shape {_show(spec.shape)}, got {_show(array.shape)}")
        for expected, got in zip(spec.shape, array.shape, strict=True):
            if isinstance(expected, str):
                low, high = schema.bounds[expected]
                if not low <= got <= high:
                    raise PayloadError(f"array {name!r}: expected {low} <= {expected} <= {high}, got {got}")
                expected = sizes.setdefault(expected, got)
            if got != expected:
                raise PayloadError(
                    f"array {name!r}: expected shape {_show(spec.shape)}"
                    f"{''.join(f', {symbol} = {size}' for symbol, size in sizes.items())}, got {_show(array.shape)}"
                )
    for name, spec in schema.arrays.items():
        _check_numbers(name, arrays[name], spec.range, max_abs)
    layout = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
    if (size := compute_encoded_bytes(layout)) > schema.max_bytes:
        raise PayloadError(f"payload too long: expected at most {schema.max_bytes} bytes, got {size}")


def _check_numbers(name: str, array: Array, range_: tuple[float, float] | None, max_abs: float) -> None:
    is_float = array.dtype.kind == "f"
    if range_ is None and not is_float:
        return
    low, high = (-max_abs, max_abs) if range_ is None else range_
    for block in iter_blocks(array):
        least, most = block.min().item(), block.max().item()  # both are NaN if any float is
        if is_float and not (math.isfinite(least) and math.isfinite(most)):
            raise PayloadError(f"array {name!r}: expected finite numbers only")
        if not (low <= least and most <= high):
            expected = f"{_show_number(low)} to {_show_number(high)}"
            got = _show_number(least if least < low else most)
            raise PayloadError(f"array {name!r}: expected numbers from {expected}, got {got}")


def _show_number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def iter_blocks(array: Array) -> Iterator[Array]:
    """Yields all numbers of an array of any shape and memory layout, at most BLOCK_ELEMENTS at once, so that checking a
    large one needs little memory."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        return (flat[start : start + BLOCK_ELEMENTS] for start in range(0, flat.size, BLOCK_ELEMENTS))
    return iter(np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], buffersize=BLOCK_ELEMENTS))


def _show(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
