"""Which process holds what another one wants, by what Linux says under /proc; elsewhere nobody knows."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"  # the state of a socket, as the kernel writes it


def find_lock_holder(lock: Path) -> int | None:
    """The process that holds a file by flock, None where that cannot be told (no Linux, another pid namespace)."""
    try:
        inode = lock.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[3] == "WRITE" and words[5].endswith(f":{inode}"):
            return int(words[4]) if int(words[4]) > 0 else None
    return None


def describe_process(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "of another user"
    return " ".join(word.decode(errors="replace") for word in words if word)[:80] or "without a name"


def find_listeners(port: int) -> set[int]:
    """The processes that listen at a TCP port; those of other users only root can see."""
    sockets = {f"socket:[{inode}]" for inode in _find_inodes(port)}
    return {pid for pid in _list_processes() if sockets and _holds(pid, sockets)}


def _find_inodes(port: int) -> set[str]:
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(words[9])
    return found


def _list_processes() -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _holds(pid: int, files: set[str]) -> bool:
    with suppress(OSError):  # it has ended, or is another user's
        directory = f"/proc/{pid}/fd"
        for name in os.listdir(directory):
            with suppress(OSError):
                if os.readlink(f"{directory}/{name}") in files:
                    return True
    return False
