"""A description of this machine, to be kept with measured figures: a number without its machine means little."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def get_machine() -> dict[str, Any]:
    """Returns CPU model, cores this process may use, memory, system and Python."""
    return {
        "cpu": _get_cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def _get_cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
