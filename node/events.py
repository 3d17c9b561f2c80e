"""The log of events in this node, in order and bounded; a reader can resume it where it stopped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from node.clock import Clock

KEPT = 4096


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event. `cursor` counts from 1; `kind` is as in admin.proto."""

    cursor: int
    at_ms: int
    kind: str
    data: Mapping[str, Any]


class Events:
    """Keeps the last `KEPT` events. Publishing never waits; a reader that is too slow misses the oldest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: deque[NodeEvent] = deque(maxlen=KEPT)
        self._cursor = 0
        self._published = asyncio.Event()

    def __repr__(self) -> str:
        return f"Events(cursor={self._cursor}, kept={len(self._kept)})"

    @property
    def kept(self) -> tuple[NodeEvent, ...]:
        """Returns the events that a reader can still get, the oldest first."""
        return tuple(self._kept)

    def publish(self, kind: str, **data: Any) -> None:
        self._cursor += 1
        self._kept.append(NodeEvent(self._cursor, self._clock.now_ms(), kind, data))
        self._published.set()
        self._published = asyncio.Event()

    async def follow(self, since: int | None = None) -> AsyncIterator[NodeEvent]:
        """Yields every event after cursor `since` that is still kept, then each new one; None: only new ones."""
        seen = self._cursor if since is None else since
        while True:
            published = self._published
            num_new = max(0, self._cursor - seen)  # cursors have no gaps
            for event in [*islice(reversed(self._kept), num_new)][::-1]:
                seen = event.cursor
                yield event
            if self._cursor <= seen or not self._kept:
                await published.wait()
