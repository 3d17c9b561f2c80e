"""Tests of daily work: those by default in the files that a change reaches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from circles.imports import read_sources
from circles.reach import find_reached, list_tests
from circles.readme import REACHED, read_rules

NOTHING_RAN = 5  # pytest's status where a file has no test that runs by default


def run(root: Path, changed: Collection[str], options: Sequence[str]) -> int:
    """Says which test files the changed files reach, runs them, and returns the status."""
    sources = read_sources(root)
    reached = find_reached(sources, read_rules(root, REACHED), changed)
    left_out = [test for test in list_tests(sources) if test not in reached]
    print(
        f"{len(changed)} files changed; {len(reached)} test files are reached, {len(left_out)} are left out", flush=True
    )
    for test, reason in reached.items():
        print(f"  {test} ({reason})", flush=True)
    own = [test for test in reached if not test.startswith("tests/e2e/")]
    processes = [test for test in reached if test.startswith("tests/e2e/")]
    return max(_run(root, ["-n", "2", *options], own), _run(root, options, processes))


def _run(root: Path, options: Sequence[str], files: Sequence[str]) -> int:
    if not files:
        return 0
    status = subprocess.run([sys.executable, "-m", "pytest", *options, *files], cwd=root).returncode
    return 0 if status == NOTHING_RAN else status
