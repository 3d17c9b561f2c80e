"""Reach of a change: the test files that stand on one of the changed ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePath

from circles.imports import Source
from circles.readme import Rule, find_reason, is_match

PROCESSES = ("tests/e2e/", "tests/web/")  # they start processes: of the product they reach what the README says
COMMON = "register"  # the one function of every command's module, by which none is asked for


def list_tests(sources: Iterable[str]) -> list[str]:
    return sorted(path for path in sources if path.startswith("tests/") and PurePath(path).name.startswith("test_"))


def find_reached(sources: Mapping[str, Source], rules: Sequence[Rule], changed: Collection[str]) -> dict[str, str]:
    """Finds the test files that the changed files reach, each with one that does. A changed file of which neither the
    imports nor the rules know anything reaches all."""
    patterns = [pattern for rule in rules for pattern in rule.paths]
    unknown = sorted(path for path in changed if path not in sources and not is_match(path, patterns))
    if unknown:
        return dict.fromkeys(list_tests(sources), f"{unknown[0]}, of which nothing is known")
    reached = {}
    for test in list_tests(sources):
        by_import = min(find_modules(test, sources) & set(changed), default=None)
        if reason := by_import or find_reason(test, rules, changed):
            reached[test] = reason
    return reached


def find_modules(test: str, sources: Mapping[str, Source]) -> set[str]:
    """Finds every module that a test file stands on, itself among them."""
    own = _close({test, *_list_conftests(test, sources)}, sources, frozenset(), "tests/")
    if test.startswith(PROCESSES):
        return own | sources[test].imports
    return _close(own, sources, frozenset().union(*(sources[path].words for path in own)))


def _close(start: Iterable[str], sources: Mapping[str, Source], words: Collection[str], folder: str = "") -> set[str]:
    """The modules of the folder that are imported from these on, as far as these words ask for them."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        source = sources[path]
        asked = {
            to for to, name in source.listed if name in words or not (sources[to].calls - {COMMON}).isdisjoint(words)
        }
        waiting += [to for to in source.imports | asked if to.startswith(folder)]
    return found


def _list_conftests(test: str, sources: Mapping[str, Source]) -> list[str]:
    files = [str(folder / "conftest.py") for folder in PurePath(test).parents]
    return [file for file in files if file in sources]
