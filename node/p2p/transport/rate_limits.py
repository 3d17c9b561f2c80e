"""The rate limits of one peer. Cheap checks come first: whether it is refused, then size, then rate, and only then the
handler (SECURITY §5).

Sending too fast is not a fault: the peer is read more slowly, and surplus statuses are dropped. So are kinds that the
peer's role may not push. A message that is too large counts as bad bytes. Limits per height and signer need the decoded
object: the services hold them.
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
    """Limits what one peer may send and request. Rates are per second and peer; honest senders pace themselves below
    them. The queue bounds what may wait to be sent to it."""

    status_per_s: float = STATUS_PER_S
    status_burst: float = 2 * STATUS_BURST
    messages_per_s: float = 1000.0
    messages_burst: float = 4000.0  # a peer that is behind is sent the votes of many views at once
    bytes_per_s: float = 20.0 * MIB
    streams_per_s: float = 1.0  # of Push streams: each new one costs a greeting
    streams_burst: float = 16.0
    streams_waiting: int = 2
    blocks_per_s: float = 4.0
    blocks_burst: float = 8.0
    blocks_at_once: int = 2
    request_grace_s: float = 10.0  # for a unary call to send its request
    blobs_per_s: float = 128.0
    blobs_burst: float = 512.0
    blob_streams: int = 4
    blob_bytes_per_s: float = 128 * 1024.0  # a transfer slower than this, after the grace, is ended
    blob_grace_s: float = 10.0
    queue_messages: int = MAX_MESSAGES
    queue_bytes: int = MAX_BYTES
    write_s: float = 10.0  # a peer that reads nothing for so long is disconnected

    @property
    def max_lines(self) -> int:
        """Returns how many requests a peer may have at once, for blocks and blobs."""
        return self.blocks_at_once + self.blob_streams


class Intake:
    """Checks what one peer sends. It outlives connections, so that reconnecting gains nothing."""

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
        self.role = role  # changes with the state in force
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
        """Passes the messages of a batch to the handler. Returns for how many seconds to read nothing more from this
        peer.

        Raises PeerFault on bytes that no correct node sends, and an error that must end the node.
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
        """Returns for how many seconds a new Push stream should wait before it is accepted."""
        return self._streams.borrow(self._clock(), 1.0)

    def take_blocks_request(self) -> float:
        """Returns for how many seconds the answer to a request for blocks should wait."""
        return self._blocks.borrow(self._clock(), 1.0)

    def take_blob_request(self) -> float:
        """Returns for how many seconds the answer to a request for a blob should wait."""
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
    """Counts the messages of a batch. Each part of a bundle counts, up to MAX_PARTS, as the handler checks it; so does
    a question, as it is answered."""
    bundled = sum(min(MAX_PARTS, count_parts(envelope.bundle)) for envelope in batch.messages if envelope.bundle)
    return len(batch.messages) + bundled + bool(batch.question)


def to_pb(message: Message) -> pb.Envelope:
    envelope = pb.Envelope()
    setattr(envelope, KIND_NAMES[message.kind], message.data)
    return envelope
