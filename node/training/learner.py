"""Keeps the worker at the right work: has it begin the run in force, apply the last finalised round, then train for the
next, with everything that training reads of earlier rounds.

The worker receives runs and rounds alone. A change takes a height and no round, so the worker's present work goes on,
and counts for the next height. When another run comes into force, the worker restarts with that.

A straggler abandons its training when the round is finalised without it; what it learned stays in its own model. The
trainer starts a new worker when one dies, and the learner repeats its request.

An aggregate that leaves the client without a finite loss, or that workers die of, is passed over: training goes on from
the client's own model. A client that has no model of its own yet begins from the newest older aggregate that leaves it
a finite loss. Training that fails is repeated with the next head, and on the same head no sooner than RETRY_S later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from chain.beacon import compute_beacon
from chain.block import Block
from chain.calendar import Place
from node.boundary import UNFORESEEN, Boundary
from node.training.exchange import Exchange
from node.training.progress import Progress
from node.training.target import Listener, RoundInput, RoundInputs, RunTerms, SpoiledAggregate, Target
from node.training.trainer import (
    NOTHING_TAKEN,
    AnswerRefused,
    Measured,
    Metrics,
    Trained,
    Trainer,
    TrainerInfo,
    TrainingAbandoned,
    TrainingFailed,
    WorkerDied,
    WorkerFailed,
)

log = logging.getLogger(__name__)

RETRY_S = 60.0  # pause before failed training is repeated on the same head
LOOK_AGAIN_S = 5.0  # pause between checks, while there is nothing else to do, whether training alone has caught up
DEADLY = 2  # after so many workers died over one head its aggregate is passed over
HOPELESS = 4  # after so many, training for the height has failed
STARTING = "it is being started, imports the model and reads the data"
MAX_RECALLED = 16  # older aggregates that a client without a model of its own may try

T = TypeVar("T")


class Learner:
    """Sends one request at a time to the trainer, with the inputs that `inputs` returns, and reports to `listener`."""

    def __init__(
        self, trainer: Trainer, inputs: RoundInputs, listener: Listener, boundary: Boundary | None = None
    ) -> None:
        self.info: TrainerInfo | None = None  # of the worker, once it is ready
        self.run_number: int | None = None  # the run that the worker is in, is about to begin, or has failed to begin
        self.failure: str | None = None  # why there is no worker any more in this run
        self.trouble: str | None = None  # why training for the height in hand has failed
        self.spoiled: SpoiledAggregate | None = None  # while training goes on from the client's own model
        self.work: str | None = None  # what the worker does, or is about to, for a round
        self.progress: Progress | None = None  # of the local phase under way, once there is some to report
        self.data_change: str | None = None  # how the site's data differ from those trained on before
        self._trainer = trainer
        self._inputs = inputs
        self._listener = listener
        self._boundary = boundary or Boundary()
        self._target: Target | None = None
        self._terms: RunTerms | None = None  # the terms that the worker was built by
        self._given: tuple[Place, RoundInput] | None = None  # being applied; used again if the worker dies
        self._shared_sets: tuple[Block, Exchange] | None = None  # the blobs that training reads, likewise
        self._changed = asyncio.Event()
        self.applied = -1  # the newest height that this worker process has applied or passed over, and measured
        self.metrics: Metrics = {}  # measured then
        self._applied = -1  # the newest such round of the run, measured or not
        self._unmeasured: tuple[int, int] | None = None  # the heights of an applied round and of its head
        self._lagging: int | None = None  # the height of a round that training alone had not caught up with
        self._trained = -1
        self._has_model = False  # a model other than the initial one
        self._deaths: tuple[Place, int] | None = None  # how many workers died over a round

    def __repr__(self) -> str:
        target = None if self._target is None else self._target.head.height
        return (
            f"Learner(target={target}, run={self.run_number}, applied={self.applied}, trained={self._trained}, "
            f"work={self.work!r}, "
            f"trouble={self.trouble!r}, failure={self.failure!r})"
        )

    @property
    def last_death(self) -> str | None:
        return self._trainer.last_death

    def set_target(self, target: Target) -> None:
        before, self._target = self._target, target
        if before is not None and before.head is not target.head:
            self.trouble = None
        if self.work is not None and before is not None and target.wants_as(before):
            return  # a change took the height: the work under way goes on for the next
        self.progress = None  # it belonged to the earlier target
        self._changed.set()

    def retry(self) -> bool:
        """Restarts a run for which no worker could be kept alive, as where a site had no samples. Returns whether there
        is such a run."""
        if self.failure is None:
            return False
        self.failure = self._terms = None
        self._changed.set()
        return True

    async def run(self) -> None:
        """Works towards the newest target until cancelled. A worker that cannot be kept alive only ends the training of
        its run."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._get_patience_s()):
                    await self._changed.wait()
            if self.trouble is None and not self._changed.is_set():
                await self._report_caught_up()
                continue
            self._changed.clear()
            if self._target is not None:
                await self._approach(self._target)

    def _get_patience_s(self) -> float | None:
        if self.trouble is not None:
            return RETRY_S
        return None if self._lagging is None else LOOK_AGAIN_S

    async def _report_caught_up(self) -> None:
        """Reports training alone once it has caught up: after a run's last round nothing else would."""
        height, self._lagging = self._lagging, None
        measured = await self._measure()
        if _lags(measured):
            self._lagging = height
        elif height is not None and measured.alone is not None:
            self._listener.on_measured(height, measured)

    async def _approach(self, target: Target) -> None:
        try:
            if not await self._begin_run(target) or target.only_starts:
                return
            if target.has_contributed and self._trained > target.made.round:
                return  # the checkpoint holds that training: there is nothing to do for this round but wait
            self.work = f"the aggregate of round {target.made.round} is being taken in"
            if await self._apply(target):
                await self._train(target)
                self.work = None
                await self._tell_measured()
        except TrainingFailed as error:
            await self._tell_measured()
            self._shared_sets = None
            await self._on_failed(target, str(error))
        except WorkerDied as error:
            self._report_measured(Measured())
            self.applied = self._applied = -1
            if self._count_death(target.made) < HOPELESS:
                log.warning("the worker died and was started anew: %s", error)
                self._changed.set()
            else:
                await self._on_failed(target, str(error))
        except WorkerFailed as error:
            log.error("training stopped: %s", error)
            self.info, self.failure = None, str(error)
            self._report_measured(Measured())
            await self._tell_failed(target, str(error))
        finally:
            self.work = None

    # ---- a run begins

    async def _begin_run(self, target: Target) -> bool:
        """Begins the target's run. Returns whether a worker is in that run: not if it failed, or the target changed
        before."""
        if self._terms == target.terms:
            if self.failure is not None:
                await self._tell_failed(target, self.failure)
            return self.failure is None
        if not target.may_start:
            if target.only_starts:
                await self._trainer.warm_up()
            return False
        self.work = f"what run {target.run.number} begins from is being gathered"
        opening = asyncio.create_task(self._ask(self._inputs.open_run(target.state)))
        if not await self._unless_changed(opening):
            return False
        self._leave_run(target)
        self.work = STARTING
        self.info = await self._trainer.start(opening.result())
        self.data_change = self.info.data_change
        self._trained = self.info.trained_round
        self._has_model = self._trained > 0 or bool(self.info.checkpoint_round)
        log.info(
            "worker ready  run %d  device %s  %s  %d train / %d test%s samples  %d parameters",
            target.run.number,
            self.info.device,
            self.info.precision,
            self.info.num_train,
            self.info.num_test,
            f" / {self.info.num_val} val" if self.info.num_val else "",
            self.info.parameters,
        )
        return not self._changed.is_set()

    def _leave_run(self, target: Target) -> None:
        """Clears what is known of the worker before."""
        if self.run_number != target.run.number:
            self.spoiled, self.metrics = None, {}
        self.run_number, self._terms = target.run.number, target.terms
        self.info = self.failure = self._given = self._shared_sets = self._deaths = self._unmeasured = None
        self._lagging = None
        self.applied = self._applied = -1

    async def _tell_failed(self, target: Target, reason: str) -> None:
        """Notifies the listener that the height in hand goes on without this node's training."""
        height = target.height if self._target is None else self._target.height
        await self._listener.on_training_failed(height, reason)

    async def _on_failed(self, target: Target, reason: str) -> None:
        level = logging.ERROR if self.trouble != reason else logging.DEBUG  # once, however often it is tried
        log.log(level, "round %d went on without this node's training: %s", target.made.round + 1, reason)
        self.trouble = reason
        await self._tell_failed(target, reason)

    def _count_death(self, made: Place) -> int:
        count = 1 if self._deaths is None or self._deaths[0] != made else self._deaths[1] + 1
        self._deaths = made, count
        return count

    # ---- a round is applied

    async def _apply(self, target: Target) -> bool:
        """Applies the target's last round, unless it is applied. Returns whether it is: not if the target changed
        before, or the pull was cancelled."""
        made, height = target.made, target.made_height
        if made.round == 0 or self._applied == made.round:
            self.applied = target.head.height or -1
            return True  # the trainer starts from the initial model
        if self._given is None or self._given[0] != made:
            self._given = None
            gathering = asyncio.create_task(self._inputs.gather(height))
            if not await self._unless_changed(gathering):
                return False
            self._given = made, gathering.result()
        self.metrics = await self._take_in(made, height, self._given[1])
        self._given = None
        self._applied, self._unmeasured = made.round, (height, target.head.height)
        self._listener.on_applied(height, self.metrics)
        return True

    async def _tell_measured(self) -> None:
        """Reports the measures of the model after a round. Others wait for this node's training and nobody for the
        measures, so these come after it."""
        if self._unmeasured is not None:
            self._report_measured(await self._measure())

    def _report_measured(self, measured: Measured) -> None:
        if self._unmeasured is not None:
            height, self.applied = self._unmeasured
            self._unmeasured = None
            self._lagging = height if _lags(measured) else None
            self._listener.on_measured(height, measured)

    async def _take_in(self, made: Place, height: int, given: RoundInput) -> Metrics:
        """Has the trainer apply the aggregate or, if that fails, pass it over. Returns the metrics of the model after
        that."""
        if self._deaths is not None and self._deaths[0] == made and self._deaths[1] >= DEADLY:
            self._on_spoiled(height, f"{self._deaths[1]} workers have died over it")
            return await self._trainer.pass_over(made.round)
        try:
            on_refused = partial(self._listener.on_peer_refused, height)
            metrics = await self._ask(self._trainer.apply(made.round, given.aggregate, given.exchange, on_refused))
        except TrainingFailed as error:
            self._on_spoiled(height, str(error))
            if not self._has_model:
                await self._take_older(made)
            return await self._trainer.pass_over(made.round)
        self._has_model = True
        if self.spoiled is not None and self.spoiled.height < height:
            log.info("applied the aggregate of round %d; aggregates before it were spoiled", made.round)
            self.spoiled = None
        return metrics

    async def _measure(self) -> Measured:
        """Measures the model, as the round left it, on the site's own test samples. A failure does not fail the
        round."""
        try:
            return await self._ask(self._trainer.measure())
        except (AnswerRefused, WorkerFailed, WorkerDied) as error:  # the next request raises the last two again
            log.warning("the model could not be measured: %s", error)
            return Measured()

    async def _take_older(self, made: Place) -> None:
        """Applies the newest aggregate before this round's that leaves a finite loss, for a client that has only the
        initial model."""
        below = made.round
        for _ in range(MAX_RECALLED):
            recalled = await self._inputs.recall(Place(made.run, below))
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

    # ---- a round is trained for

    async def _get_ready(self, head: Block) -> bool:
        """Gets what training on `head` reads. Returns False if the target changed before."""
        if self._shared_sets is None or self._shared_sets[0] is not head:
            self._shared_sets = None
            preparing = asyncio.create_task(self._inputs.prepare(head.height + 1, head))
            if not await self._unless_changed(preparing):
                return False
            self._shared_sets = head, preparing.result()
        return True

    async def _train(self, target: Target) -> None:
        """Trains for the next round, if the target wants it and has not changed."""
        if not target.trains or self._changed.is_set():
            return
        self.work = f"what training for round {target.made.round + 1} reads is being gathered"
        if await self._get_ready(target.head) and not self._changed.is_set():
            self.work = f"training for round {target.made.round + 1} is under way"
            await self._train_on(target)
            self.trouble = None

    async def _train_on(self, target: Target) -> None:
        head, number = target.head, target.made.round + 1
        training = asyncio.create_task(
            self._ask(
                self._trainer.train(
                    number,
                    compute_beacon(head),
                    num_iterations=target.num_iterations,
                    shared=NOTHING_TAKEN if self._shared_sets is None else self._shared_sets[1],
                    on_progress=self._on_progress,
                )
            )
        )
        try:
            is_done = await self._unless_changed(training, lambda: self._is_over(target) and self._trainer.abandon())
        except TrainingAbandoned:
            log.info("round %d was over before this node's training, which was broken off", number)
            return
        finally:
            self.progress = None
        if is_done:
            trained = training.result()
            self._trained, self._has_model = number, True
            self.data_change = trained.data_change or self.data_change
            if trained.went_back is not None:
                self._on_spoiled(target.made_height, f"training from it diverges: {trained.went_back}")
            await self._tell_trained(trained, target)

    async def _tell_trained(self, trained: Trained, target: Target) -> None:
        """Reports the result for the height in hand, which a change may have moved. If a change moves it meanwhile, the
        round is trained for again, as the files of the result are used up. Nothing is reported if the result is no
        longer wanted: the round was over, or the site withdrew from it at that moment."""
        current = self._target or target
        if not current.trains or (current.terms, current.made) != (target.terms, target.made):
            return
        await self._listener.on_trained(current.height, trained)
        if self._target is not None and self._target is not current and not self._target.has_contributed:
            self._changed.set()

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the trainer's answer to work on bytes of others. An unforeseen error counts as TrainingFailed: the
        request can be repeated."""
        with self._boundary.around("training"):
            return await work
        raise TrainingFailed(UNFORESEEN)

    def _is_over(self, target: Target) -> bool:
        """Says whether the round after the target's last is final."""
        current = self._target
        return current is not None and (
            current.run.number > target.run.number or current.made.round > target.made.round
        )

    def _on_progress(self, progress: Progress) -> None:
        self.progress = progress

    async def _unless_changed(self, task: asyncio.Task[T], let_go: Callable[[], bool] = lambda: False) -> bool:
        """Waits for `task`, or ends it when the target changes before: by `let_go`, if that returns True, else by
        cancelling. Returns whether the task finished; raises what it raised."""
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


def _lags(measured: Measured) -> bool:
    """Says whether training alone has work left of the rounds until now."""
    return measured.alone is not None and measured.alone.failure is None and measured.alone.owed_steps > 0


def describe_unready(learner: Learner) -> str | None:
    """Returns why there is no worker yet, None where it is ready. While one starts, this includes why the one before
    died."""
    if learner.info is not None:
        return None
    if learner.failure is not None:
        return learner.failure
    doing = learner.work or "there is no run yet that this node may train in"
    death = learner.last_death
    return f"the worker is not ready yet: {doing}" + ("" if death is None else f"; the one before died: {death}")
