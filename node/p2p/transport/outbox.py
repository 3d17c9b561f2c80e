"""The outbox of one peer: a bounded first-in-first-out queue of messages to send, and the newest status.

A status makes every older one worthless, so only the newest waits, and it waits until the pace allows: the receiver
accepts only so many a second (PROTOCOL §7). A slow peer loses only the messages to itself.
"""

from __future__ import annotations

from collections import deque

from node.p2p.transport.base import Message, MessageKind

MAX_MESSAGES = 1024
MAX_BYTES = 4 << 20
STATUS_PER_S = 4.0
STATUS_BURST = 8.0
ROUNDING = 1e-9  # a wait for exactly one token must not end just below it


class TokenBucket:
    """Holds tokens: `rate` more a second, at most `burst` saved up. Times are seconds of one steady clock."""

    __slots__ = ("_burst", "_rate", "_tokens", "_updated_s")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._updated_s = now

    def __repr__(self) -> str:
        return f"TokenBucket(rate={self._rate}, burst={self._burst}, tokens={self._tokens:.1f})"

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Takes `amount` tokens if they are there. Returns whether they were."""
        self._refill(now)
        if self._tokens < amount - ROUNDING:
            return False
        self._tokens -= amount
        return True

    def borrow(self, now: float, amount: float) -> float:
        """Takes `amount` tokens in any case. Returns for how many seconds the taker should wait in return."""
        self._refill(now)
        self._tokens -= amount
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    def give(self, now: float, amount: float) -> None:
        """Adds `amount` tokens, as far as they can be saved up."""
        self._refill(now)
        self._tokens = min(self._burst, self._tokens + amount)

    def get_wait_s(self, now: float, amount: float = 1.0) -> float:
        """Returns the seconds until `amount` tokens will be there."""
        self._refill(now)
        return max(0.0, (amount - self._tokens) / self._rate)

    def _refill(self, now: float) -> None:
        if now > self._updated_s:
            self._tokens = min(self._burst, self._tokens + (now - self._updated_s) * self._rate)
            self._updated_s = now


class Outbox:
    """Queues messages for one peer. It neither sends nor sleeps: the transport calls `pop` for what it may send now."""

    def __init__(
        self,
        now: float,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        status_per_s: float = STATUS_PER_S,
        status_burst: float = STATUS_BURST,
    ) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._queue: deque[Message] = deque()
        self._bytes = 0
        self._status: Message | None = None
        self._status_rate = TokenBucket(status_per_s, status_burst, now)

    def __repr__(self) -> str:
        return f"Outbox(messages={len(self._queue)}, bytes={self._bytes}, status={self._status is not None})"

    def __len__(self) -> int:
        return len(self._queue) + (self._status is not None)

    def put(self, message: Message) -> bool:
        """Queues a message. Returns False if there is no room."""
        size = len(message.data)
        if message.kind is MessageKind.STATUS:
            self._status = message
            return True
        if len(self._queue) >= self._max_messages or self._bytes + size > self._max_bytes:
            return False
        self._queue.append(message)
        self._bytes += size
        return True

    def pop(self, now: float) -> Message | None:
        """Returns the next message that may be sent at `now`, if any."""
        if self._queue:
            message = self._queue.popleft()
            self._bytes -= len(message.data)
            return message
        if self._status is not None and self._status_rate.take(now):
            message, self._status = self._status, None
            return message
        return None

    def get_wait_s(self, now: float) -> float | None:
        """Returns the seconds until `pop` returns a message; None while none waits."""
        if self._queue:
            return 0.0
        return None if self._status is None else self._status_rate.get_wait_s(now)

    def clear(self) -> int:
        """Drops everything that waits. Returns how many messages that were."""
        count = len(self)
        self._queue.clear()
        self._bytes = 0
        self._status = None
        return count
