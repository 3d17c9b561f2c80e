"""Patience with a blob: until when peers are asked for it, if there is an end to that, and the rests in between."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

RETRY_S = (0.02, 0.1, 0.25, 0.5, 1.0)  # the rests of a patience without end; the last repeats
AGAIN_S = (0.02, 0.1)  # the rests of a bounded patience
COMING_S = 0.25  # the rests after AGAIN_S, while a peer says that it will have the blob soon
FIRST_PROMISES = 2  # promises of a blob soon after which no more peers are asked; doubled each time they are not kept
VAIN_SHARE = 0.25  # of the time there is: promises that were not kept by then count as broken


@dataclass(slots=True)
class Patience:
    """The patience with one blob. Received bytes extend it by the time that they may take at `bytes_per_s`. If it is
    bounded, a peer without the blob is not asked again; `leaves_liars_out` says whether a peer that serves another blob
    is asked again."""

    until_s: float = math.inf
    bytes_per_s: float = math.inf
    keeps_s: float = 0.0  # the time in which a promise may be kept
    num_rests: int = 0
    max_promises: int = FIRST_PROMISES
    promised_s: float | None = None  # when the promises under way were made
    leaves_liars_out: bool = True

    @property
    def is_bounded(self) -> bool:
        return self.until_s < math.inf

    @classmethod
    def begin(cls, patience_s: float, max_bytes: int, bytes_per_s: float) -> Patience:
        """Returns the patience that begins now, with a blob of at most `max_bytes`."""
        until_s = asyncio.get_running_loop().time() + patience_s
        return cls(until_s, bytes_per_s, min(max_bytes / bytes_per_s, VAIN_SHARE * patience_s))

    def on_promises(self, num_promises: int) -> None:
        """Handles that so many peers have promised the blob soon: each of them pulls it for this node. Few are asked at
        first: if all were asked, and all that they ask in turn, a blob that few want would go to everybody."""
        now_s = asyncio.get_running_loop().time()
        if num_promises < self.max_promises:
            return
        if self.promised_s is None:
            self.promised_s = now_s
        elif now_s - self.promised_s >= self.keeps_s:
            self.promised_s, self.max_promises = now_s, 2 * self.max_promises

    def add(self, num_bytes: int) -> None:
        self.until_s += num_bytes / self.bytes_per_s

    async def rest(self, *, is_coming: bool) -> bool:
        """Rests before all peers are asked again. Returns False at once if that is not worth it, or the time is
        over."""
        if self.is_bounded and self.num_rests >= len(AGAIN_S) and not is_coming:
            return False
        pauses = (*AGAIN_S, COMING_S) if self.is_bounded else RETRY_S
        pause_s = pauses[min(self.num_rests, len(pauses) - 1)]
        if asyncio.get_running_loop().time() + pause_s >= self.until_s:
            return False
        self.num_rests += 1
        await asyncio.sleep(pause_s)
        return True
