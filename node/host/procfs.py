"""Readings of /proc about this machine's processes: the resources each uses, and the holder of a lock or a port."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from node.errors import NodeError

MB = 1e6
SIZES = {"VmRSS": "resident", "RssAnon": "anonymous", "VmHWM": "peak"}
_LISTENS = "0A"  # the state of a socket, as the kernel writes it


def get_pss_mb(pid: int) -> float:
    """Returns the proportional set size in MB (10^6 bytes)."""
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MB
    raise NodeError(f"/proc/{pid}/smaps_rollup has no Pss line")


def read_memory(pid: int) -> dict[str, int]:
    """Returns bytes by name: `resident`, `anonymous` of these, and `peak`."""
    found = dict(line.split(":", 1) for line in _read(pid, "status").splitlines())
    if not found.keys() >= SIZES.keys():
        raise NodeError(f"/proc/{pid}/status: expected {', '.join(SIZES)}")
    return {name: int(found[key].split()[0]) * 1024 for key, name in SIZES.items()}


def read_cpu_s(pid: int) -> float:
    """Returns the seconds of CPU that a process has used so far, in all of its threads."""
    fields = _read(pid, "stat").rpartition(")")[2].split()  # after the name, which may contain anything
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise NodeError(f"process {pid} has ended while it was looked at ({error.strerror})") from error


def find_lock_holder(lock: Path) -> int | None:
    """Returns the process that holds a file by flock, None where that is unknown (no Linux, another pid namespace)."""
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


def name_listener(port: int) -> str:
    """Describes the process that listens at a TCP port, as far as it is visible: its command, and a node's data
    directory."""
    listeners = sorted(find_listeners(port))
    if not listeners:
        return "another process"
    data = _find_data_dir(listeners[0])
    where = "" if data is None else f", a node with its data in {data}"
    return f"process {listeners[0]} ({describe_process(listeners[0])}){where}"


def _find_data_dir(pid: int) -> Path | None:
    """Returns the directory whose `lock` a process holds open, beside its chain, None where there is none."""
    for file in _list_files(pid):
        lock = Path(file)
        if lock.name == "lock" and (lock.parent / "chain.db").exists():
            return lock.parent
    return None


def find_listeners(port: int) -> set[int]:
    """Returns the processes that listen at a TCP port; only root can see those of other users."""
    sockets = {f"socket:[{inode}]" for inode in _find_inodes(port)}
    return {pid for pid in _list_processes() if sockets and sockets & _list_files(pid)}


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


def _list_files(pid: int) -> set[str]:
    """Returns the files that a process holds open; none where it has ended, or is another user's."""
    found = set()
    with suppress(OSError):
        directory = f"/proc/{pid}/fd"
        for name in os.listdir(directory):
            with suppress(OSError):
                found.add(os.readlink(f"{directory}/{name}"))
    return found
