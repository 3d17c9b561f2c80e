"""Tests that take longer than the circle they stand in allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

LATER = frozenset(["slow", "outer", "long", "web", "gpu"])  # marks of tests that may take longer
QUICK = ("tests/unit/", "tests/rpc/", "tests/cli/", "tests/integration/")
QUICK_S = 1.0
OTHER_S = 5.0  # for tests that start processes


def list_too_long(stats: Mapping[str, Iterable[object]]) -> list[str]:
    """Returns a line for each test without a mark that took too long, the longest first. Fixtures do not count, as the
    first test to use a shared one would be charged for all. `stats` are those of pytest's reporter."""
    calls = {
        report.nodeid: report
        for reports in stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call" and not LATER & report.keywords.keys()
    }
    over = [call for call in calls.values() if call.duration > (QUICK_S if call.nodeid.startswith(QUICK) else OTHER_S)]
    return [f"{call.duration:.1f} s  {call.nodeid}" for call in sorted(over, key=lambda call: -call.duration)]
