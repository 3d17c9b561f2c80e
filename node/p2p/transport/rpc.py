"""The transport of real nodes: gRPC over mutual TLS, two connections to each peer (PROTOCOL §7, SECURITY §2 and §5).

Messages are pushed over one stream that stays open, whichever side dialled it: a push was measured to cost a fifth of a
separate call, and less when several messages wait together. Blocks and blobs are pulled over a second connection.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import grpc

from chain.block import Digest, Id
from chain.signing import SigningKey
from node.addresses import is_on_loopback, parse_address
from node.boundary import Boundary
from node.p2p.admission import NOBODY, Admission, Role
from node.p2p.bans import Bans
from node.p2p.tls import MutualTls
from node.p2p.transport.base import (
    MAX_BLOB_BYTES,
    AddressInUse,
    CannotListen,
    Direction,
    Handler,
    Message,
    PeerFault,
    PeerUnavailable,
    TrafficCounters,
    validate_size,
)
from node.p2p.transport.bulk import Bulk
from node.p2p.transport.calls import serve_calls
from node.p2p.transport.channel import CONNECT_S, Caller
from node.p2p.transport.dialled_lines import DialledLines
from node.p2p.transport.lines import Lines
from node.p2p.transport.link import Link
from node.p2p.transport.rate_limits import Intake, RateLimits
from node.p2p.transport.round_trips import RoundTrips
from node.p2p.transport.sender import Sender
from node.p2p.transport.served_lines import ServedLines
from node.p2p.transport.server import HANDSHAKE_S, MAX_CONNECTIONS, PeerService, make_server
from node.p2p.transport.serving import Serving
from node.p2p.transport.session import Session
from node.p2p.transport.timing import OnCall

MAX_STREAMS = 64
REQUEST_S = 30.0
MAX_GONE = 64  # peers no longer admitted whose traffic counters are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits connections: how many there may be in all, and how many concurrent calls on each; how long dialling a peer
    may take, how long a caller may take to identify itself, and how long a peer may take to answer a request."""

    max_connections: int = MAX_CONNECTIONS
    max_streams: int = MAX_STREAMS
    connect_s: float = CONNECT_S
    handshake_s: float = HANDSHAKE_S
    request_s: float = REQUEST_S


