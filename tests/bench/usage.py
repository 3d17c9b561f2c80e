"""The resources that a process and a directory take of this machine, for the soak and the benchmark of the chain."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from node.errors import NodeError
from node.host.procfs import get_pss_mb


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process. `pss_mb` is its proportional set size: what it shares with others counts in parts."""

    pss_mb: float
    fds: int
    threads: int


def get_usage(pid: int) -> Usage:
    return Usage(get_pss_mb(pid), _count(pid, "fd"), _count(pid, "task"))


def _count(pid: int, name: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{name}"))
    except OSError as error:
        raise NodeError(f"process {pid} has ended while it was looked at ({error.strerror})") from error


def measure_directory(path: Path) -> tuple[int, int]:
    """The number of files in and below a directory, and their bytes. What goes meanwhile does not count."""
    files = size = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                size += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
            files += 1
    return files, size
