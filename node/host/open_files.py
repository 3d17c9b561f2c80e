"""How many files this process may have open: each connection is one, and without any left nothing can be stored."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

WANTED_FILES = 65_536
OWN_FILES = 256  # the store, blobs, processes, what is dialled: far fewer in fact


def make_room(max_connections: int) -> int:
    """Raises the limit as far as the system lets us. Returns how many connections may be taken in: `max_connections`
    unless there are too few files for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= max_connections + OWN_FILES:
        return max_connections
    room = max(1, soft - OWN_FILES)
    log.warning(
        "network.limits.max_connections: %d of %d, as this process may have %d files open", room, max_connections, soft
    )
    return room
