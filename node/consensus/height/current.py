"""The chain's tip, the round on top of it, and the queue of events for that round.

Every part of a node reads the tip and the machine here. All that comes in is queued, and the round service handles one
item at a time: so the machine sees one event at a time, and no two steps sign or commit at once. `Committer` alone
moves the tip, `RoundService` alone sets the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chain.tip import Tip
from node.consensus.height.actions import Event
from node.consensus.height.final_block import FinalBlock
from node.consensus.height.machine import RoundMachine


@dataclass(frozen=True, slots=True)
class Adopted:
    """Carries final blocks that this node fetched from peers. `done` is set once those that follow the tip are
    appended."""

    blocks: Sequence[FinalBlock]
    done: asyncio.Future[None]


Step = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Posted:
    """Carries an event for the round at `height`. It is dropped if its turn comes in another round."""

    height: int
    event: Event


class CurrentRound:
    """Holds the tip and the round of one node. `machine` is None before the first round."""

    def __init__(self, tip: Tip) -> None:
        self.tip = tip
        self.machine: RoundMachine | None = None
        self._queue: asyncio.Queue[Posted | Adopted | Step] = asyncio.Queue()

    @property
    def num_waiting(self) -> int:
        """Returns the number of queued items."""
        return self._queue.qsize()

    def post(self, height: int, event: Event) -> None:
        """Queues an event for the round at `height`. It is dropped if its turn comes in another round."""
        self._queue.put_nowait(Posted(height, event))

    async def adopt(self, blocks: Sequence[FinalBlock]) -> None:
        """Queues final blocks, and returns when those that follow the tip are appended."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Adopted(blocks, done))
        await done

    def call(self, step: Step) -> None:
        """Queues a step of another kind."""
        self._queue.put_nowait(step)

    def fail(self, error: BaseException) -> None:
        """Queues an error of a background task, which then ends the service."""
        self.call(partial(_raise, error))

    async def next(self) -> Posted | Adopted | Step:
        """Waits for the next item of the queue and returns it."""
        return await self._queue.get()

    def __repr__(self) -> str:
        phase = "done" if self.machine is None else self.machine.phase.value
        return f"<CurrentRound on {self.tip.height}: {phase}, {self.num_waiting} waiting>"


async def _raise(error: BaseException) -> None:
    raise error
