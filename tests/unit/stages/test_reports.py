"""The table of stages: times from the clock, tests from JUnit's files, and the slowest of all of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stages.reports import Ran, Stage, describe, read_stages, read_tests

STAGE = Path(__file__).parents[3] / ".ci" / "stage"
JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="5" time="9.9">
<testcase classname="tests.unit.chain.test_tip" name="test_a[1-2]" time="1.5" />
<testcase classname="tests.unit.chain.test_tip" name="test_b" time="0.25"><failure message="no">why</failure></testcase>
<testcase classname="tests.unit.chain.test_tip" name="test_c" time="0.0"><skipped message="no">why</skipped></testcase>
<testcase classname="tests.unit.chain.test_tip" name="test_d" time="0.5" />
<testcase classname="tests.unit.chain.test_tip" name="test_d" time="0.75"><error message="no">why</error></testcase>
</testsuite></testsuites>
"""


def test_tests_are_named_as_pytest_names_them_and_one_that_fails_at_its_end_has_failed(tmp_path: Path) -> None:
    (tmp_path / "one.xml").write_text(JUNIT)
    assert read_tests(tmp_path / "one.xml") == [
        Ran("tests/unit/chain/test_tip.py::test_a[1-2]", 1.5, "passed"),
        Ran("tests/unit/chain/test_tip.py::test_b", 0.25, "failed"),
        Ran("tests/unit/chain/test_tip.py::test_c", 0.0, "skipped"),
        Ran("tests/unit/chain/test_tip.py::test_d", 0.75, "failed"),
    ]


@pytest.mark.parametrize("text", [None, "", JUNIT[:200]])
def test_a_stage_that_was_broken_off_has_no_tests(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "one.xml").write_text(text)
    assert read_tests(tmp_path / "one.xml") == []


def test_stages_stand_in_the_order_in_which_they_began_with_the_time_of_all(tmp_path: Path) -> None:
    (tmp_path / "test.stage").write_text("1130.0 1200.5 1\n")
    (tmp_path / "test.xml").write_text(JUNIT)
    (tmp_path / "check.stage").write_text("1000.0 1130.0 0\n")
    stages = read_stages(tmp_path)
    assert [(stage.name, stage.seconds, stage.status) for stage in stages] == [("check", 130, 0), ("test", 70.5, 1)]
    assert describe(stages).splitlines() == [
        "stage               minutes  passed  failed  skipped",
        "check                  2:10",
        "test                   1:10       1       2        1  FAILED",
        "from first to last     3:20       1       2        1",
        "",
        "the 4 slowest tests",
        "    1.5 s  tests/unit/chain/test_tip.py::test_a[1-2]",
        "    0.8 s  tests/unit/chain/test_tip.py::test_d",
        "    0.2 s  tests/unit/chain/test_tip.py::test_b",
        "    0.0 s  tests/unit/chain/test_tip.py::test_c",
    ]


def test_of_all_tests_the_thirty_slowest_are_listed() -> None:
    stages = [Stage(name, 0, 9, 0, tuple(Ran(f"{name}{i}", i, "passed") for i in range(40))) for name in "ab"]
    lines = describe(stages).splitlines()
    assert lines[-30:] == [f"{i:7.1f} s  {name}{i}" for i in range(39, 24, -1) for name in "ab"]


def test_where_nothing_ran_there_is_a_table_all_the_same(tmp_path: Path) -> None:
    assert describe(read_stages(tmp_path / "none")).splitlines()[-1] == "the 0 slowest tests"


@pytest.mark.parametrize("status", [0, 3])
def test_a_stage_leaves_its_time_and_ends_as_its_command_does(tmp_path: Path, status: int) -> None:
    done = subprocess.run([STAGE, "one", "sh", "-c", f"echo said; exit {status}"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (status, b"said\n")
    (stage,) = read_stages(tmp_path / ".reports")
    assert (stage.name, stage.status, stage.tests) == ("one", status, ())
    assert 0 <= stage.seconds < 30
