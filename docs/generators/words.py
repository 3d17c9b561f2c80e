"""The words of the reference that the code has not, and the shapes of its text: tables, code, defaults."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
DESCRIPTIONS = DOCS / "descriptions.yaml"


class Descriptions:
    """One line for each key. A key without one, and one without a key, are errors."""

    def __init__(self, sections: Mapping[str, Mapping[str, str]]) -> None:
        self._sections = sections
        self._used: set[tuple[str, str]] = set()

    def get(self, section: str, *keys: str) -> str:
        """That of the first of `keys` that has one."""
        for key in keys:
            if key in self._sections[section]:
                self._used.add((section, key))
                return self._sections[section][key]
        sys.exit(f"{DESCRIPTIONS.name}: {section}: expected a line for {keys[-1]}")

    def check_all_used(self) -> None:
        there = {(section, key) for section, keys in self._sections.items() for key in keys}
        if unused := sorted(there - self._used):
            sys.exit(f"{DESCRIPTIONS.name}: nothing has these keys: {unused}")


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def show_default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple | list):
        return code("[]") if not value else code(str(list(value)))
    if isinstance(value, float):
        return code(f"{value:g}")
    return code(str(value))


def escape(text: str) -> str:
    """Words of the code as Markdown that shows them as they are; what stands in backticks is code already."""
    parts = " ".join(text.split()).split("`")
    plain = [re.sub(r"([<>*_$\[\]])", r"\\\1", part) if i % 2 == 0 else part for i, part in enumerate(parts)]
    return "`".join(plain)
