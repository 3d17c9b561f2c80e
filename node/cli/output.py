"""The output of results: JSON unchanged, tables aligned and without borders, so that they also read well in a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from node.finite import to_finite
from node.log import escape_control

SHORT_CHARS = 8
KEY_CHARS = 4  # characters of a key, beside the name
RED, GREEN, YELLOW = 31, 32, 33


def can_ask() -> bool:
    """Says whether a person sees the output, and can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Prints a value in one line, with messages of admin.proto as objects and null for numbers that are not finite."""
    print(json.dumps(to_finite(_to_plain(value)), allow_nan=False), flush=True)


def _to_plain(value: Any) -> Any:
    """Returns the value with each message in it as `node.admin.json_view` shows it."""
    if hasattr(value, "DESCRIPTOR"):
        from node.admin.json_view import to_json

        return to_json(value)
    if isinstance(value, Mapping):
        return {key: _to_plain(below) for key, below in value.items()}
    return (
        [_to_plain(below) for below in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
    )


def show_id(text: str) -> str:
    return text[:SHORT_CHARS]


def show_name(name: str, member_id: str) -> str:
    """Returns a name with the first characters of its key, for output that a person decides by."""
    return f"{name} ({member_id[:KEY_CHARS]})" if member_id else name


def show_time(text: str) -> str:
    """Returns `2026-11-20 14:02:16` for an RFC 3339 time in UTC."""
    return text[:19].replace("T", " ")


def show_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def show_seconds(seconds: float) -> str:
    """Returns a duration with the digits that matter: `0.042 s`, `12.3 s`, `5 min`, `3 h`, `2 d`."""
    if seconds < 1:
        return f"{seconds:.3f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    for unit, length, limit in (("min", 60, 6000), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def show_number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def paint(text: str, color: int, stream: TextIO | None = None) -> str:
    """Returns `text` for stdout, or another stream, in one of the terminal's colours, unless NO_COLOR is set or the
    stream is no terminal."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{color}m{text}\x1b[0m"


def format_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns lines of aligned columns; one whose heading begins with `>` is aligned to the right. Without headings
    there is no head. Characters that do not show are escaped."""
    rights = [heading.startswith(">") for heading in headings]
    cells = [
        tuple(heading.removeprefix(">") for heading in headings),
        *(tuple(map(escape_control, row)) for row in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, rights, strict=True)
        ).rstrip()
        for row in cells
    ]
    return lines if any(headings) else lines[1:]


def format_facts(facts: Iterable[tuple[str, str]]) -> list[str]:
    """Returns names and values, one pair a line."""
    return format_table(("", ""), facts)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print("\n".join(format_table(headings, rows)))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    print("\n".join(format_facts(facts)))
