"""Tables of `tests/README.md` that say which files reach which tests, for what imports do not say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

REACHED = "test file"  # the first columns of the two tables
OUTER = "outer file"


@dataclass(frozen=True, slots=True)
class Rule:
    """A row: a change of a file that one of `paths` matches reaches what one of `tests` matches. A star matches slashes
    too."""

    tests: tuple[str, ...]
    paths: tuple[str, ...]


def read_rules(root: Path, first_column: str) -> list[Rule]:
    """Reads the table with this first column. Raises ValueError where there is none."""
    return parse_rules((root / "tests/README.md").read_text(), first_column)


def parse_rules(text: str, first_column: str) -> list[Rule]:
    """Parses the table with this first column; names in a cell are separated by spaces. Raises ValueError."""
    lines = iter(text.splitlines())
    if not any(line.startswith(f"| {first_column} |") for line in lines):
        raise ValueError(f"expected a table whose first column is {first_column!r}")
    next(lines)  # the line between the head and the rows
    rules = []
    for line in lines:
        if not line.startswith("|"):
            break
        tests, paths = line.strip("|").replace("`", "").split("|")
        rules.append(Rule(tuple(tests.split()), tuple(paths.split())))
    return rules


def is_match(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def find_reason(test: str, rules: Sequence[Rule], changed: Iterable[str]) -> str | None:
    """Finds a changed file that reaches the test by a rule; None where there is none."""
    patterns = [pattern for rule in rules if is_match(test, rule.tests) for pattern in rule.paths]
    return next((path for path in sorted(changed) if is_match(path, patterns)), None)
