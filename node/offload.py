"""Keeps blocking work (disk, hashing, arithmetic on arrays) off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

SMALL_BYTES = 1 << 18  # work on so little is done before a busy thread would begin it

P = ParamSpec("P")
T = TypeVar("T")


class Offload(Protocol):
    """Runs a blocking function elsewhere and awaits what it returns or raises."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def close(self) -> None: ...


class ThreadOffload:
    """Runs functions on one thread with a queue: calls keep their order, as the store's single connection needs."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Shielded: a cancelled caller must not leave a half-awaited write behind; the call itself always finishes.
        future = asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))
        return await asyncio.shield(future)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


async def run_sized(offload: Offload, num_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `function`, whose work grows with `num_bytes`: here if that is little, else on `offload`."""
    if num_bytes <= SMALL_BYTES:
        return function(*args, **kwargs)
    return await offload.run(function, *args, **kwargs)


async def run_on_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs the function off the event loop. A cancelled caller waits for its end, so that no two run at once."""
    working = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    finally:
        if not working.done():
            await asyncio.wait({working})
            working.exception()  # marks the error as seen
