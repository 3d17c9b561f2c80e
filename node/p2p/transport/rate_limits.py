"""The rate limits of one peer, cheap checks first: whether it is refused, size, rate, and only then the handler
(SECURITY §5).

Too fast is not a fault: the peer is read more slowly, and what it sends too often (statuses) is left out. So is what
it has no part in. Too large is bad bytes. Limits per height and signer need the object decoded: they are the services'.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from chain.block import Id
from node.boundary import Boundary
from node.p2p.admission import Role
from node.p2p.bans import Bans
from node.p2p.bundle import MAX_PARTS, count_parts
from node.p2p.refusals import Reason
from node.p2p.transport.base import (
    FRAMING_BYTES,
    KIND_NAMES,
    MAX_MESSAGE_BYTES,
    Handler,
    Message,
    MessageKind,
    PeerFault,
    TrafficCounters,
    takes,
)
from node.p2p.transport.outbox import MAX_BYTES, MAX_MESSAGES, STATUS_BURST, STATUS_PER_S, TokenBucket
from node.p2p.transport.round_trips import RoundTrips
from node.pb import peer_pb2 as pb

MIB = 1 << 20
MAX_BATCH_MESSAGES = 256
MAX_BATCH_BYTES = MIB
ENVELOPE_BYTES = 8  # tags and lengths around a message in a batch


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of one peer. Rates are per second and peer; honest senders pace themselves below them. The queue is
    what may wait to be sent to it."""

    status_per_s: float = STATUS_PER_S
    status_burst: float = 2 * STATUS_BURST
    messages_per_s: float = 1000.0
    messages_burst: float = 4000.0  # who is behind is given the votes of many views at once
    bytes_per_s: float = 20.0 * MIB
    streams_per_s: float = 1.0  # of messages: each that is opened is greeted
    streams_burst: float = 16.0
    streams_waiting: int = 2
    blocks_per_s: float = 4.0
    blocks_burst: float = 8.0
    blocks_at_once: int = 2
    request_grace_s: float = 10.0  # for a call that asks one thing to say what
    blobs_per_s: float = 128.0
    blobs_burst: float = 512.0
    blob_streams: int = 4
    blob_bytes_per_s: float = 128 * 1024.0  # slower than this, after the grace, and the transfer ends
    blob_grace_s: float = 10.0
    queue_messages: int = MAX_MESSAGES
    queue_bytes: int = MAX_BYTES
    write_s: float = 10.0  # a peer that takes nothing for so long is cut off

    @property
    def max_lines(self) -> int:
        """What a peer may ask for at once, blocks and blobs."""
        return self.blocks_at_once + self.blob_streams


class Intake:
    """The gate for one peer. It outlives connections, so that reconnecting gains nothing."""

    def __init__(
        self,
        peer: Id,
        limits: RateLimits,
        bans: Bans,
        counters: TrafficCounters,
        *,
        role: Role = Role.MEMBER,
        boundary: Boundary | None = None,
        trips: RoundTrips | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        now = clock()
        self.peer = peer
        self.role = role  # as it is now: it changes with the state in force
        self.limits = limits
        self.counters = counters
        self.num_awaited = 0
        self.num_streams_waiting = 0
        self.num_blocks_requests = 0
        self.num_blob_streams = 0
        self._bans = bans
        self._boundary = boundary or Boundary()
        self._trips = trips or RoundTrips()
        self._clock = clock
        self._statuses = TokenBucket(limits.status_per_s, limits.status_burst, now)
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_burst, now)
        self._bytes = TokenBucket(limits.bytes_per_s, limits.bytes_per_s, now)
        self._streams = TokenBucket(limits.streams_per_s, limits.streams_burst, now)
        self._blocks = TokenBucket(limits.blocks_per_s, limits.blocks_burst, now)
        self._blobs = TokenBucket(limits.blobs_per_s, limits.blobs_burst, now)

    def __repr__(self) -> str:
        return (
            f"Intake({self.peer.hex()[:8]}, refused={self.is_refused()}, awaited={self.num_awaited}, "
            f"blob_streams={self.num_blob_streams})"
        )

    def is_refused(self) -> bool:
        return self._bans.is_banned(self.peer)

    def take(self, batch: pb.Batch, handler: Handler) -> float:
        """Hands a batch on. Returns for how many seconds to read nothing more from this peer.

        Raises PeerFault on bytes that no correct node sends, and what is the node's own trouble.
        """
        now = self._clock()
        size = batch.ByteSize()
        wait_s = max(self._messages.borrow(now, _count_objects(batch)), self._bytes.borrow(now, size + FRAMING_BYTES))
        if len(batch.messages) > MAX_BATCH_MESSAGES or size > MAX_BATCH_BYTES:
            raise PeerFault(
                f"a batch of {len(batch.messages)} messages and {size} bytes is over the limits", Reason.SIZE
            )
        self._trips.on_answer(batch.answer, now)
        if not self._trips.on_question(batch.question, now):
            self.counters.refusals[Reason.RATE] += 1
        framing = FRAMING_BYTES
        for envelope in batch.messages:
            message = _from_pb(envelope)
            if not takes(self.role, message.kind):
                self.counters.refusals[Reason.OTHER_HEIGHT] += 1
                continue
            if message.kind is MessageKind.STATUS and not self._statuses.take(now):
                self.counters.refusals[Reason.RATE] += 1
                continue
            self.counters.add_received(KIND_NAMES[message.kind], len(message.data) + ENVELOPE_BYTES + framing)
            framing = 0
            with self._boundary.around(KIND_NAMES[message.kind], self.peer, passing=(PeerFault,)):
                handler.on_message(self.peer, message)
        self.counters.waits += wait_s > 0
        return wait_s

    def take_stream(self) -> float:
        """Returns for how many seconds a stream of messages should wait before it is taken."""
        return self._streams.borrow(self._clock(), 1.0)

    def take_blocks_request(self) -> float:
        """Returns for how many seconds the answer should wait."""
        return self._blocks.borrow(self._clock(), 1.0)

    def take_blob_request(self) -> float:
        """As `take_blocks_request`."""
        return self._blobs.borrow(self._clock(), 1.0)


_KINDS: dict[str, MessageKind] = {name: kind for kind, name in KIND_NAMES.items()}


def _from_pb(envelope: pb.Envelope) -> Message:
    name = envelope.WhichOneof("body")
    if name is None:
        raise PeerFault("expected a message of a known kind")
    kind = _KINDS[name]
    data: bytes = getattr(envelope, name)
    if len(data) > MAX_MESSAGE_BYTES[kind]:
        raise PeerFault(f"a {name} of {len(data)} bytes is over its limit of {MAX_MESSAGE_BYTES[kind]}", Reason.SIZE)
    return Message(kind, data)


def _count_objects(batch: pb.Batch) -> int:
    """What is in bundles counts one by one, as far as a bundle may hold so many: the handler looks at them. A question
    has an answer sent, so it counts, too."""
    bundled = sum(min(MAX_PARTS, count_parts(envelope.bundle)) for envelope in batch.messages if envelope.bundle)
    return len(batch.messages) + bundled + bool(batch.question)


def to_pb(message: Message) -> pb.Envelope:
    envelope = pb.Envelope()
    setattr(envelope, KIND_NAMES[message.kind], message.data)
    return envelope
