"""Patience with a blob that one can do without: until when peers are asked for it, and the rests in between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

AGAIN_S = (0.02, 0.1)  # rests between rounds of asking everybody
COMING_S = 0.25  # the rests after these, for as long as a peer says that it will have the blob soon


@dataclass(slots=True)
class Patience:
    """For one blob. What comes of it earns it more time, as much as it may take at `bytes_per_s`."""

    until_s: float
    bytes_per_s: float
    num_rests: int = 0

    def add(self, num_bytes: int) -> None:
        self.until_s += num_bytes / self.bytes_per_s

    async def rest(self, *, is_coming: bool) -> bool:
        """Rests before everybody is asked again. False at once where it is not worth it, or the time is over."""
        if self.num_rests >= len(AGAIN_S) and not is_coming:
            return False
        pause_s = AGAIN_S[self.num_rests] if self.num_rests < len(AGAIN_S) else COMING_S
        if asyncio.get_running_loop().time() + pause_s >= self.until_s:
            return False
        self.num_rests += 1
        await asyncio.sleep(pause_s)
        return True
