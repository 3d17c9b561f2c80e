"""A process that trains keeps the memory of one step for the next."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys
import numpy as np
from node.malloc import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
for step in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.ones(1 << 18) for _ in range(8)]  # 2 MiB each, 4096 pages in all
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc has its own way")
def test_kept_memory_is_not_taken_from_the_system_again() -> None:
    def count_faults(which: str) -> int:
        command = [sys.executable, "-c", COUNT_FAULTS, which]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert count_faults("kept") < 100
    assert count_faults("given back") > 1000  # else there is nothing to keep, and this module may go
