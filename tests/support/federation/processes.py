"""Looking at, and killing, real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Says whether the process exists and is more than a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int) -> None:
    """Ends the process by SIGKILL."""
    os.kill(pid, signal.SIGKILL)


def get_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


def read_maps(pid: int) -> str:
    """Returns the files and libraries that are mapped into a process."""
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
