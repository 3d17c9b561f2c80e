"""The limits and the terminal of this process: how many files it may open, and whether a terminal still holds it.

Each connection is a file, and without any left nothing can be stored. SIGHUP means two things: reload the
configuration, or the terminal is gone. A node in the foreground of a closed terminal ends, as nobody is left to end
it; any other reloads its configuration.
"""

from __future__ import annotations

import logging
import os
import resource
from contextlib import suppress

log = logging.getLogger(__name__)

WANTED_FILES = 65_536
OWN_FILES = 256  # for the store, blobs, processes and dialled connections: far fewer in fact


def make_room(max_connections: int) -> int:
    """Raises the limit of open files as far as the system allows. Returns how many connections may be accepted:
    `max_connections` unless there are too few files for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= max_connections + OWN_FILES:
        return max_connections
    room = max(1, soft - OWN_FILES)
    log.warning(
        "lowered network.limits.max_connections from %d to %d, as this process may open %d files",
        max_connections,
        room,
        soft,
    )
    return room


def has_terminal() -> bool:
    """Says whether this process has a controlling terminal that is still there."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        return True
    return False
