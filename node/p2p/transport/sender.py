"""The sender of one peer: empties its outbox into the open stream to it, if there is one. All waiting messages travel
as one batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from node.p2p.transport.base import FRAMING_BYTES, KIND_NAMES, Message, TrafficCounters
from node.p2p.transport.outbox import Outbox
from node.p2p.transport.rate_limits import ENVELOPE_BYTES, MAX_BATCH_MESSAGES, RateLimits, to_pb
from node.p2p.transport.round_trips import RoundTrips
from node.pb import peer_pb2 as pb

FULL_BATCH_BYTES = 256 * 1024  # plus the largest message, this is still far below the receiver's limit


class Sender:
    """Sends to one peer. While no stream is open, posted messages are dropped and counted."""

    def __init__(self, counters: TrafficCounters, limits: RateLimits, trips: RoundTrips | None = None) -> None:
        self.counters = counters
        self._limits = limits
        self._outbox: Outbox | None = None
        self._wake = asyncio.Event()
        self._trips = trips or RoundTrips()
        self._trips.on_owed = self.wake

    def __repr__(self) -> str:
        return f"Sender(open={self.is_open}, waiting={0 if self._outbox is None else len(self._outbox)})"

    @property
    def is_open(self) -> bool:
        return self._outbox is not None

    def open(self) -> None:
        """Queues posted messages from now on, to be sent."""
        limits = self._limits
        self._trips.restart()
        self._outbox = Outbox(time.monotonic(), max_messages=limits.queue_messages, max_bytes=limits.queue_bytes)

    def close(self) -> None:
        if self._outbox is not None:
            self.counters.dropped += self._outbox.clear()
            self._outbox = None

    def post(self, message: Message) -> None:
        if self._outbox is None or not self._outbox.put(message):
            self.counters.dropped += 1
        else:
            self._wake.set()

    def wake(self) -> None:
        """Has `run` check again whether it may send."""
        self._wake.set()

    async def run(self, write: Callable[[pb.Batch], Awaitable[None]], may_send: Callable[[], bool]) -> None:
        """Sends posted messages until cancelled or closed, or until `may_send` returns False. Raises TimeoutError when
        the peer reads nothing any more."""
        while (outbox := self._outbox) is not None and may_send():
            messages = _pop_batch(outbox)
            if messages or self._trips.owes:
                batch = pb.Batch(
                    messages=[to_pb(message) for message in messages],
                    question=self._trips.take_question(time.monotonic()) if messages else 0,
                    answer=self._trips.take_answer(),
                )
                async with asyncio.timeout(self._limits.write_s):
                    await write(batch)
                self.counters.batches_sent += 1
                framing = FRAMING_BYTES
                for message in messages:
                    size = len(message.data) + ENVELOPE_BYTES + framing
                    self.counters.add_sent(KIND_NAMES[message.kind], size)
                    framing = 0
            else:
                self._wake.clear()
                wait_s = outbox.get_wait_s(time.monotonic())
                if wait_s is None:
                    await self._wake.wait()
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._wake.wait()


def _pop_batch(outbox: Outbox) -> list[Message]:
    messages: list[Message] = []
    num_bytes = 0
    now = time.monotonic()
    while len(messages) < MAX_BATCH_MESSAGES and num_bytes < FULL_BATCH_BYTES:
        message = outbox.pop(now)
        if message is None:
            break
        messages.append(message)
        num_bytes += len(message.data)
    return messages
