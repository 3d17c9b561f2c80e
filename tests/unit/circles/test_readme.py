"""Tables of the README: how they are read, and that those we have name what there is and leave no outer file out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from circles.outer import HUNT, PAGE, list_outer
from circles.readme import OUTER, REACHED, Rule, find_reason, is_match, parse_rules, read_rules

ROOT = Path(__file__).parents[3]
TEXT = """# Tests

| folder | runs |
|---|---|
| `unit` | no loop |

| test file | reached by |
|---|---|
| `tests/e2e/*` | `node/*` `chain/tip.py` |
| `a.py` `b.py` | `Makefile` |

| outer file | covers |
|---|---|
"""


def test_each_row_is_a_rule_of_names_without_backticks() -> None:
    assert parse_rules(TEXT, REACHED) == [
        Rule(("tests/e2e/*",), ("node/*", "chain/tip.py")),
        Rule(("a.py", "b.py"), ("Makefile",)),
    ]
    assert parse_rules(TEXT, OUTER) == []


def test_a_table_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a table whose first column is 'no such'"):
        parse_rules(TEXT, "no such")


def test_a_star_matches_folders_too_and_rules_add_up() -> None:
    rules = [Rule(("tests/e2e/*",), ("node/*",)), Rule(("*/test_a.py",), ("x",))]
    assert find_reason("tests/e2e/test_a.py", rules, ["y", "node/cli/bench/net.py"]) == "node/cli/bench/net.py"
    assert find_reason("tests/e2e/test_a.py", rules, ["y", "x"]) == "x"
    assert find_reason("tests/e2e/test_b.py", rules, ["y", "x"]) is None


@pytest.mark.parametrize("column", [REACHED, OUTER])
def test_every_name_in_our_tables_is_that_of_a_file(column: str) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [*listed.stdout.splitlines(), HUNT, PAGE]
    patterns = [name for rule in read_rules(ROOT, column) for name in (*rule.tests, *rule.paths) if name != "-"]
    assert patterns
    assert [pattern for pattern in patterns if not any(is_match(file, [pattern]) for file in files)] == []


def test_every_outer_file_and_no_other_is_in_the_table_of_what_they_cover() -> None:
    files = list_outer(ROOT)
    patterns = [name for rule in read_rules(ROOT, OUTER) for name in rule.tests if name != "*"]
    assert [file for file in files if not is_match(file, patterns)] == []
    assert [name for name in patterns if not any(is_match(file, [name]) for file in files)] == []