class RpcTransport:
    """Implements `node.p2p.transport.base.Transport` for one node.

    With `dial_out` it does not listen, and dials every peer with a known address at once. With `proxy`, `host:port`, it
    dials through that proxy, which also resolves names. `peers` gives the first address of each peer; these peers and
    those of `admission` are admitted until `admit` replaces them. With `tls` off callers are believed without proof, on
    loopback only. `limits` bounds what one peer may send, and how fast. `chain_id` is returned to peers that call
    Hello. `on_call` is called after each call of a peer.
    """

    def __init__(
        self,
        identity: SigningKey,
        listen: str,
        peers: Mapping[Id, str],
        *,
        dial_out: bool = False,
        proxy: str | None = None,
        admission: Admission = NOBODY,
        tls: Literal["mutual", "off"] = "mutual",
        limits: RateLimits | None = None,
        connections: ConnectionLimits = ConnectionLimits(),
        bans: Bans | None = None,
        chain_id: Digest = b"",
        on_call: OnCall | None = None,
        boundary: Boundary | None = None,
    ) -> None:
        """Raises ValueError on a malformed address, or one that is not loopback while TLS is off."""
        self._me = identity.id
        self._dial_out = dial_out
        self._listen = listen
        self._addresses = {peer: address for peer, address in peers.items() if peer != self._me}
        self._needs_loopback = tls == "off"
        for address in (listen, *self._addresses.values()):
            self._validate(address)
        self.tls = MutualTls(identity, ()) if tls == "mutual" else None
        self.bans = bans if bans is not None else Bans(time.monotonic)
        self.boundary = boundary if boundary is not None else Boundary()
        self._caller = Caller(self._me, self.tls, connections.connect_s, proxy)
        self._limits = limits if limits is not None else RateLimits()
        self._connections = connections
        self._chain_id = chain_id
        self._on_call = on_call
        self._kept: Collection[Id] | None = None  # members; None: all
        self._counters: dict[Id, TrafficCounters] = {}
        self._trips: dict[Id, RoundTrips] = {}
        self._senders: dict[Id, Sender] = {}
        self._intakes: dict[Id, Intake] = {}
        self._sessions: dict[Id, Session] = {}
        self._links: dict[Id, Link] = {}
        self._bulks: dict[Id, Bulk] = {}
        self._dialled: dict[Id, DialledLines] = {}
        self._served: dict[Id, ServedLines] = {}
        self._service: PeerService | None = None
        self._handler: Handler | None = None  # while links run
        self._failed: asyncio.Future[None] | None = None
        self._link_tasks: dict[Id, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._listening = asyncio.Event()
        self.port = 0
        strangers = self._addresses.keys() - {*admission.observers, *admission.guests}
        self.admit(replace(admission, members={*admission.members, *strangers}))

    def __repr__(self) -> str:
        return f"RpcTransport({self._me.hex()[:8]}, listen={self._listen}, connected={len(self.connected())})"

    @property
    def me(self) -> Id:
        return self._me

    def admit(self, admission: Admission) -> None:
        roles = {peer: role for peer, role in admission.get_roles().items() if peer != self._me}
        if self.tls is not None:
            self.tls.set_trusted(roles)
        for peer in self._intakes.keys() - roles.keys():
            self._remove_observer(peer)
        for peer in sorted(roles):
            intake = self._intakes.get(peer)
            if intake is None:
                self._let_in(peer, roles[peer])
                continue
            may_less = not roles[peer].includes(intake.role)
            intake.role = roles[peer]
            if may_less:
                self._end_calls(peer)
                self._links[peer].move(self._choose_address(peer))
            elif self._links[peer].address != self._choose_address(peer):  # its role has changed
                self._links[peer].move(self._choose_address(peer))

    def keep(self, members: Collection[Id] | None) -> None:
        self._kept = None if members is None else frozenset(members)
        for peer, link in self._links.items():
            if link.address != self._choose_address(peer):
                link.move(self._choose_address(peer))

    def _choose_address(self, peer: Id) -> str | None:
        """Returns the address at which to dial a peer; None for a member with which no connection is kept."""
        is_kept = self._kept is None or peer in self._kept or not self._intakes[peer].role & Role.MEMBER
        return self._addresses.get(peer) if is_kept else None

    def _let_in(self, peer: Id, role: Role) -> None:
        counters = self._counters.pop(peer) if peer in self._counters else TrafficCounters()
        self._counters[peer] = counters  # the newest of them
        trips = self._trips[peer] = RoundTrips()
        self._senders[peer] = Sender(counters, self._limits, trips)
        self._intakes[peer] = Intake(
            peer, self._limits, self.bans, counters, role=role, boundary=self.boundary, trips=trips
        )
        address = self._addresses.get(peer)
        if address is not None:
            self._dialled[peer] = DialledLines(peer, address, self._caller)
        self._sessions[peer] = Session(self._me, self._intakes[peer], self._senders[peer], self.boundary)
        self._served[peer] = ServedLines(peer, self._limits.max_lines)
        self._bulks[peer] = Bulk(peer, self._get_lines, counters, self._limits, self._connections.request_s)
        self._links[peer] = self._make_link(peer)
        if self._handler is not None:
            self._start_link(peer, self._handler)

    def _remove_observer(self, peer: Id) -> None:
        """Removes a peer that is no longer admitted. Keeps its traffic counters while at most MAX_GONE such peers are
        kept."""
        del self._senders[peer], self._intakes[peer], self._sessions[peer], self._trips[peer]
        del self._links[peer], self._bulks[peer], self._served[peer]
        self._end_calls(peer)
        if (task := self._link_tasks.pop(peer, None)) is not None:
            task.cancel()
            self._close_later(asyncio.wait({task}))
        if (lines := self._dialled.pop(peer, None)) is not None and self._handler is not None:
            self._close_later(lines.cut())
        gone = [known for known in self._counters if known not in self._intakes]
        for known in gone[:-MAX_GONE]:
            del self._counters[known]

    def _end_calls(self, peer: Id) -> None:
        if self._service is not None:
            self._service.end_calls(peer)

    def _close_later(self, closing: Coroutine[Any, Any, Any]) -> None:
        async def close() -> None:
            with self.boundary.around("connection"):
                await closing

        task = asyncio.create_task(close(), name="close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def hang_up(self, peer: Id) -> None:
        """Ends the streams with a peer. `bans` decides whether the peer may open another."""
        if (session := self._sessions.get(peer)) is not None:
            session.end()

    async def redial(self, peer: Id, address: str | None) -> None:
        """See `Transport.redial`. Without TLS it also raises ValueError on an address that is not loopback."""
        if address is not None:
            self._validate(address)
        if address == self._addresses.get(peer) or peer == self._me:
            return
        if address is None:
            del self._addresses[peer]
        else:
            self._addresses[peer] = address
        if peer not in self._links:
            return
        lines = self._dialled.pop(peer, None)
        if address is not None:
            self._dialled[peer] = DialledLines(peer, address, self._caller)
        self._links[peer].move(self._choose_address(peer))
        if lines is not None:
            await lines.retire()

    def _make_link(self, peer: Id) -> Link:
        session, address = self._sessions[peer], self._choose_address(peer)
        waits = not (self._dial_out or session.dials_first)
        serving = Serving(session.intake, self._get_dialled, self._refuse, self.boundary)
        return Link(address, self._caller, session, serving.run, self._refuse, self.boundary, waits=waits)

    def _validate(self, address: str) -> None:
        try:
            parse_address(address)
        except ValueError as error:
            raise ValueError(f"{error} (got {address!r})") from error
        if self._needs_loopback and not is_on_loopback(address):
            raise ValueError(f"tls off: expected a loopback address, got {address}")

    async def ready(self) -> None:
        """Returns once the node listens, with `port` set, or dials out."""
        await self._listening.wait()

    def connected(self) -> frozenset[Id]:
        return frozenset(peer for peer, sender in self._senders.items() if sender.is_open)

    def directions(self) -> Mapping[Id, Direction]:
        return {
            peer: direction for peer, session in self._sessions.items() if (direction := session.direction) is not None
        }

    def counters(self) -> Mapping[Id, TrafficCounters]:
        return self._counters

    def round_trips(self) -> Mapping[Id, RoundTrips]:
        return self._trips

    def post(self, peer: Id, message: Message) -> None:
        validate_size(message)
        sender = self._senders.get(peer)
        if sender is not None:
            sender.post(message)

    async def request_blocks(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        return await self._get_bulk(peer).request_blocks(first, count)

    async def fetch_blob(
        self, peer: Id, digest: Digest, offset: int = 0, *, max_bytes: int = MAX_BLOB_BYTES
    ) -> AsyncGenerator[bytes, None]:
        chunks = self._get_bulk(peer).fetch_blob(digest, offset, max_bytes)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    async def run(self, handler: Handler) -> None:
        """Listens and dials until cancelled. Raises CannotListen."""
        self._failed = asyncio.get_running_loop().create_future()
        self._service = PeerService(
            handler,
            self._intakes,
            self._sessions,
            self._served,
            self.bans,
            self.tls,
            self.boundary,
            self._on_failure,
            self._chain_id,
        )
        if not self._dial_out:
            validate_free(self._listen)
        server = make_server(
            self._service,
            self._connections.max_streams,
            len(self._intakes),
            self._connections.handshake_s,
            max_connections=self._connections.max_connections,
            on_call=self._on_call,
        )
        serve_calls(self._service, server)
        try:
            if not self._dial_out:
                self.port = self._bind(server)
                await server.start()
            self._listening.set()
            self._handler = handler
            for peer in self._links:
                self._start_link(peer, handler)
            await self._failed
        finally:
            self._handler = None
            self._failed.cancel()
            for task in self._link_tasks.values():
                task.cancel()
            await asyncio.gather(*self._link_tasks.values(), *self._closing, return_exceptions=True)
            self._link_tasks.clear()
            for lines in self._dialled.values():
                await lines.close()
            await server.stop(None)

    def _start_link(self, peer: Id, handler: Handler) -> None:
        task = self._link_tasks[peer] = asyncio.create_task(self._links[peer].run(handler), name="link")
        task.add_done_callback(self._on_link_end)

    def _on_link_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(failure := task.exception(), Exception):
            self._on_failure(failure)

    def _on_failure(self, failure: Exception) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(failure)

    def _bind(self, server: grpc.aio.Server) -> int:
        try:
            if self.tls is None:
                return server.add_insecure_port(self._listen)
            return server.add_secure_port(self._listen, self.tls.make_server_credentials())
        except RuntimeError as error:  # another process took it since `validate_free`
            raise AddressInUse(errno.EADDRINUSE, f"cannot listen on {self._listen}", self._listen) from error

    def _refuse(self, peer: Id, fault: PeerFault) -> None:
        if self._service is not None:
            self._service.refuse(peer, fault)

    def _get_bulk(self, peer: Id) -> Bulk:
        bulk = self._bulks.get(peer)
        if bulk is None or not self._senders[peer].is_open:
            raise PeerUnavailable("not connected")
        return bulk

    def _get_dialled(self, peer: Id) -> DialledLines:
        """Returns the connection that this node dials to a peer. Raises PeerUnavailable where the peer is not dialled
        any more."""
        lines = self._dialled.get(peer)
        if lines is None:
            raise PeerUnavailable("not dialled")
        return lines

    def _get_lines(self, peer: Id) -> Lines:
        """Returns the lines on which to request things of a peer. Raises PeerUnavailable where it is not connected any
        more."""
        session = self._sessions.get(peer)
        match None if session is None else session.direction:
            case Direction.DIALLED:
                return self._get_dialled(peer)
            case Direction.ACCEPTED:
                return self._served[peer]
            case _:
                raise PeerUnavailable("not connected")


def validate_free(listen: str) -> None:
    """Raises AddressInUse, or CannotListen with the reason: gRPC itself gives no reason."""
    host, port = parse_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(error.errno, f"{listen} is in use by another process", listen) from error
            raise CannotListen(error.errno, error.strerror, listen) from error
