"""Many values of one thing in a few, and how late an event loop is with what is due."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Sequence
from typing import NoReturn

from node.errors import NodeError

LOOKS_PER_S = 100.0


def describe_tail(values: Sequence[float]) -> dict[str, float]:
    """Of what has a long tail, as delays have. Raises NodeError where nothing was seen."""
    if not values:
        raise NodeError("expected something to have been seen in that time; give it more --seconds")
    return {
        "count": len(values),
        "median": statistics.median(values),
        "p99": get_quantile(values, 0.99),
        "max": max(values),
    }


def get_quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that so large a share of them is not above."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


async def watch_loop(lags: list[float]) -> NoReturn:
    """Until cancelled; `lags` are seconds."""
    while True:
        began_s = time.monotonic()
        await asyncio.sleep(1 / LOOKS_PER_S)
        lags.append(max(0.0, time.monotonic() - began_s - 1 / LOOKS_PER_S))
