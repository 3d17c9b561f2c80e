"""The memory that this process may still take, and errors for data that would need more.

A few bytes of a file can unpack to more than any machine's memory. So each reader checks here the size in a file's
header before it unpacks the file. Where a header cannot be compared with the content, the unpacking itself is
`bounded`.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ml.errors import DataError

SMALL_BYTES = 16 << 20  # so few are always free, or nothing else would run either
_ROOT = Path("/")
_GROUPS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
_CACHE = ("active_file", "inactive_file")  # memory of files: counts as used, and is freed on demand
_KILLED = ("memory.events", "memory.oom_control")  # the file in which each version counts
_turn = threading.Lock()  # a process has one limit


def validate_fits(num_bytes: int, place: str) -> None:
    """Raises DataError where this many bytes are more than the free memory."""
    if num_bytes <= SMALL_BYTES:
        return
    free = get_free_bytes()
    if free is not None and num_bytes > free:
        raise DataError(f"{place}: would take {show_mib(num_bytes)} of memory, and {show_mib(free)} are free")


@contextmanager
def bounded(place: str) -> Iterator[None]:
    """Limits this process to the free memory within the context; one caller at a time is limited. Raises DataError
    where that is not enough."""
    free = get_free_bytes()
    if free is None or not _turn.acquire(blocking=False):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        limit_memory(free, hard=before[1])
        yield
    except MemoryError as error:
        raise DataError(f"{place}: would take more memory than the {show_mib(free)} that are free") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        _turn.release()


def limit_memory(num_bytes: int, *, hard: int | None = None) -> None:
    """Lets this process take so many more bytes, and never more than before; for good, unless `hard` is the limit up to
    which that can be lifted again."""
    soft, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = _read_taken(_ROOT) + num_bytes
    for other in (soft, most):
        limit = limit if other == resource.RLIM_INFINITY else min(limit, other)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit if hard is None else hard))


def get_free_bytes(root: Path = _ROOT) -> int | None:
    """Returns the least of what the machine, this process's control groups and its own limit leave, swap included; None
    where the system does not say."""
    try:
        rows = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        machine = {row[0]: int(row[1]) * 1024 for row in rows if len(row) > 1}
        found = [machine["MemAvailable:"] + machine.get("SwapFree:", 0)]
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            found.append(soft - _read_taken(root))
    except (OSError, LookupError, ValueError):
        return None
    for group in _list_groups(root):
        for most, used in _GROUPS:
            with suppress(OSError, LookupError, ValueError):  # no limit, or the names of another version
                rows = (line.split() for line in (group / "memory.stat").read_text().splitlines())
                cached = sum(int(row[1]) for row in rows if row[0] in _CACHE)
                found.append(int((group / most).read_text()) - int((group / used).read_text()) + cached)
    return max(0, min(found))


def count_killed(root: Path = _ROOT) -> int | None:
    """Returns how many processes the kernel has killed for want of memory: in this process's control groups or, where
    these do not say, on the machine; None where neither does."""
    counts = [_read_count(group / name) for group in _list_groups(root) for name in _KILLED]
    found = [count for count in counts if count is not None]
    return max(found) if found else _read_count(root / "proc/vmstat")


def _read_count(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return None


def show_mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // (1 << 20)):,} MiB"


def show_gb(num_bytes: int) -> str:
    """Formats bytes as `3.9 GB`, of 10^9 bytes."""
    return f"{num_bytes / 1e9:,.1f} GB"


def _read_taken(root: Path) -> int:
    """Returns the size of this process's address space, which its limit applies to."""
    return int((root / "proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _list_groups(root: Path) -> Iterator[Path]:
    """Yields the directories of this process's control groups, each with those above it."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            own = Path(path.lstrip("/"))
            yield from (top / above for above in (own, *own.parents))  # some containers see only the last
