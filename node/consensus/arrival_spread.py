"""Crossing candidates: the time for which a complete candidate is kept from the vote, since other members may have
mined one at the same time (PROTOCOL §4, view 0).

If mining takes less than a few round trips, several members find a block before another's arrives. If each of them
prevoted the first that it sees, view 0 would split. So each node measures at every height how far apart candidates
arrive, and waits 1.5 times the usual time, Delta at most, before it prevotes the best. If mining takes longer, there is
one candidate a height and no wait.
"""

from __future__ import annotations

from collections import deque
from statistics import median

HEIGHTS = 9  # the newest heights, whose median is usual
MARGIN = 1.5  # times the median


class ArrivalSpread:
    """Measures how far apart the candidates of the last heights arrived."""

    def __init__(self) -> None:
        self._seen_s: deque[float] = deque(maxlen=HEIGHTS)

    def compute_wait_s(self, delta_s: float) -> float:
        """Returns the seconds to wait: `delta_s` at most, and `delta_s` if nothing was measured yet."""
        return min(delta_s, MARGIN * median(self._seen_s)) if self._seen_s else delta_s

    def add(self, apart_s: float | None) -> None:
        """Adds the seconds between a height's first acceptable candidate and its last one; None if there was none."""
        if apart_s is not None:
            self._seen_s.append(apart_s)
