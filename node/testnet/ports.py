"""The ports of a test network's nodes: free ones of this machine, or the first that somebody listens at.

Free ones lie below those that the kernel deals out (from 32768 on), so that no connection of anybody, such as one of
those that dial a node before it listens, can take a port before its node does.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import ExitStack
from random import SystemRandom

from node.addresses import is_on_loopback
from node.errors import ConfigError
from node.p2p.transport.base import AddressInUse
from node.p2p.transport.rpc import validate_free

LOOPBACK = "127.0.0.1"
FREE_PORTS = range(10_000, 32_768)
MAX_TRIES = 1000


def find_free_ports(count: int, among: range = FREE_PORTS) -> list[int]:
    """Returns so many ports in a row that were free a moment ago. Raises ConfigError where there are none."""
    for _ in range(MAX_TRIES):
        first = SystemRandom().randint(among.start, among.stop - count)
        if are_free(range(first, first + count)):
            return [*range(first, first + count)]
    raise ConfigError(f"expected {count} free ports in a row, from {among.start} to {among.stop - 1}")


def are_free(ports: range) -> bool:
    """Says whether nobody uses the ports; false also while connections that ended a moment ago still hold them."""
    with ExitStack() as taken:
        try:
            for port in ports:
                taken.enter_context(socket.socket()).bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def find_taken(addresses: Iterable[str]) -> str | None:
    """Returns the first of `addresses` at which somebody listens on this machine; other machines are not asked."""
    for address in addresses:
        try:
            if is_on_loopback(address):
                validate_free(address)
        except AddressInUse:
            return address
        except (OSError, ValueError):  # no address of this machine, or none at all: reported where it is used
            continue
    return None
