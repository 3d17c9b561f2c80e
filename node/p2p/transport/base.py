"""The seam between the services and the network. `rpc` carries it over gRPC; that of the tests, within a process.

Small messages are pushed through a bounded queue per peer and may be lost: status repairs it (PROTOCOL §5). Blocks and
blobs are pulled, and a pull says when it failed. A transport never calls out from within a handler.

    TransportError
     ├ PeerUnavailable    not connected, timed out, refused or broken off: try another peer, or later
     ├ BlobNotFound       the peer is there and does not hold the blob
     │  └ BlobNotYet      and is about to: ask it again
     ├ BlobTooLong        the peer sent more than was declared: the transfer was broken off
     └ PeerFault          raised by a handler: the bytes or the signature are bad, refuse this peer for a while
    CannotListen          (an OSError) the address is not one this machine, or this user, can listen on
     └ AddressInUse       somebody else listens there
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

from chain.approvals import APPROVAL_BYTES, MAX_PROPOSAL_BYTES, READINESS_BYTES
from chain.block import Digest, Id
from chain.evidence import MAX_EVIDENCE_BYTES
from chain.hints import MAX_HINT_BYTES
from chain.published import MAX_PUBLISHED_BYTES
from node.p2p.admission import Admission, Role
from node.p2p.refusals import Reason, Refusals
from node.p2p.transport.round_trips import RoundTrips

CHUNK_BYTES = 1 << 20  # blobs travel in chunks of this size
MAX_BLOB_BYTES = 1 << 32
MAX_BLOCKS_REPLY_BYTES = 1 << 20
MAX_BLOCKS_COUNT = 4096
FRAMING_BYTES = 36  # around each message: gRPC prefix 5, HTTP/2 frame header 9, TLS 1.3 record 22


class MessageKind(IntEnum):
    """The kinds of pushed messages. A status is the wire form of `node.p2p.status.Status`, the others are canonical
    chain bytes, but a payload: the bytes of a small blob, which a contribution before it names. A bundle holds several
    of these (`node.p2p.bundle`)."""

    STATUS = 1
    CONTRIBUTION = 2
    BLOCK = 3
    VOTE = 4
    EVIDENCE = 5
    PROPOSAL = 6
    APPROVAL = 7
    READINESS = 8
    HINT = 9
    MEASURES = 10
    PAYLOAD = 11
    BUNDLE = 12


MAX_MESSAGE_BYTES: Mapping[MessageKind, int] = {
    MessageKind.STATUS: 64 * 1024,
    MessageKind.CONTRIBUTION: 4 * 1024,
    MessageKind.BLOCK: 256 * 1024,
    MessageKind.VOTE: 512,
    MessageKind.EVIDENCE: MAX_EVIDENCE_BYTES,
    MessageKind.PROPOSAL: MAX_PROPOSAL_BYTES,
    MessageKind.APPROVAL: APPROVAL_BYTES,
    MessageKind.READINESS: READINESS_BYTES,
    MessageKind.HINT: MAX_HINT_BYTES,
    MessageKind.MEASURES: MAX_PUBLISHED_BYTES,
    MessageKind.PAYLOAD: 64 * 1024,
    MessageKind.BUNDLE: 256 * 1024,
}

CONSENT_KINDS = frozenset({MessageKind.PROPOSAL, MessageKind.APPROVAL, MessageKind.READINESS})
_OBSERVERS_KINDS = frozenset({MessageKind.STATUS, MessageKind.HINT})
GUEST_KINDS = _OBSERVERS_KINDS | CONSENT_KINDS  # what is taken of a guest, and all that it is told


@dataclass(frozen=True, slots=True)
class Message:
    kind: MessageKind
    data: bytes


def validate_size(message: Message) -> None:
    """Raises ValueError if a message of our own is larger than its kind allows: no peer would take it."""
    size, limit = len(message.data), MAX_MESSAGE_BYTES[message.kind]
    if size > limit:
        raise ValueError(f"a {message.kind.name.lower()} of {size} bytes is over its limit of {limit}")


class TransportError(Exception):
    """Something between two peers went wrong."""


class PeerUnavailable(TransportError):
    """The peer is not connected, did not answer in time, refused us or broke off."""


class BlobNotFound(TransportError):
    """The peer does not hold the blob. Also what a handler raises to say so."""


class BlobNotYet(BlobNotFound):
    """The peer does not hold the blob yet: it is being had from its author, or will be soon."""


class BlobTooLong(TransportError):
    """The peer sent more bytes than were declared."""


class PeerFault(TransportError):
    """A handler's verdict on what a peer sent: bad bytes or a bad signature. The transport refuses that peer, and
    counts the reason."""

    def __init__(self, message: str, reason: Reason = Reason.BYTES) -> None:
        super().__init__(message)
        self.reason = reason


def takes(role: Role, kind: MessageKind) -> bool:
    """Whether a peer of this role may push this kind.

    What else it pushes is left out and no fault: it may have left without having heard of it, stand ready for a change
    that nobody has approved here, or have joined on a head that is not known here yet.
    """
    if role & Role.MEMBER or (role & Role.GUEST and kind in GUEST_KINDS):
        return True
    return bool(role & Role.OBSERVER) and kind in _OBSERVERS_KINDS


class Direction(StrEnum):
    """Who of two peers has dialled: this node, or the other."""

    DIALLED = "dialled"
    ACCEPTED = "accepted"


class CannotListen(OSError):
    """The address this node was told to listen on is none it can have: `filename`, as OSError calls it."""


class AddressInUse(CannotListen):
    """Somebody else listens there."""


@dataclass(slots=True)
class KindCounters:
    """Traffic of one kind with one peer. Bytes are payload and framing."""

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0


@dataclass(slots=True)
class TrafficCounters:
    """Traffic with one peer since the start, by kind: the names of `MessageKind` in lower case, `blocks`, `blob`.

    Messages that travel together are one of the `batches`.
    `dropped` counts what we did not send (queue full, peer away), `refusals` by reason what we did not take, and
    `waits` how often we stopped reading for a while because it came too fast.
    """

    kinds: dict[str, KindCounters] = field(default_factory=dict)
    batches_sent: int = 0
    dropped: int = 0
    refusals: Refusals = field(default_factory=Refusals)
    waits: int = 0

    @property
    def refused(self) -> int:
        return self.refusals.total()

    def add_sent(self, kind: str, num_bytes: int) -> None:
        counters = self._get_kind(kind)
        counters.bytes_sent += num_bytes
        counters.messages_sent += 1

    def add_received(self, kind: str, num_bytes: int) -> None:
        counters = self._get_kind(kind)
        counters.bytes_received += num_bytes
        counters.messages_received += 1

    def _get_kind(self, kind: str) -> KindCounters:
        counters = self.kinds.get(kind)
        if counters is None:
            counters = self.kinds[kind] = KindCounters()
        return counters

    @property
    def bytes_sent(self) -> int:
        return sum(counters.bytes_sent for counters in self.kinds.values())

    @property
    def bytes_received(self) -> int:
        return sum(counters.bytes_received for counters in self.kinds.values())

    @property
    def messages_sent(self) -> int:
        return sum(counters.messages_sent for counters in self.kinds.values())

    @property
    def messages_received(self) -> int:
        return sum(counters.messages_received for counters in self.kinds.values())


KIND_NAMES: Mapping[MessageKind, str] = {kind: kind.name.lower() for kind in MessageKind}
BLOCKS = "blocks"
BLOB = "blob"


class Handler(Protocol):
    """The handler of what arrives at a node. All of it runs on the event loop."""

    def on_message(self, peer: Id, message: Message) -> None:
        """Takes a pushed message; quick, only enqueues. Raises PeerFault on bad bytes or a bad signature."""

    def on_peer_up(self, peer: Id) -> None:
        """Hears that messages posted to `peer` go out from now on."""

    def on_peer_down(self, peer: Id) -> None:
        """Hears that messages posted to `peer` are dropped until it is up again."""

    async def on_blocks_request(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """Blocks with their certificates from height `first` on, at most `count` and 1 MiB in all."""

    def on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncIterator[bytes]:
        """The blob from `offset` on, in chunks of at most 1 MiB (an async generator). Raises BlobNotFound."""


class Transport(Protocol):
    """One node's way to its peers."""

    @property
    def me(self) -> Id: ...

    def admit(self, admission: Admission) -> None:
        """From now on exactly these keys are let in, and dialled where an address is known. The connections of all
        others are closed, and of those that may do less than before; whoever may do as much keeps its own."""

    def keep(self, members: Collection[Id] | None) -> None:
        """From now on connections are kept with these members only, of their own accord and whoever has dialled; None:
        with all. Who else dials is taken all the same, and observers and guests are not meant."""

    async def redial(self, peer: Id, address: str | None) -> None:
        """Dials a peer there from now on, or not any more: then it has to dial us, and is answered on its stream.

        One that is not let in now is dialled there once it is. Raises ValueError on an address that cannot be.
        """

    def post(self, peer: Id, message: Message) -> None:
        """Queues a message and returns at once. It is dropped, and counted, if the peer is away or its queue full.

        Of the statuses waiting for one peer only the newest is kept, and they are paced (`outbox.STATUS_PER_S`).
        Raises ValueError if the message is larger than its kind allows.
        """

    async def request_blocks(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """Asks for finalised blocks with their certificates; maybe fewer than asked for. Raises PeerUnavailable."""

    def fetch_blob(
        self, peer: Id, digest: Digest, offset: int = 0, *, max_bytes: int = MAX_BLOB_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """Yields the blob from `offset` on. `max_bytes` is the declared size of the whole blob.

        The bytes are not checked against the digest here. Raises BlobNotFound, BlobTooLong, PeerUnavailable. Use
        `contextlib.aclosing` when stopping early.
        """

    def connected(self) -> frozenset[Id]:
        """The peers that are up."""

    def directions(self) -> Mapping[Id, Direction]:
        """Who has dialled, of each peer that is up."""

    def counters(self) -> Mapping[Id, TrafficCounters]: ...

    def round_trips(self) -> Mapping[Id, RoundTrips]:
        """Of the peers that may connect."""

    async def run(self, handler: Handler) -> None:
        """Listens, connects and keeps connecting until cancelled, or until a handler raises what is the node's own
        trouble. What else it raises beyond its contract is refused (`node.boundary`)."""


async def read_chunks(handler: Handler, peer: Id, digest: Digest, offset: int) -> AsyncGenerator[bytes, None]:
    """The chunks of a blob that a handler serves, none of them empty or larger than CHUNK_BYTES. Closes the handler's
    generator."""
    chunks = handler.on_blob_request(peer, digest, offset)
    try:
        async for chunk in chunks:
            for start in range(0, len(chunk), CHUNK_BYTES):
                yield chunk[start : start + CHUNK_BYTES]
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def limit_blocks_reply(blocks: Sequence[tuple[bytes, bytes]], count: int) -> list[tuple[bytes, bytes]]:
    """The first of `blocks` that fit into one reply: at most `count`, and MAX_BLOCKS_REPLY_BYTES in all."""
    reply: list[tuple[bytes, bytes]] = []
    num_bytes = 0
    for block, certificate in blocks[:count]:
        num_bytes += len(block) + len(certificate)
        if num_bytes > MAX_BLOCKS_REPLY_BYTES:
            break
        reply.append((block, certificate))
    return reply
