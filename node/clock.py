"""Time as a node sees it, handed in so that tests can control it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Returns wall time for signed objects, and monotonic time for measuring and waiting."""

    def now_ms(self) -> int:
        """Returns milliseconds since 1970-01-01 UTC; may jump when the host's clock is set."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since some fixed point; never goes back."""
        ...


class SystemClock:
    """Reads the host's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
