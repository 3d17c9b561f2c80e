"""Outer tests that a change reaches: those of which the README's table says that they cover what has changed.

What a test imports, with all that this imports, is nearly everything; so the table names what each is about.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from circles.changes import UnknownRevision, list_changed
from circles.readme import OUTER, Rule, find_reason, read_rules

HUNT, PAGE = "tests/fuzz", "tests/web"  # what make fuzz and make test-web run, each as a whole
MARK = "mark.outer"
PRODUCT = ("chain", "ml", "node")


def show(root: Path, base: str) -> int:
    """Prints the outer files that the changes since `base` reach, all where git does not know it. Stderr says why."""
    files = list_outer(root)
    try:
        changed = list_changed(root, base)
    except UnknownRevision as error:
        print(f"outer: all of it, since nobody knows what has changed: {error}", file=sys.stderr)
        reached = dict.fromkeys(files, "")
    else:
        reached = find_outer(files, [*read_rules(root, OUTER), Rule((HUNT,), tuple(list_readers(root)))], changed)
        print(f"outer: {len(reached)} of {len(files)} are reached by what has changed since {base}", file=sys.stderr)
        for file, reason in reached.items():
            print(f"  {file} ({reason})", file=sys.stderr)
    print(*reached, sep="\n")
    return 0


def list_outer(root: Path) -> list[str]:
    """Lists the test files with an outer test, the hunt, and the page's tests."""
    files = [path for path in (root / "tests").rglob("test_*.py") if _has_mark(path.read_text())]
    return [HUNT, PAGE, *sorted(str(path.relative_to(root)) for path in files)]


def _has_mark(text: str) -> bool:
    return MARK in text and any(
        isinstance(node, ast.Attribute) and ast.unparse(node).endswith(MARK) for node in ast.walk(ast.parse(text))
    )


def find_outer(files: Sequence[str], rules: Sequence[Rule], changed: Collection[str]) -> dict[str, str]:
    """Finds which of the files have changed themselves or are reached by a rule, each with what reaches it."""
    reasons = {file: file if file in changed else find_reason(file, rules, changed) for file in files}
    return {file: reason for file, reason in reasons.items() if reason is not None}


def list_readers(root: Path) -> list[str]:
    """Lists the modules of the product that the targets of fuzzing, and what these stand on in their folder, import
    themselves."""
    found: set[str] = set()
    waiting, seen = ["fuzz.targets"], set[str]()
    while waiting:
        module = waiting.pop()
        file = root / "tests" / f"{module.replace('.', '/')}.py"
        if module in seen or not file.exists():
            continue
        seen.add(module)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                waiting += [name for name in names if name.startswith("fuzz.")]
                found.update(name for name in names if name.startswith(PRODUCT))
    places = [root / name.replace(".", "/") for name in sorted(found)]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()]
    return [str(file.relative_to(root)) for file in files]
