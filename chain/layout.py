"""The ground of every byte layout: limits, the structs of integers, and a reader that checks lengths."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from chain.errors import ChainError, DecodeError

KEY_BYTES = 32
SIGNATURE_BYTES = 64

WEIGHT_LIMIT = 2**29  # a float32 times a smaller integer is exact in float64 (PROTOCOL §2)
MAX_HEIGHT = 2**63 - 1  # SQLite's integers are signed
MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999: every accepted time can be shown as a date
MAX_U8, MAX_U16, MAX_U32, MAX_U64 = 2**8 - 1, 2**16 - 1, 2**32 - 1, 2**64 - 1

U8, U16, U32, U64 = struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")

Error = type[ChainError]
T = TypeVar("T")


class Reader:
    """Reads fields of a byte string from the left. Raises DecodeError if the string is too short or too long."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, what: str, data: bytes, max_bytes: int) -> None:
        if len(data) > max_bytes:
            raise DecodeError(f"{what}: expected at most {max_bytes} bytes, got {len(data)}")
        self._what = what
        self._data = bytes(data)
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise DecodeError(f"{self._what}: expected at least {end} bytes, got {len(self._data)}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self.take(layout.size))[0]
        return value

    def end(self) -> None:
        if self._at != len(self._data):
            raise DecodeError(f"{self._what}: expected exactly {self._at} bytes, got {len(self._data)}")


def read_all(what: str, data: bytes, max_bytes: int, read: Callable[[Reader], T]) -> T:
    """Returns what `read` reads from a byte string, which it must read to the end. Raises DecodeError."""
    reader = Reader(what, data, max_bytes)
    value = read(reader)
    reader.end()
    return value


def check(error: Error, what: str, value: int, low: int, high: int) -> None:
    """Raises `error` unless the number is in its range."""
    if not low <= value <= high:
        raise error(f"{what}: expected {low} to {high}, got {value}")


def check_size(error: Error, what: str, value: bytes, size: int) -> None:
    """Raises `error` unless there are `size` bytes."""
    if len(value) != size:
        raise error(f"{what}: expected {size} bytes, got {len(value)}")
