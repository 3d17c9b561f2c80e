"""Tests that fail now and then: each is named once, with how often."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from stages import flaky
from stages.flaky import describe, load, run_often, run_once

TEST = '''"""One that fails and one that does not."""


def test_holds() -> None:
    pass


def test_fails() -> None:
    raise AssertionError
'''


@pytest.fixture(autouse=True)
def _without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest inside a test starts sooner without them."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_what_failed_most_often_stands_first() -> None:
    assert describe(Counter({"a": 1, "b": 3}), 4) == "3 of 4  b\n1 of 4  a"
    assert describe(Counter(), 4) == "no test failed in 4 runs"


def test_a_test_that_fails_is_named_and_its_words_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(TEST)
    (failed,) = run_once(tmp_path / "1", ("-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(file)))
    assert failed.endswith("test_one.py::test_fails")
    assert "1 failed, 1 passed" in (tmp_path / "1.log").read_text()


def test_a_run_that_pytest_refuses_has_failed(tmp_path: Path) -> None:
    (failed,) = run_once(tmp_path / "1", ("--no-such-option",))
    assert failed.startswith("pytest itself, with status 4: ")


def test_every_other_run_has_busy_processes_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flaky, "run_once", lambda place, options: ["a"] if place.name == "2-e2e" else [])
    monkeypatch.setattr(flaky, "LOAD", ("sleep", "1000"))
    assert run_often(3, tmp_path / "flaky") == 1
    assert capsys.readouterr().out.splitlines() == [
        "run 1 of 3, beside 0 busy processes",
        "run 2 of 3, beside 4 busy processes",
        "run 3 of 3, beside 0 busy processes",
        "1 of 3  a",
    ]


def test_busy_processes_go_with_the_block() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def be_interrupted() -> None:
        with load(2) as busy:
            started.extend(busy)
            assert [process.poll() for process in started] == [None, None]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert [process.poll() for process in started] == [-9, -9]
