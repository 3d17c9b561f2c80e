"""Ports for servers on loopback.

They lie below those that the kernel deals out (from 32768 on), so that no connection of anybody, such as one of those
that dial a node before it listens, can take a port before its node does. Of tests that run side by side, each process
has a range of its own.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from random import SystemRandom

LOWEST, HIGHEST = 10_000, 32_767


def find_free_ports(count: int) -> list[int]:
    """So many ports in a row, free a moment ago."""
    lowest, highest = _get_range()
    while True:
        first = SystemRandom().randint(lowest, highest + 1 - count)
        ports = list(range(first, first + count))
        try:
            with ExitStack() as taken:
                for port in ports:
                    taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            continue
        return ports


def _get_range() -> tuple[int, int]:
    """The lowest and the highest that this process of pytest-xdist may take; all, of a process that is none of its."""
    worker, num_workers = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    size = (HIGHEST + 1 - LOWEST) // num_workers
    lowest = LOWEST + size * (0 if worker is None else int(worker.removeprefix("gw")) % num_workers)
    return lowest, lowest + size - 1
