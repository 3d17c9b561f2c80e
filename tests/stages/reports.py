"""Stages as they were: the time of each, how its tests ended, and which tests took longest.

`.ci/stage` leaves a file `NAME.stage` of three numbers, when it began, when it ended and with which status; a stage of
pytest's leaves its tests in `NAME.xml` beside it, as JUnit does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

NUM_SLOWEST = 30
OUTCOMES = ("passed", "failed", "skipped")


@dataclass(frozen=True, slots=True)
class Ran:
    """A test that ran, with its time from the first fixture to the last, and how it ended: one of OUTCOMES."""

    name: str
    seconds: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that is over; one without tests has none."""

    name: str
    began_s: float
    seconds: float
    status: int
    tests: tuple[Ran, ...] = ()


def read_stages(folder: Path) -> list[Stage]:
    """Reads the stages that have left something in the folder, in the order in which they began."""
    return sorted((_read_stage(file) for file in folder.glob("*.stage")), key=lambda stage: stage.began_s)


def _read_stage(file: Path) -> Stage:
    began, ended, status = file.read_text().split()
    tests = tuple(read_tests(file.with_suffix(".xml")))
    return Stage(file.stem, float(began), float(ended) - float(began), int(status), tests)


def read_tests(file: Path) -> list[Ran]:
    """Reads the tests of a JUnit file; none where it is not there or was broken off."""
    try:
        cases = list(ElementTree.parse(file).iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):
        return []
    found: dict[str, Ran] = {}
    for case in cases:
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        ran = Ran(name, float(case.get("time", 0)), _get_outcome(case))
        if name not in found or ran.outcome == "failed":  # one that fails as it is torn down has two cases
            found[name] = ran
    return list(found.values())


def _get_outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def describe(stages: Sequence[Stage]) -> str:
    """Returns the table of stages, and below it the slowest tests of all of them."""
    rows = [("stage", "minutes", *OUTCOMES, ""), *(_make_row(stage) for stage in stages)]
    if stages:
        ended_s = max(stage.began_s + stage.seconds for stage in stages)
        tests = [test for stage in stages for test in stage.tests]
        rows.append(("from first to last", _to_minutes(ended_s - stages[0].began_s), *_count(tests), ""))
    return "\n".join([*_align(rows), "", *_list_slowest(test for stage in stages for test in stage.tests)])


def _make_row(stage: Stage) -> tuple[str, ...]:
    counts = _count(stage.tests) if stage.tests else [""] * len(OUTCOMES)
    return (stage.name, _to_minutes(stage.seconds), *counts, "" if stage.status == 0 else "FAILED")


def _count(tests: Iterable[Ran]) -> list[str]:
    counts = Counter(test.outcome for test in tests)
    return [str(counts[outcome]) for outcome in OUTCOMES]


def _to_minutes(seconds: float) -> str:
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The first column to the left, those of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def _list_slowest(tests: Iterable[Ran]) -> list[str]:
    slowest = sorted(tests, key=lambda test: -test.seconds)[:NUM_SLOWEST]
    return [f"the {len(slowest)} slowest tests", *(f"{test.seconds:7.1f} s  {test.name}" for test in slowest)]
