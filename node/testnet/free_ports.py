"""Ports of this machine that nobody listens on."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def find_free_ports(count: int) -> list[int]:
    """So many of this machine's, free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind((LOOPBACK, 0))
        return [free.getsockname()[1] for free in sockets]
