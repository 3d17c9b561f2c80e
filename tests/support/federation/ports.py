"""Ports for servers on loopback.

They lie below those that the kernel deals out (from 32768 on), so that no connection of anybody, such as one of those
that dial a node before it listens, can take a port before its node does.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from random import SystemRandom

LOWEST, HIGHEST = 10_000, 32_767


def find_free_ports(count: int) -> list[int]:
    """So many ports in a row, free a moment ago."""
    while True:
        first = SystemRandom().randint(LOWEST, HIGHEST + 1 - count)
        ports = list(range(first, first + count))
        try:
            with ExitStack() as taken:
                for port in ports:
                    taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            continue
        return ports
