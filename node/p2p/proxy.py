"""A connection to a peer from outside a running node: direct, or through a proxy by HTTP CONNECT.

A node's own channels use the proxy through gRPC, with the same requests. The proxy resolves names.
"""

from __future__ import annotations

import socket
import time

from node.addresses import parse_address

MAX_HEAD_BYTES = 8 * 1024  # of a proxy's answer
_END_OF_HEAD = b"\r\n\r\n"


class ProxyFailed(Exception):
    """The proxy cannot be reached, or refuses this connection. `advice` says what to do about it."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


def dial(address: str, proxy: str | None, within_s: float) -> socket.socket:
    """Returns a TCP connection to `address`. Raises OSError if the peer cannot be reached directly, ProxyFailed."""
    if proxy is None:
        return socket.create_connection(parse_address(address), timeout=within_s)
    connection = reach_proxy(proxy, within_s)
    try:
        _ask(connection, address, proxy, within_s)
    except BaseException:
        connection.close()
        raise
    return connection


def reach_proxy(proxy: str, within_s: float) -> socket.socket:
    """Returns a connection to the proxy, before any request. Raises ProxyFailed."""
    try:
        return socket.create_connection(parse_address(proxy), timeout=within_s)
    except OSError as error:
        said = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ProxyFailed(f"the proxy {proxy} cannot be reached ({said})", "correct network.proxy") from error


def _ask(connection: socket.socket, address: str, proxy: str, within_s: float) -> None:
    try:
        connection.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        head = _read_head(connection, time.monotonic() + within_s)
    except TimeoutError as error:
        raise ProxyFailed(
            f"{address}: the proxy {proxy} says nothing within {within_s:g} s", "see whether the peer runs, and its log"
        ) from error
    except OSError as error:
        raise ProxyFailed(f"{address}: the proxy {proxy} hangs up", "its log may say why") from error
    version, _, said = head.split(b"\r\n")[0].partition(b" ")
    if not head.endswith(_END_OF_HEAD) or not version.startswith(b"HTTP/1."):
        raise ProxyFailed(f"{address}: what answers at {proxy} is no HTTP proxy", "correct network.proxy")
    if not said.startswith(b"2"):
        shown = "".join(char if char.isprintable() else "?" for char in said[:80].decode("ascii", "replace"))
        raise ProxyFailed(
            f"{address}: the proxy {proxy} refuses it ({shown})", "have the proxy allow CONNECT to this address"
        )
    connection.settimeout(within_s)


def _read_head(connection: socket.socket, until_s: float) -> bytes:
    """Reads the head byte by byte, as what follows it is the peer's."""
    head = b""
    while len(head) < MAX_HEAD_BYTES and not head.endswith(_END_OF_HEAD):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        byte = connection.recv(1)
        if not byte:
            break
        head += byte
    return head
