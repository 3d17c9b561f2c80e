"""Tests that take longer than the circle they stand in allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

LATER = frozenset(["slow", "outer", "long", "web", "gpu"])  # the marks of what may take its time
QUICK = ("tests/unit/", "tests/rpc/", "tests/cli/", "tests/integration/")
QUICK_S = 1.0
OTHER_S = 5.0  # of what starts processes


def list_too_long(stats: Mapping[str, Iterable[object]]) -> list[str]:
    """Returns a line for each test by default that took too long, the longest first. Its fixtures do not count, as the
    first to use one that others share would stand for all of them. `stats` are those of pytest's reporter."""
    calls = {
        report.nodeid: report
        for reports in stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call" and not LATER & report.keywords.keys()
    }
    over = [call for call in calls.values() if call.duration > (QUICK_S if call.nodeid.startswith(QUICK) else OTHER_S)]
    return [f"{call.duration:.1f} s  {call.nodeid}" for call in sorted(over, key=lambda call: -call.duration)]
