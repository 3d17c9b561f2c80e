"""Signals to a process: to stop, and to reload its configuration."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def watch_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Returns two events: one that a signal to stop sets, and one that SIGHUP sets."""
    stopped, hung_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    return stopped, hung_up


async def run_until(stopped: asyncio.Event, *parts: Coroutine[Any, Any, None]) -> BaseException | None:
    """Runs the parts of a process until `stopped` is set. Returns the failure of a part before that, None where there
    was none."""

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)

    running = asyncio.create_task(run(), name="parts")
    stopping = asyncio.create_task(stopped.wait(), name="stop")
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
    return None if running.cancelled() else running.exception()
