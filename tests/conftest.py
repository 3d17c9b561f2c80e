"""For every test: how long anything takes is not what Hypothesis judges, on a machine that others use too; and what is
started heeds Ctrl-C, also where a shell runs the tests in the background, which has them ignore it. At the end stands
which tests have taken longer than a test by default should; no run fails by it. Their files lie in memory where there
is a place for that, as a durable write of each of a thousand stores costs a disk most of the time."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from support.durations import list_too_long

MEMORY, ROOM = "/dev/shm", 4 << 30

if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

settings.register_profile("fednode", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fednode")
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lines := list_too_long(terminalreporter.stats):
        terminalreporter.section("too long for what runs by default: make them shorter, or mark them")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Gives each test the log as it was: a command that starts a node sets it up, to a stderr that is soon gone."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if not {*root.handlers} <= {*handlers}:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
