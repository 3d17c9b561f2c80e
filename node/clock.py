"""Time as a node sees it, handed in so that tests can own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is signed, a monotonic clock for what is measured and awaited."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump when the host's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...


class SystemClock:
    """The host's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
