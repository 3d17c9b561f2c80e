"""Keeps the worker busy with the right thing: apply what was finalised last, then train for the height in hand, with
whatever that reads of earlier heights.

A straggler abandons its training when the height is finalised without it; what it learned stays in its own model. A
worker that dies is started anew by its handle, and what was asked of it is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from chain.block import Block
from node.exchange import Exchange
from node.trainer import (
    NOTHING_TAKEN,
    Progress,
    Trained,
    Trainer,
    TrainerInfo,
    TrainingAbandoned,
    TrainingFailed,
    WorkerDied,
    WorkerFailed,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Target:
    """What the worker should come to: `head` applied and, if `trains`, one local phase for the next height done.

    `has_contributed`: this node's contribution to that height is durable already, from before a restart.
    `num_iterations` is the phase's E, the same however often it is repeated; None is the method's own number.
    """

    head: Block
    trains: bool
    has_contributed: bool = False
    num_iterations: int | None = None


class Listener(Protocol):
    """Whom the learner reports to."""

    async def on_trained(self, height: int, trained: Trained) -> None: ...

    def on_applied(self, height: int, metrics: Metrics) -> None: ...

    async def on_training_failed(self, height: int, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Given:
    """What a final block gives the worker: its aggregate, None where the method has none, and what was taken of single
    peers."""

    aggregate: bytes | None
    exchange: Exchange = NOTHING_TAKEN


async def prepare_nothing(height: int, head: Block) -> Exchange:
    """For methods whose local phase reads no earlier block."""
    return NOTHING_TAKEN


class Learner:
    """Runs one request at a time against the trainer. `gather` returns what a block gives, however long it takes to get
    it; `prepare` what the local phase for a height, on a head, reads of an earlier block."""

    def __init__(
        self,
        trainer: Trainer,
        gather: Callable[[Block], Coroutine[Any, Any, Given]],
        listener: Listener,
        *,
        prepare: Callable[[int, Block], Coroutine[Any, Any, Exchange]] = prepare_nothing,
    ) -> None:
        self.info: TrainerInfo | None = None
        self.failure: str | None = None  # why there is no worker any more
        self.work: str | None = None  # what the worker does, or is about to, for a round
        self.progress: Progress | None = None  # of the local phase under way, once there is some to tell of
        self._trainer = trainer
        self._gather = gather
        self._prepare = prepare
        self._listener = listener
        self._target: Target | None = None
        self._given: tuple[Block, Given] | None = None  # what is being applied: the same again if the worker dies of it
        self._standing: tuple[Block, Exchange] | None = None  # what is trained with, likewise
        self._changed = asyncio.Event()
        self.applied = -1  # height of the last aggregate applied by this worker process
        self.metrics: Metrics = {}  # as measured then
        self._trained = -1

    def set_target(self, target: Target) -> None:
        self._target = target
        self.progress = None  # of what was wanted before
        self._changed.set()

    async def run(self) -> None:
        """Works towards the newest target until cancelled; a worker that cannot be kept alive ends training only."""
        try:
            self.info = await self._trainer.start()
            self._trained = self.info.trained_height
            log.info(
                "worker ready  device %s  %s  %d train / %d test samples  %d parameters",
                self.info.device,
                self.info.precision,
                self.info.num_train,
                self.info.num_test,
                self.info.parameters,
            )
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._target is not None:
                    await self._approach(self._target)
        except WorkerFailed as error:
            log.error("training stopped: %s", error)
            await self._give_up(str(error))

    async def _give_up(self, reason: str) -> None:
        self.failure = reason
        while True:
            if self._target is not None:
                await self._listener.on_training_failed(self._target.head.height + 1, reason)
            self._changed.clear()
            await self._changed.wait()

    async def _approach(self, target: Target) -> None:
        try:
            if target.has_contributed and self._trained > target.head.height:
                return  # the checkpoint holds that training: there is nothing to do for this height but wait
            self.work = f"the aggregate of round {target.head.height} is being taken in"
            if not (await self._apply(target.head) and target.trains) or self._changed.is_set():
                return
            self.work = f"what training for round {target.head.height + 1} reads is being gathered"
            if await self._get_ready(target.head) and not self._changed.is_set():
                self.work = f"training for round {target.head.height + 1} is under way"
                await self._train(target)
        except TrainingFailed as error:
            self._standing = None
            log.error("round %d goes on without this node's training: %s", target.head.height + 1, error)
            await self._listener.on_training_failed(target.head.height + 1, str(error))
        except WorkerDied as error:
            log.warning("worker died and is started anew: %s", error)
            self.applied = -1
            self._changed.set()
        finally:
            self.work = None

    async def _apply(self, head: Block) -> bool:
        """Whether the worker stands on `head` now: not if the target changed first or the pull was called off."""
        if head.height == 0 or self.applied == head.height:
            return True  # the trainer starts from block 0's aggregate, the initial model
        if self._given is None or self._given[0] is not head:
            self._given = None
            gathering = asyncio.create_task(self._gather(head))
            if not await self._unless_changed(gathering):
                return False
            self._given = head, gathering.result()
        given = self._given[1]
        self.metrics = await self._trainer.apply(head.height, given.aggregate, given.exchange)
        self._given = None
        self.applied = head.height
        self._listener.on_applied(head.height, self.metrics)
        return True

    async def _get_ready(self, head: Block) -> bool:
        """Whether there is what training on `head` reads: not if the target changed first."""
        if self._standing is None or self._standing[0] is not head:
            self._standing = None
            preparing = asyncio.create_task(self._prepare(head.height + 1, head))
            if not await self._unless_changed(preparing):
                return False
            self._standing = head, preparing.result()
        return True

    async def _train(self, target: Target) -> None:
        head, height = target.head, target.head.height + 1
        training = asyncio.create_task(
            self._trainer.train(
                height,
                head.id,
                num_iterations=target.num_iterations,
                standing=NOTHING_TAKEN if self._standing is None else self._standing[1],
                on_progress=self._on_progress,
            )
        )
        try:
            is_done = await self._unless_changed(training, lambda: self._is_final(height) and self._trainer.abandon())
        except TrainingAbandoned:
            log.info("round %d was over before this node's training, which was broken off", height)
            return
        finally:
            self.progress = None
        if is_done:
            self._trained = height
            await self._listener.on_trained(height, training.result())

    def _is_final(self, height: int) -> bool:
        return self._target is not None and self._target.head.height >= height

    def _on_progress(self, progress: Progress) -> None:
        self.progress = progress

    async def _unless_changed(self, task: asyncio.Task[T], let_go: Callable[[], bool] = lambda: False) -> bool:
        """Waits for `task`, or ends it when the target changes first: by `let_go`, if that says it will, else by
        cancelling. Whether it finished; raises what it raised."""
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and let_go():
                await asyncio.wait({task})
        finally:
            changed.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            return False
        task.result()
        return True
