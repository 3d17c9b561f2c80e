"""An event loop whose clock jumps to the next timer when nothing is ready: an hour of waiting costs a millisecond.

Code under it uses asyncio's own time only (`loop.time`, `sleep`, `wait_for`, `call_later`). Work handed to executor
threads takes real time, during which the virtual clock stands still; sockets are not supported. Two runs of the same
seeded program see the same times in the same order, as long as nothing depends on which of several threads is first.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

DEADLOCK_AFTER_S = 5.0  # of real time, with no timer, no thread and nothing ready

TICK_S = 1e-9  # the least step of the clock, so that rounding never makes a timer wait without time passing


class Deadlock(RuntimeError):
    """Every task waits for something that will never happen."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that waits in real time only for threads; otherwise it moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.threads_at_work = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if events or timeout == 0:
            return events
        if self.threads_at_work:
            return super().select(1.0)
        if timeout is None:
            events = super().select(DEADLOCK_AFTER_S)
            if not events:
                raise Deadlock("no task is ready, no timer is set and no thread is at work")
            return events
        self.now_s += max(TICK_S, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector loop in virtual time, starting at 0 seconds."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]  # typeshed's variadic generics say the same in other words
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._jumping.threads_at_work += 1
        future.add_done_callback(self._on_thread_done)
        return future

    def _on_thread_done(self, _: asyncio.Future[T]) -> None:
        self._jumping.threads_at_work -= 1


def run_virtual(main: Coroutine[Any, Any, T], timeout_s: float = 3600.0) -> T:
    """Runs `main` in a fresh loop to its end; TimeoutError after `timeout_s` virtual seconds."""

    async def limited() -> T:
        async with asyncio.timeout(timeout_s):
            return await main

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(limited())
