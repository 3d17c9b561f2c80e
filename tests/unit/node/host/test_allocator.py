"""A process that trains keeps the memory of one step for the next."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys
import numpy as np
from node.host.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
for step in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.ones(1 << 18) for _ in range(8)]  # 2 MiB each, 4096 pages in all
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

MEASURE_KEPT = """
import sys
import numpy as np
from node.host.allocator import give_freed_memory_back, keep_freed_memory

def read_mb():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 1e6

keep_freed_memory()
before = read_mb()
blocks = [np.ones(1 << 18) for _ in range(30)]  # 2 MiB each
last = np.ones(1 << 18)  # behind them: not only the end of the heap is given back
del blocks
if sys.argv[1] == "given back":
    give_freed_memory_back()
print(read_mb() - before)
"""

glibc_only = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another C library than glibc has its own way"
)


@glibc_only
def test_kept_memory_is_not_taken_from_the_system_again() -> None:
    def count_faults(which: str) -> int:
        command = [sys.executable, "-c", COUNT_FAULTS, which]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert count_faults("kept") < 100
    assert count_faults("given back") > 1000  # else there is nothing to keep, and this module may go


@glibc_only
def test_what_was_kept_is_given_back_when_asked_for() -> None:
    def measure_mb(which: str) -> float:
        command = [sys.executable, "-c", MEASURE_KEPT, which]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert measure_mb("kept") > 60
    assert measure_mb("given back") < 10
