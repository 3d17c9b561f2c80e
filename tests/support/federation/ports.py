"""Ports for servers on loopback, chosen as the product chooses them.

Of tests that run side by side each process has a range of its own, and within it takes one port after the other: one
that was found and is not listened at yet is not found again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from itertools import cycle

from node.testnet.ports import FREE_PORTS, are_free


def find_free_ports(count: int) -> list[int]:
    """Returns so many ports in a row that were free a moment ago."""
    turn = _get_turn()
    ports = [next(turn)]
    while len(ports) < count or not are_free(range(ports[0], ports[-1] + 1)):
        port = next(turn)
        follows = len(ports) < count and port == ports[-1] + 1
        ports = [*ports, port] if follows else [port]
    return ports


@cache
def _get_turn() -> Iterator[int]:
    """Yields the ports that this process of pytest-xdist may take, over and over; every port, in a process outside of
    xdist. It starts at a place where another run on the same machine most likely does not."""
    worker, num_workers = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    size = len(FREE_PORTS) // num_workers
    lowest = size * (0 if worker is None else int(worker.removeprefix("gw")) % num_workers)
    ports, begin = FREE_PORTS[lowest : lowest + size], os.getpid() * 97 % size
    return cycle([*ports[begin:], *ports[:begin]])
