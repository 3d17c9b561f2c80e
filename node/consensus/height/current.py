"""The chain's tip, the round on top of it, and the queue of what is to happen to that round.

Every part of a node sees the same tip and the same machine here. Whatever comes in is queued, and the round service
takes one step at a time: so the machine sees one event at a time, and nothing is signed or committed at once with
anything else. `Committer` alone moves the tip, `RoundService` alone sets the machine.
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
    """Final blocks that this node was not there for; `done` once those that follow the tip are appended."""

    blocks: Sequence[FinalBlock]
    done: asyncio.Future[None]


Step = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Posted:
    """An event for the round at `height`, which is dropped if another is in hand when its turn comes."""

    height: int
    event: Event


class CurrentRound:
    """One node's. `machine` is None once the set rounds are done."""

    def __init__(self, tip: Tip) -> None:
        self.tip = tip
        self.machine: RoundMachine | None = None
        self._queue: asyncio.Queue[Posted | Adopted | Step] = asyncio.Queue()

    @property
    def num_waiting(self) -> int:
        """Steps that nobody has taken yet."""
        return self._queue.qsize()

    def post(self, height: int, event: Event) -> None:
        """Hands an event to the round at `height`, if that is still the one in hand when its turn comes."""
        self._queue.put_nowait(Posted(height, event))

    async def adopt(self, blocks: Sequence[FinalBlock]) -> None:
        """Has those of some final blocks appended that follow the tip, once it is their turn."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Adopted(blocks, done))
        await done

    def call(self, step: Step) -> None:
        """Has a step of another kind made in its turn."""
        self._queue.put_nowait(step)

    def fail(self, error: BaseException) -> None:
        """What went wrong in a task of its own ends the service, where it is heard."""
        self.call(partial(_raise, error))

    async def next(self) -> Posted | Adopted | Step:
        """What comes next, once there is something."""
        return await self._queue.get()

    def __repr__(self) -> str:
        phase = "done" if self.machine is None else self.machine.phase.value
        return f"<CurrentRound on {self.tip.height}: {phase}, {self.num_waiting} waiting>"


async def _raise(error: BaseException) -> None:
    raise error
