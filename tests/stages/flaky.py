"""Runs of the same tests again and again, half of them beside processes that want all of the machine's time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stages.reports import read_tests

NUM_LOADS = 4
LOAD = (sys.executable, "-c", "while True: pass")
PARTS: Mapping[str, tuple[str, ...]] = {
    "default": ("-n", "2", "--ignore=tests/e2e", "--ignore=tests/web"),
    "e2e": ("-m", "not long and not web and not gpu and not outer", "tests/e2e"),
}


def run_often(count: int, folder: Path) -> int:
    """Runs the default tests and all of e2e but its long ones so many times. Prints each test that failed once, with
    how often, and returns 1 where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    failed: Counter[str] = Counter()
    for i in range(count):
        loads = NUM_LOADS if i % 2 else 0
        print(f"run {i + 1} of {count}, beside {loads} busy processes", flush=True)
        with load(loads):
            for name, options in PARTS.items():
                failed.update(run_once(folder / f"{i + 1}-{name}", options))
    print(describe(failed, count))
    return 1 if failed else 0


@contextmanager
def load(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts so many processes that do nothing but take a core's time, for as long as the block lasts."""
    busy = [subprocess.Popen(LOAD) for _ in range(count)]
    try:
        yield busy
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run_once(place: Path, options: tuple[str, ...]) -> list[str]:
    """Runs pytest once; what it prints is in PLACE.log, its tests in PLACE.xml. Returns what failed: pytest
    itself where it names no test."""
    report = place.with_suffix(".xml")
    report.unlink(missing_ok=True)
    with place.with_suffix(".log").open("w") as log:
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *options]
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    failed = [test.name for test in read_tests(report) if test.outcome == "failed"]
    return failed or ([] if status == 0 else [f"pytest itself, with status {status}: {log.name}"])


def describe(failed: Counter[str], count: int) -> str:
    """Returns a line for each test that failed, the one that failed most often first."""
    lines = [f"{times} of {count}  {name}" for name, times in failed.most_common()]
    return "\n".join(lines) if lines else f"no test failed in {count} runs"
