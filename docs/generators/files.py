"""The page of every file: each module with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from generators.words import ROOT, code, escape, make_table

NOTES = re.compile(  # for whoever reads the code beside the plans it was written from
    r",? (?:exactly )?as PROTOCOL §\d+ lays them out|"
    r"\s*\((?:§|PROTOCOL|FEDERATION|DESIGN|SECURITY|ALGORITHMS|INTERFACES)[^()]*\)"
)


def write_files() -> str:
    """Every module by its room, with the first sentence of its docstring."""
    parts = [
        "# Every file\n",
        "One line for each module: the first sentence of its docstring. The rooms, and which may import which, are on "
        "the page [Architecture](/design/architecture.md).\n",
    ]
    for folder in find_folders():
        own = [file for file in sorted(folder.glob("*.py")) if file.name != "__init__.py"]
        name = str(folder.relative_to(ROOT))
        parts.append(f"## {name}/\n")
        if text := get_first_sentence(folder / "__init__.py"):
            parts.append(f"{text}\n")
        if own:
            rows = [(code(file.name), get_first_sentence(file)) for file in own]
            parts.append(make_table(("file", "what it is"), rows))
    return "\n".join(parts)


def find_folders() -> Iterator[Path]:
    for package in ("chain", "ml", "node"):
        for init in sorted((ROOT / package).rglob("__init__.py")):
            if init.parent.name != "pb":
                yield init.parent


def get_first_sentence(file: Path) -> str:
    text = NOTES.sub("", " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split()))
    found = re.match(r"(.+?(?<!\bEq)(?<!\bEqs)\.)(?: [A-Z`(*]|$)", text)
    return escape(found[1] if found else text)
