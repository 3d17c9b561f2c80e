"""Looking at, and killing, real processes."""

from __future__ import annotations

import os
import signal


def is_alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int) -> None:
    """`kill -9`."""
    os.kill(pid, signal.SIGKILL)
