"""What a process of ours uses of the machine, as `/proc` tells it."""

from __future__ import annotations

import os
from pathlib import Path

from node.errors import NodeError

SIZES = {"VmRSS": "resident", "RssAnon": "anonymous", "VmHWM": "peak"}


def read_memory(pid: int) -> dict[str, int]:
    """Bytes by name. Raises NodeError where the process is gone."""
    lines = _read(pid, "status").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    if not found.keys() >= SIZES.keys():
        raise NodeError(f"/proc/{pid}/status: expected {', '.join(SIZES)}")
    return {name: int(found[key].split()[0]) * 1024 for key, name in SIZES.items()}


def read_cpu_s(pid: int) -> float:
    """Seconds of CPU it has used so far, in all of its threads. Raises NodeError where the process is gone."""
    fields = _read(pid, "stat").rpartition(")")[2].split()  # after its name, which may hold anything
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise NodeError(f"process {pid} has ended while it was watched ({error})") from error
