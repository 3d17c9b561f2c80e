"""Crossing candidates: for how long a candidate that nobody is missing from is kept from the vote, since others may be
on their way (PROTOCOL §4, view 0).

Where mining takes less than a few round trips several members find a block before they hear of each other's. Whoever
prevotes the first one it sees then splits view 0. How far apart candidates arrive is measured at each height: as long
as is usual, and half as long again, is waited before the best of them is prevoted, and Delta at most. Where mining
takes longer there is one candidate a height, and no wait.
"""

from __future__ import annotations

from collections import deque
from statistics import median

HEIGHTS = 9  # the newest, which say what is usual
MARGIN = 1.5  # times that


class Crossing:
    """What one node has seen of its last heights."""

    def __init__(self) -> None:
        self._seen_s: deque[float] = deque(maxlen=HEIGHTS)

    def compute_wait_s(self, delta_s: float) -> float:
        """The wait, of `delta_s` at most, and of that while nothing was seen."""
        return min(delta_s, MARGIN * median(self._seen_s)) if self._seen_s else delta_s

    def add(self, apart_s: float | None) -> None:
        """How long after the first acceptable candidate of a height the last one came; None where there was none."""
        if apart_s is not None:
            self._seen_s.append(apart_s)
