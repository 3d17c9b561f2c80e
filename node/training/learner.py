"""Keeps the worker busy with the right thing: applies the last finalised block, then trains for the current height,
with everything that training reads of earlier heights.

A straggler abandons its training when the height is finalised without it; what it learned stays in its own model. The
handle starts a new worker when one dies, and the learner repeats its request.

An aggregate that leaves the client without a finite loss, or that workers die of, is passed over: training goes on
from the client's own model. A client that has no model of its own yet begins from the newest older aggregate that
leaves it a finite loss. Training that fails is tried again with the next head, and on the same head no sooner than
RETRY_S later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from chain.block import Block, Id
from node.boundary import UNFORESEEN, Boundary
from node.training.exchange import Exchange
from node.training.trainer import (
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

RETRY_S = 60.0  # before training that has failed is tried again on the same head
DEADLY = 2  # workers that died over one head: then its aggregate is passed over
HOPELESS = 4  # and then training for the height has failed
MAX_RECALLED = 16  # older aggregates that a client without a model of its own is given to try

T = TypeVar("T")
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Target:
    """The state that the worker should come to: `head` applied and, if `trains`, one local phase for the next height
    done.

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

    def on_peer_refused(self, height: int, peer: Id, reason: str) -> None:
        """Hears that this peer's offer at this height would have harmed the client, and was not taken."""

    def on_spoiled(self, height: int, reason: str) -> None:
        """The aggregate of this height is not in the client's model, or not any more."""

    async def on_training_failed(self, height: int, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RoundInput:
    """The input of the worker from a final block: its aggregate, None where the method has none, and what was taken of
    single peers."""

    aggregate: bytes | None
    exchange: Exchange = NOTHING_TAKEN


@dataclass(frozen=True, slots=True)
class SpoiledAggregate:
    """The newest aggregate that is not in the client's model, and why."""

    height: int
    reason: str


class RoundInputs(Protocol):
    """The learner's source of what final blocks give."""

    async def gather(self, block: Block) -> RoundInput:
        """What the worker needs of a final block, however long it takes to get it."""

    async def prepare(self, height: int, head: Block) -> Exchange:
        """What the local phase for a height, on a head, reads of an earlier block."""

    async def recall(self, below: int) -> tuple[int, bytes] | None:
        """The newest aggregate below a height that is held here, with its own height."""


class Learner:
    """Runs one request at a time against the trainer, with what `inputs` gives, and reports to `listener`."""

    def __init__(
        self, trainer: Trainer, inputs: RoundInputs, listener: Listener, boundary: Boundary | None = None
    ) -> None:
        self.info: TrainerInfo | None = None
        self.failure: str | None = None  # why there is no worker any more
        self.trouble: str | None = None  # why training for the height in hand has failed
        self.spoiled: SpoiledAggregate | None = None  # while training goes on from the client's own model
        self.work: str | None = None  # what the worker does, or is about to, for a round
        self.progress: Progress | None = None  # of the local phase under way, once there is some to tell of
        self._trainer = trainer
        self._inputs = inputs
        self._listener = listener
        self._boundary = boundary or Boundary()
        self._target: Target | None = None
        self._given: tuple[Block, RoundInput] | None = None  # what is applied: the same again if the worker dies of it
        self._shared_sets: tuple[Block, Exchange] | None = None  # what is trained with, likewise
        self._changed = asyncio.Event()
        self.applied = -1  # height of the last aggregate that this worker process has dealt with
        self.metrics: Metrics = {}  # as measured then
        self._trained = -1
        self._has_model = False  # another than block 0's
        self._deaths: tuple[Block, int] | None = None  # of workers, over a head

    def __repr__(self) -> str:
        target = None if self._target is None else self._target.head.height
        return (
            f"Learner(target={target}, applied={self.applied}, trained={self._trained}, work={self.work!r}, "
            f"trouble={self.trouble!r}, failure={self.failure!r})"
        )

    def set_target(self, target: Target) -> None:
        if self._target is not None and self._target.head is not target.head:
            self.trouble = None
        self._target = target
        self.progress = None  # of what was wanted before
        self._changed.set()

    async def run(self) -> None:
        """Works towards the newest target until cancelled; a worker that cannot be kept alive ends training only."""
        try:
            self.info = await self._trainer.start()
            self._trained = self.info.trained_height
            self._has_model = self._trained > 0 or bool(self.info.checkpoint_height)
            log.info(
                "worker ready  device %s  %s  %d train / %d test samples  %d parameters",
                self.info.device,
                self.info.precision,
                self.info.num_train,
                self.info.num_test,
                self.info.parameters,
            )
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self.trouble is None else RETRY_S):
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
                self.trouble = None
        except TrainingFailed as error:
            self._shared_sets = None
            await self._on_failed(target, str(error))
        except WorkerDied as error:
            self.applied = -1
            if self._count_death(target.head) < HOPELESS:
                log.warning("the worker died and was started anew: %s", error)
                self._changed.set()
            else:
                await self._on_failed(target, str(error))
        finally:
            self.work = None

    async def _on_failed(self, target: Target, reason: str) -> None:
        height = target.head.height + 1
        level = logging.ERROR if self.trouble != reason else logging.DEBUG  # once, however often it is tried
        log.log(level, "round %d went on without this node's training: %s", height, reason)
        self.trouble = reason
        await self._listener.on_training_failed(height, reason)

    def _count_death(self, head: Block) -> int:
        count = 1 if self._deaths is None or self._deaths[0] is not head else self._deaths[1] + 1
        self._deaths = head, count
        return count

    async def _apply(self, head: Block) -> bool:
        """Whether the worker stands on `head` now: not if the target changed first or the pull was called off."""
        if head.height == 0 or self.applied == head.height:
            return True  # the trainer starts from block 0's aggregate, the initial model
        if self._given is None or self._given[0] is not head:
            self._given = None
            gathering = asyncio.create_task(self._inputs.gather(head))
            if not await self._unless_changed(gathering):
                return False
            self._given = head, gathering.result()
        self.metrics = await self._take_in(head, self._given[1])
        self._given = None
        self.applied = head.height
        self._listener.on_applied(head.height, self.metrics)
        return True

    async def _take_in(self, head: Block, given: RoundInput) -> Metrics:
        """What is measured once the aggregate is in the client's model, or was passed over."""
        if self._deaths is not None and self._deaths[0] is head and self._deaths[1] >= DEADLY:
            self._on_spoiled(head.height, f"{self._deaths[1]} workers have died over it")
            return await self._trainer.pass_over(head.height)
        try:
            applying = self._trainer.apply(
                head.height, given.aggregate, given.exchange, partial(self._listener.on_peer_refused, head.height)
            )
            metrics = await self._ask(applying)
        except TrainingFailed as error:
            self._on_spoiled(head.height, str(error))
            if not self._has_model:
                await self._take_older(head)
            return await self._trainer.pass_over(head.height)
        self._has_model = True
        if self.spoiled is not None and self.spoiled.height < head.height:
            log.info("applied the aggregate of round %d; aggregates before it were spoiled", head.height)
            self.spoiled = None
        return metrics

    async def _take_older(self, head: Block) -> None:
        """A client that has only block 0's model takes the newest aggregate before `head` that it can go on from."""
        below = head.height
        for _ in range(MAX_RECALLED):
            recalled = await self._inputs.recall(below)
            if recalled is None:
                return
            below, aggregate = recalled
            try:
                await self._ask(self._trainer.apply(below, aggregate))
            except TrainingFailed as error:
                log.debug("the aggregate of round %d could not be applied either: %s", below, error)
            else:
                log.info("training began from the aggregate of round %d", below)
                self._has_model = True
                return

    def _on_spoiled(self, height: int, reason: str) -> None:
        if self.spoiled is None or self.spoiled.height != height:
            self.spoiled = SpoiledAggregate(height, reason)
            self._listener.on_spoiled(height, reason)

    async def _get_ready(self, head: Block) -> bool:
        """Whether there is what training on `head` reads: not if the target changed first."""
        if self._shared_sets is None or self._shared_sets[0] is not head:
            self._shared_sets = None
            preparing = asyncio.create_task(self._inputs.prepare(head.height + 1, head))
            if not await self._unless_changed(preparing):
                return False
            self._shared_sets = head, preparing.result()
        return True

    async def _train(self, target: Target) -> None:
        head, height = target.head, target.head.height + 1
        training = asyncio.create_task(
            self._ask(
                self._trainer.train(
                    height,
                    head.id,
                    num_iterations=target.num_iterations,
                    shared=NOTHING_TAKEN if self._shared_sets is None else self._shared_sets[1],
                    on_progress=self._on_progress,
                )
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
            trained = training.result()
            self._trained, self._has_model = height, True
            if trained.went_back is not None:
                self._on_spoiled(head.height, f"training from it diverges: {trained.went_back}")
            await self._listener.on_trained(height, trained)

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        """The trainer's answer to what others' bytes are in. An error that nobody foresaw is a failure of it: what is
        asked may be asked again."""
        with self._boundary.around("training"):
            return await work
        raise TrainingFailed(UNFORESEEN)

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
