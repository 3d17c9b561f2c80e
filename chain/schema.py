"""Reads a mapping that a person wrote, field by field. Whatever is wrong becomes a GenesisError naming the place.

A bool is never a number here, and text never becomes one: what is hashed must not depend on a reader's leniency.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from chain.block import Digest
from chain.errors import GenesisError
from chain.layout import MAX_U64

MAX_NAME_CHARS = 64

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?(Z|[+-]\d\d:\d\d)")
_MAX_ERROR_CHARS = 300
_MAX_DEPTH = 8
_MAX_VALUES = 10_000
_REQUIRED: Any = object()


def quote(value: object) -> str:
    """Returns a value as a message shows it, at most 80 characters long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def describe(error: Exception) -> str:
    """Returns the message of an error as one short printable line, whatever bytes of a peer it contains."""
    text = str(error)
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= _MAX_ERROR_CHARS else shown[: _MAX_ERROR_CHARS - 3] + "..."


def check_range(what: str, value: int, low: int, high: int, *, path: str | None = None) -> None:
    if not low <= value <= high:
        expected = str(low) if low == high else f"{low} to {high}"
        prefix = "" if path is None else f"{what}: "
        raise GenesisError(path or what, f"{prefix}expected {expected}, got {quote(value)}")


def check_choice(path: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise GenesisError(path, f"expected one of {', '.join(choices)}, got {quote(value)}{suggest(value, choices)}")


def check_name(path: str, name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise GenesisError(path, f"expected 1 to {MAX_NAME_CHARS} printable characters, got {quote(name)}")


def check_unique(path: str, names: Sequence[str], key: str = "") -> None:
    if not names:
        raise GenesisError(path, "expected at least one, got none")
    seen: set[str] = set()
    for i, name in enumerate(names):
        place = f"{path}[{i}]" + (f".{key}" if key else "")
        check_name(place, name)
        if name in seen:
            raise GenesisError(place, f"expected each name once, got {quote(name)} again")
        seen.add(name)


def suggest(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f". Did you mean '{close[0]}'?" if close else ""


class Section:
    """One mapping of the file, read field by field. Any fault becomes a GenesisError with the dotted path."""

    def __init__(self, path: str, value: object, known: Sequence[str]) -> None:
        if not isinstance(value, Mapping):
            raise GenesisError(path, f"expected a mapping, got {quote(value)}")
        self._path = path
        self._value = value
        for key in value:
            if key not in known:
                raise GenesisError(self.path(str(key)), f"unknown key{suggest(str(key), known)}")

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        return key in self._value

    def value(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self._value.get(key, default)
        if value is _REQUIRED:
            raise GenesisError(self.path(key), "is missing")
        return value

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        value = self.value(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise GenesisError(self.path(key), f"expected a whole number, got {quote(value)}")
        return value

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise GenesisError(self.path(key), f"expected true or false, got {quote(value)}")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        value = self.value(key, default)
        if not isinstance(value, str):
            raise GenesisError(self.path(key), f"expected text, got {quote(value)} (quote it?)")
        return value

    def optional_integer(self, key: str) -> int | None:
        """Returns a whole number, None for null."""
        return None if self.value(key, None) is None else self.integer(key)

    def items(self, key: str, default: Any = _REQUIRED) -> list[Any]:
        value = self.value(key, default)
        if not isinstance(value, list | tuple):
            raise GenesisError(self.path(key), f"expected a list, got {quote(value)}")
        return list(value)

    def texts(self, key: str) -> tuple[str, ...]:
        for i, value in enumerate(self.items(key)):
            if not isinstance(value, str):
                raise GenesisError(f"{self.path(key)}[{i}]", f"expected text, got {quote(value)} (quote it?)")
        return tuple(self.items(key))

    def section(self, key: str, known: Sequence[str], default: Any = _REQUIRED) -> Section:
        return Section(self.path(key), self.value(key, default), known)

    def tree(self, key: str, default: Any = _REQUIRED) -> dict[str, Any]:
        value = self.value(key, default)
        if not isinstance(value, Mapping):
            raise GenesisError(self.path(key), f"expected a mapping, got {quote(value)}")
        copied: dict[str, Any] = copy_tree(self.path(key), value)
        return copied


def copy_tree(path: str, value: object) -> Any:
    """Returns a deep copy of plain JSON values. Raises GenesisError for values that JSON has no canonical form for."""
    left = _MAX_VALUES

    def copy(place: _Place, value: object, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > _MAX_DEPTH or left < 0:
            raise GenesisError(_join(place), f"expected at most {_MAX_DEPTH} levels and {_MAX_VALUES} values")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or not key.isprintable():
                    raise GenesisError(_join(place), f"expected printable text as key, got {quote(key)}")
            return {key: copy((place, key), item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [copy((place, i), item, depth + 1) for i, item in enumerate(value)]
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int) and abs(value) <= MAX_U64:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if isinstance(value, str) and (value.isprintable() or not value):
            return value
        raise GenesisError(_join(place), f"expected printable text or a finite number, got {quote(value)}")

    return copy((None, path), value, 1)


_Place = tuple[
    "_Place | None", str | int
]  # the place above and the key or the index in it; spelled out only for errors


def _join(place: _Place) -> str:
    above, name = place
    if above is None:
        return str(name)
    return _join(above) + (f"[{name}]" if isinstance(name, int) else f".{name}")


def read_number(path: str, value: object) -> float:
    """Returns a finite number as a float, so that 1 and 1.0 give the same bytes."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300:
        return float(value)
    raise GenesisError(path, f"expected a finite number, got {quote(value)}")


def read_time(path: str, value: object) -> int:
    """Returns milliseconds since 1970 from RFC 3339 text, or from the datetime that a YAML reader makes of it."""
    moment = value
    if isinstance(value, str) and _TIME.fullmatch(value):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            raise GenesisError(path, f"expected a date of the calendar, got {quote(value)}") from error
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise GenesisError(path, f"expected a time such as 2026-11-20T14:00:00Z, got {quote(str(value))}")
    since = moment - _EPOCH
    if since.microseconds % 1000:
        raise GenesisError(path, f"expected whole milliseconds, got {quote(str(value))}")
    return since // timedelta(milliseconds=1)


def read_digest(path: str, text: str) -> Digest:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise GenesisError(path, f"expected 64 lower-case hex digits, got {quote(text)}")
    return bytes.fromhex(text)


def format_time(time_ms: int) -> str:
    """Returns RFC 3339 text in UTC; it has milliseconds only if they are not 0."""
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{time_ms % 1000:03}Z" if time_ms % 1000 else "Z")
