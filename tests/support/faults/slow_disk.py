"""A disk that takes virtual time, so that everything else can happen while a node waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SlowDisk:
    """Runs one call at a time, in order; each takes up to `most_s`, and reports its end up to `most_s` later.

    As with a thread, a call continues when its caller is cancelled; `close` ends the process.
    """

    def __init__(self, rng: Random, most_s: float = 0.004) -> None:
        self._rng = rng
        self._most_s = most_s
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._work(lambda: function(*args, **kwargs), done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await done

    async def _work(self, call: Callable[[], T], done: asyncio.Future[T]) -> None:
        async with self._lock:
            await asyncio.sleep(self._rng.uniform(0, self._most_s))
            failure: Exception | None = None
            try:
                result = call()
            except Exception as error:  # noqa: BLE001  # whatever it is, it is the caller's
                failure = error
            await asyncio.sleep(self._rng.uniform(0, self._most_s))
        if done.done():
            return  # the caller has been cancelled
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
