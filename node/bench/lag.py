"""How late an event loop is with what is due: what everything else on it waits for."""

from __future__ import annotations

import asyncio
import time
from typing import NoReturn

LOOKS_PER_S = 100.0


async def watch_loop(lags: list[float]) -> NoReturn:
    """Until cancelled; `lags` are seconds."""
    while True:
        began_s = time.monotonic()
        await asyncio.sleep(1 / LOOKS_PER_S)
        lags.append(max(0.0, time.monotonic() - began_s - 1 / LOOKS_PER_S))
