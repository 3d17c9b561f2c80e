"""Shared answers: a request that many pages send is answered from one result, which is kept as bytes for about a
second."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from node.clock import Clock

AGE_S = 0.9  # a page shows no older answer, and a hundred pages cost no more than one
MAX_KEPT = 64
MAX_KEPT_BYTES = 1 << 20  # of one answer; a larger one is made for each caller


class _Kept(NamedTuple):
    until_s: float
    answer: asyncio.Task[bytes]


class SharedAnswers:
    """Keeps the answers of one node, by the request. Failures are not kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def __repr__(self) -> str:
        return f"SharedAnswers({len(self._kept)})"

    async def get(self, key: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Returns the answer that is kept or being made, else makes a new one. Raises what `make` raises."""
        kept = self._kept.get(key)
        if kept is None or kept.until_s < self._clock.monotonic():
            kept = _Kept(self._clock.monotonic() + AGE_S, asyncio.ensure_future(_call(make)))
            self._kept[key] = kept
            self._kept.move_to_end(key)
            kept.answer.add_done_callback(lambda done: self._drop_if_poor(key, done))
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return await asyncio.shield(kept.answer)

    def clear(self) -> None:
        """Drops all answers, after a change that they do not show."""
        self._kept.clear()

    def _drop_if_poor(self, key: str, done: asyncio.Task[bytes]) -> None:
        is_poor = done.cancelled() or done.exception() is not None or len(done.result()) > MAX_KEPT_BYTES
        if is_poor and (kept := self._kept.get(key)) is not None and kept.answer is done:
            del self._kept[key]


async def _call(make: Callable[[], Awaitable[bytes]]) -> bytes:
    return await make()
