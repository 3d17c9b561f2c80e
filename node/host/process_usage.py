"""What a process of this machine takes, by /proc, and what lies in a directory. NodeError where it has ended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from node.errors import NodeError

MB = 1e6
SIZES = {"VmRSS": "resident", "RssAnon": "anonymous", "VmHWM": "peak"}


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process. `pss_mb` is its proportional set size: what it shares with others counts in parts."""

    pss_mb: float
    fds: int
    threads: int


def get_usage(pid: int) -> Usage:
    return Usage(get_pss_mb(pid), _count(pid, "fd"), _count(pid, "task"))


def get_pss_mb(pid: int) -> float:
    """Proportional set size in MB (10^6 bytes)."""
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MB
    raise NodeError(f"/proc/{pid}/smaps_rollup has no Pss line")


def read_memory(pid: int) -> dict[str, int]:
    """Bytes by name: `resident`, `anonymous` of these, and `peak`."""
    found = dict(line.split(":", 1) for line in _read(pid, "status").splitlines())
    if not found.keys() >= SIZES.keys():
        raise NodeError(f"/proc/{pid}/status: expected {', '.join(SIZES)}")
    return {name: int(found[key].split()[0]) * 1024 for key, name in SIZES.items()}


def read_cpu_s(pid: int) -> float:
    """Seconds of CPU it has used so far, in all of its threads."""
    fields = _read(pid, "stat").rpartition(")")[2].split()  # after its name, which may hold anything
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise NodeError(f"process {pid} has ended while it was looked at ({error.strerror})") from error


def _count(pid: int, name: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{name}"))
    except OSError as error:
        raise NodeError(f"process {pid} has ended while it was looked at ({error.strerror})") from error


def measure_directory(path: Path) -> tuple[int, int]:
    """How many files there are in and below it, and their bytes. What goes meanwhile does not count."""
    files = size = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                size += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
            files += 1
    return files, size
