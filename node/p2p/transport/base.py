"""The interface between the services and the network. `rpc` implements it over gRPC, the tests within a process.

Small messages are pushed through a bounded queue per peer and may be lost: statuses repair this (PROTOCOL §5). Blocks
and blobs are pulled, and a pull reports when it failed. A transport never sends or dials from within a handler.

    TransportError
     ├ PeerUnavailable    not connected, timed out, refused or broken off: try another peer, or later
     ├ BlobNotFound       the peer is there and does not hold the blob
     │  └ BlobNotYet      and will soon: request it again
     ├ BlobTooLong        the peer sent more than was declared: the transfer was broken off
     └ PeerFault          raised by a handler: the bytes or the signature are bad, refuse this peer for a while
    CannotListen          (an OSError) this machine, or this user, cannot listen on the address
     └ AddressInUse       another process listens there
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
    """Lists the kinds of pushed messages. A status is the wire form of `node.p2p.status.Status`. A payload is the bytes
    of a small blob that a contribution before it names. A bundle holds several messages (`node.p2p.bundle`). All others
    are canonical chain bytes."""

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
GUEST_KINDS = _OBSERVERS_KINDS | CONSENT_KINDS  # the kinds that a guest may send, and all that are sent to it


@dataclass(frozen=True, slots=True)
class Message:
    kind: MessageKind
    data: bytes


def validate_size(message: Message) -> None:
    """Raises ValueError if a message of this node is larger than its kind allows: every peer would refuse it."""
    size, limit = len(message.data), MAX_MESSAGE_BYTES[message.kind]
    if size > limit:
        raise ValueError(f"a {message.kind.name.lower()} of {size} bytes is over its limit of {limit}")


class TransportError(Exception):
    """Something between two peers went wrong."""


class PeerUnavailable(TransportError):
    """The peer is not connected, did not answer in time, refused this node or ended the connection."""


class BlobNotFound(TransportError):
    """The peer does not hold the blob. A handler raises it for a blob that this node does not hold."""


class BlobNotYet(BlobNotFound):
    """The peer does not hold the blob yet: it is fetching the blob from its author, or will soon."""


class BlobTooLong(TransportError):
    """The peer sent more bytes than were declared."""


class PeerFault(TransportError):
    """A handler found bad bytes or a bad signature in what a peer sent. The transport refuses that peer for a while,
    and counts the reason."""

    def __init__(self, message: str, reason: Reason = Reason.BYTES) -> None:
        super().__init__(message)
        self.reason = reason


def takes(role: Role, kind: MessageKind) -> bool:
    """Says whether a peer of this role may push messages of this kind.

    Other kinds are dropped without blame. Such a peer may not know yet that it has left, may be ready for a change that
    nobody has approved here, or may have joined in a block that this node does not have yet.
    """
    if role & Role.MEMBER or (role & Role.GUEST and kind in GUEST_KINDS):
        return True
    return bool(role & Role.OBSERVER) and kind in _OBSERVERS_KINDS


class Direction(StrEnum):
    """Says which of two peers dialled: this node, or the other."""

    DIALLED = "dialled"
    ACCEPTED = "accepted"


class CannotListen(OSError):
    """This node cannot listen on its configured address. `filename` holds that address, as OSError names the field."""


class AddressInUse(CannotListen):
    """Another process listens on that address."""


@dataclass(slots=True)
class KindCounters:
    """Counts the traffic of one kind with one peer. Bytes are payload and framing."""

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0


@dataclass(slots=True)
class TrafficCounters:
    """Counts the traffic with one peer since the start, by kind: the names of `MessageKind` in lower case, `blocks`,
    `blob`.

    Messages that travel together make one batch, counted in `batches_sent`. `dropped` counts what this node did not
    send (queue full, peer not connected), `refusals` what it did not accept, by reason, and `waits` how often it
    stopped reading for a while because messages came too fast.
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
    """Handles what arrives at a node. All of it runs on the event loop."""

    def on_message(self, peer: Id, message: Message) -> None:
        """Handles a pushed message; returns quickly, as it only enqueues. Raises PeerFault on bad bytes or a bad
        signature."""

    def on_peer_up(self, peer: Id) -> None:
        """Notes that `peer` is up: messages posted to it are sent from now on."""

    def on_peer_down(self, peer: Id) -> None:
        """Notes that `peer` is down: messages posted to it are dropped until it is up again."""

    async def on_blocks_request(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """Returns blocks with their certificates from height `first` on, at most `count` and 1 MiB in all."""

    def on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncIterator[bytes]:
        """Yields the blob from `offset` on, in chunks of at most 1 MiB (an async generator). Raises BlobNotFound."""


class Transport(Protocol):
    """Connects one node with its peers."""

    @property
    def me(self) -> Id: ...

    def admit(self, admission: Admission) -> None:
        """Admits exactly these keys from now on, and dials those whose address is known. Closes the connections of all
        other keys, and of keys that may do less than before. A key that may do as much as before keeps its
        connection."""

    def keep(self, members: Collection[Id] | None) -> None:
        """Keeps connections open with these members only from now on, whichever side dials; None: with all members. A
        connection that another member dials is still accepted. Observers and guests are not affected."""

    async def redial(self, peer: Id, address: str | None) -> None:
        """Dials a peer at this address from now on. With None the peer is not dialled: it has to dial this node, and
        both directions use its stream.

        A peer that is not admitted now is dialled once it is. Raises ValueError on an address that cannot be.
        """

    def post(self, peer: Id, message: Message) -> None:
        """Queues a message and returns at once. The message is dropped, and counted, if the peer is down or its queue
        is full.

        Of the statuses that wait for one peer only the newest is kept, and they are paced (`outbox.STATUS_PER_S`).
        Raises ValueError if the message is larger than its kind allows.
        """

    async def request_blocks(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """Requests finalised blocks with their certificates. The peer may return fewer than `count`. Raises
        PeerUnavailable."""

    def fetch_blob(
        self, peer: Id, digest: Digest, offset: int = 0, *, max_bytes: int = MAX_BLOB_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """Yields the blob from `offset` on. `max_bytes` is the declared size of the whole blob.

        The bytes are not checked against the digest here. Raises BlobNotFound, BlobTooLong, PeerUnavailable. Use
        `contextlib.aclosing` when stopping early.
        """

    def connected(self) -> frozenset[Id]:
        """Returns the peers that are up."""

    def directions(self) -> Mapping[Id, Direction]:
        """Returns for each peer that is up which side dialled."""

    def counters(self) -> Mapping[Id, TrafficCounters]: ...

    def round_trips(self) -> Mapping[Id, RoundTrips]:
        """Returns the measured round trips of each peer that may connect."""

    async def run(self, handler: Handler) -> None:
        """Listens, connects and keeps connecting until cancelled, or until a handler raises an error that must end the
        node. Other errors beyond the handler's contract only refuse the bytes that caused them (`node.boundary`)."""


async def read_chunks(handler: Handler, peer: Id, digest: Digest, offset: int) -> AsyncGenerator[bytes, None]:
    """Yields the chunks of a blob that a handler serves, none of them empty or larger than CHUNK_BYTES. Closes the
    handler's generator."""
    chunks = handler.on_blob_request(peer, digest, offset)
    try:
        async for chunk in chunks:
            for start in range(0, len(chunk), CHUNK_BYTES):
                yield chunk[start : start + CHUNK_BYTES]
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def limit_blocks_reply(blocks: Sequence[tuple[bytes, bytes]], count: int) -> list[tuple[bytes, bytes]]:
    """Returns the first of `blocks` that fit into one reply: at most `count`, and MAX_BLOCKS_REPLY_BYTES in all."""
    reply: list[tuple[bytes, bytes]] = []
    num_bytes = 0
    for block, certificate in blocks[:count]:
        num_bytes += len(block) + len(certificate)
        if num_bytes > MAX_BLOCKS_REPLY_BYTES:
            break
        reply.append((block, certificate))
    return reply
