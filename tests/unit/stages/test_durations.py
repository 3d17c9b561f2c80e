"""Tests that take too long: those by default are named, from a second on where no process is started."""

from __future__ import annotations

import pytest

from support.durations import list_too_long


def report(nodeid: str, duration: float, *marks: str, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport(
        nodeid,
        (nodeid, 1, ""),
        dict.fromkeys([nodeid, *marks], 1),
        "passed",
        None,
        when,  # type: ignore[arg-type]
        duration=duration,
    )


def test_the_longest_by_default_stands_first_and_what_is_marked_is_left_out() -> None:
    stats: dict[str, list[object]] = {
        "": [report("tests/unit/a.py::late", 9, when="setup"), object()],
        "passed": [
            report("tests/unit/a.py::short", 0.9),
            report("tests/unit/a.py::long", 1.1),
            report("tests/unit/a.py::marked", 99, "slow"),
            report("tests/e2e/a.py::short", 4.9, "e2e"),
            report("tests/e2e/a.py::outer", 99, "e2e", "outer"),
        ],
        "failed": [report("tests/e2e/a.py::long", 5.1, "e2e")],
    }
    assert list_too_long(stats) == ["5.1 s  tests/e2e/a.py::long", "1.1 s  tests/unit/a.py::long"]
