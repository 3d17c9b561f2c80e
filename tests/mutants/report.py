"""The share of mutants that the tests kill, of one tree and of two."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mutants.sample import get_group

GONE = "gone"
LIVES = "lives"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: the tier that killed it, `lives` or `gone`, and the test that did it."""

    state: str
    test: str | None = None
    num_tests: int = 0


def read_verdicts(path: Path) -> dict[str, Verdict]:
    """Reads the last word on each mutant from a file of results."""
    verdicts: dict[str, Verdict] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        if "mutant" not in line:
            continue
        key, tier, test = line["mutant"], line["tier"], line["killed_by"]
        num_tests = line["tests"] + verdicts.get(key, Verdict(LIVES)).num_tests
        verdicts[key] = Verdict(GONE if tier == GONE else tier if test else LIVES, test, num_tests)
    return verdicts


def read_killers(path: Path) -> dict[str, str]:
    """Reads the test that killed each mutant, of those that died."""
    return {key: it.test for key, it in read_verdicts(path).items() if it.test is not None}


def format_table(verdicts: Mapping[str, Verdict]) -> str:
    """Formats the share group by group."""
    lines = [f"{'':<22}{'mutants':>8}{'unit':>6}{'other':>7}{'slow':>6}{'live':>6}{'unreached':>11}{'killed':>9}"]
    groups = dict.fromkeys(map(get_group, verdicts))
    for group in groups:
        lines.append(_format_row(group, {key: it for key, it in verdicts.items() if get_group(key) == group}))
    lines.append(_format_row("all", verdicts))
    if num_gone := sum(it.state == GONE for it in verdicts.values()):
        lines.append(f"{num_gone} are not in this tree, and in no figure")
    return "\n".join(lines)


def compare(before: Mapping[str, Verdict], after: Mapping[str, Verdict]) -> Iterator[str]:
    """Yields both tables, of the mutants that both trees have, and each that died before and lives now."""
    both = [key for key in before if key in after and GONE not in (before[key].state, after[key].state)]
    yield f"before\n{format_table({key: before[key] for key in both})}"
    yield f"after\n{format_table({key: after[key] for key in both})}"
    yield f"{len(before.keys() | after.keys()) - len(both)} mutants are not in both"
    for key in both:
        if before[key].state != LIVES and after[key].state == LIVES:
            yield f"lives now: {key}\n    was killed by {before[key].test}"


def _format_row(name: str, verdicts: Mapping[str, Verdict]) -> str:
    here = [verdict for verdict in verdicts.values() if verdict.state != GONE]
    count = Counter(verdict.state for verdict in here)
    unreached = sum(verdict.state == LIVES and verdict.num_tests == 0 for verdict in here)
    killed = len(here) - count[LIVES]
    share = f"{killed / len(here):.1%}" if here else "-"
    numbers = f"{len(here):>8}{count['unit']:>6}{count['default']:>7}{count['slow']:>6}{count[LIVES]:>6}{unreached:>11}"
    return f"{name:<22}{numbers}{share:>9}"
