"""A pytest plugin of the trials: runs chosen tests in a chosen order, logs each, and counts lines for the test."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the two files."""
    parser.addoption("--chosen", type=Path, help="a file of node ids, one a line: these tests, in this order")
    parser.addoption("--log", type=Path, help="a file that has each test as it starts, fails and ends")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the chosen tests."""
    if (chosen := config.getoption("--chosen")) is not None:
        place = {test: i for i, test in enumerate(chosen.read_text().splitlines())}
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])


def pytest_configure(config: pytest.Config) -> None:
    """Begins the log, and has what a test starts measured where the run itself is."""
    if (log := config.getoption("--log")) is not None:
        config.pluginmanager.register(_Log(log))
    if os.environ.get("COVERAGE_PROCESS_START"):
        config.pluginmanager.register(_Contexts())


class _Log:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print("uncollected", report.nodeid, sep="\t", file=self._file)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        print("started", nodeid, sep="\t", file=self._file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print("failed", report.nodeid, sep="\t", file=self._file)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        print("ended", nodeid, sep="\t", file=self._file)


class _Contexts:
    """Coverage's context is the test and its phase, in pytest's words to the processes that a test starts."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        return (yield from _switch(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        return (yield from _switch(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        return (yield from _switch(item, "teardown"))


def _switch(item: pytest.Item, phase: str) -> Generator[None]:
    from coverage import Coverage

    coverage = Coverage.current()
    assert coverage is not None
    coverage.switch_context(f"{item.nodeid} ({phase})")
    return (yield)
