"""The learner and a training that its round does not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chain.block import Block, Id
from chain.calendar import Place
from chain.state import State
from ml.guard import OnRefused
from ml.measures.alone import TrainedAlone
from node.boundary import UNFORESEEN
from node.training.exchange import Exchange
from node.training.learner import LOOK_AGAIN_S, MAX_RECALLED, RETRY_S, STARTING, Learner, describe_unready
from node.training.progress import OnProgress
from node.training.target import RoundInput, RoundInputs, SpoiledAggregate, Target
from node.training.trainer import (
    NOTHING_TAKEN,
    AggregateSpoiled,
    Measured,
    OwnAnswers,
    Predicted,
    RunTask,
    Trained,
    Trainer,
    TrainerInfo,
    TrainingAbandoned,
    TrainingFailed,
    WorkerDied,
    WorkerFailed,
)
from support.data.chains import make_genesis, make_keys
from support.federation.recording import wait_until
from support.federation.virtual_time import run_virtual

STATE = make_genesis(make_keys(4), rounds=0).state


def make_head(height: int) -> Block:
    header = SimpleNamespace(version=2)  # all that a learner looks at
    return SimpleNamespace(height=height, id=bytes(32), header=header)  # type: ignore[return-value]


def make_target(height: int, *, head: Block | None = None, **settings: Any) -> Target:
    """On a chain without changes: round r has made the block at height r."""
    return Target(head or make_head(height), STATE, height, **settings)


class SlowTrainer:
    """Trains until it is broken off."""

    last_death: str | None = None

    def __init__(self, *, can_abandon: bool) -> None:
        self.can_abandon = can_abandon
        self.log: list[str] = []
        self.shared: list[Exchange] = []
        self._abandoned = asyncio.Event()

    async def warm_up(self) -> None:
        pass

    async def start(self, task: RunTask) -> TrainerInfo:
        return TrainerInfo(1, 1, "cpu", 1, 1)

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        self._abandoned.clear()
        self.log.append(f"train {height}")
        self.shared.append(shared)
        try:
            await self._abandoned.wait()
        except asyncio.CancelledError:
            self.log.append(f"cancelled {height}")
            raise
        self.log.append(f"abandoned {height}")
        raise TrainingAbandoned

    def abandon(self) -> bool:
        self._abandoned.set()
        return self.can_abandon

    async def apply(
        self,
        height: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Mapping[str, float]:
        self.log.append(f"apply {height}")
        return {"accuracy": 0.5}

    async def pass_over(self, height: int) -> Mapping[str, float]:
        raise AssertionError

    async def measure(self) -> Measured:
        return Measured()

    async def list_answers(self) -> OwnAnswers:
        return OwnAnswers(1, 0, None)

    async def predict(
        self,
        samples: bytes,
        *,
        alone: bool = False,
        kappa: float | None = None,
        kept: int | None = None,
        calibrated: bool = False,
    ) -> Predicted:
        raise AssertionError

    async def score(self, height: int, aggregates: Sequence[bytes]) -> Sequence[float]:
        raise AssertionError

    async def tell_of(self, aggregate: bytes, min_samples: int) -> bytes:
        raise AssertionError

    async def close(self) -> None:
        pass


class Silent:
    async def on_trained(self, height: int, trained: Trained) -> None:
        raise AssertionError

    def on_applied(self, height: int, metrics: Mapping[str, float]) -> None:
        pass

    def on_measured(self, height: int, measured: Measured) -> None:
        pass

    def on_peer_refused(self, height: int, peer: Id, reason: str) -> None:
        raise AssertionError

    def on_spoiled(self, height: int, reason: str) -> None:
        raise AssertionError

    async def on_training_failed(self, height: int, reason: str) -> None:
        raise AssertionError


class Nothing:
    """Inputs of a method without aggregates, at a node that holds none."""

    async def gather(self, height: int) -> RoundInput:
        return RoundInput(None)

    async def open_run(self, state: State) -> RunTask:
        return RunTask(state.run, state.rules.limits, state.n, Path("/nonexistent"))

    async def prepare(self, height: int, head: Block) -> Exchange:
        return NOTHING_TAKEN

    async def recall(self, before: Place) -> tuple[int, bytes] | None:
        return None


class Older(Nothing):
    """Holds an aggregate every `step` heights below any but the first ones, and keeps what it was asked for."""

    def __init__(self, step: int) -> None:
        self.asked: list[int] = []
        self._step = step

    async def recall(self, before: Place) -> tuple[int, bytes] | None:
        self.asked.append(before.round)
        return (before.round - self._step, b"") if before.round > self._step else None


async def run_through(trainer: SlowTrainer, *targets: Target) -> list[str]:
    """What the trainer was told, each target set once the training for the one before is under way."""
    learner = Learner(trainer, Nothing(), Silent())
    running = asyncio.create_task(learner.run())
    for count, target in enumerate(targets, start=1):
        learner.set_target(target)
        await wait_until(lambda n=count: sum(told.startswith("train") for told in trainer.log) == n, "training")  # type: ignore[misc]
    running.cancel()
    await asyncio.wait({running})
    return trainer.log


@pytest.mark.parametrize(("can_abandon", "end"), [(True, "abandoned 1"), (False, "cancelled 1")])
async def test_a_round_that_is_over_keeps_what_was_learned_where_the_trainer_can(can_abandon: bool, end: str) -> None:
    log = await run_through(
        SlowTrainer(can_abandon=can_abandon), make_target(0, trains=True), make_target(1, trains=True)
    )
    assert log == ["train 1", end, "apply 1", "train 2", "cancelled 2"]


async def test_a_training_that_is_wanted_otherwise_begins_anew() -> None:
    targets: list[Any] = [make_target(0, trains=True, num_iterations=n) for n in (5, 6)]
    log = await run_through(SlowTrainer(can_abandon=True), *targets)
    assert log == ["train 1", "cancelled 1", "train 1", "cancelled 1"]


async def test_training_gets_what_was_prepared_for_it_and_does_not_begin_before() -> None:
    prepared = {height: asyncio.Event() for height in (1, 2)}
    asked: list[tuple[int, int]] = []

    class Preparing(Nothing):
        async def prepare(self, height: int, head: Block) -> Exchange:
            asked.append((height, head.height))
            await prepared[height].wait()
            return Exchange(me=bytes([height]))

    trainer = SlowTrainer(can_abandon=True)
    learner = Learner(trainer, Preparing(), Silent())
    running = asyncio.create_task(learner.run())
    learner.set_target(make_target(0, trains=True))
    await wait_until(lambda: asked == [(1, 0)], "the first to be prepared")
    assert learner.work == "what training for round 1 reads is being gathered"
    learner.set_target(make_target(1, trains=True))  # the round is over: nobody waits for it any more
    await wait_until(lambda: len(asked) == 2, "the second to be prepared")
    assert trainer.log == ["apply 1"]
    prepared[2].set()
    await wait_until(lambda: "train 2" in trainer.log, "training")
    assert (asked, trainer.shared) == ([(1, 0), (2, 1)], [Exchange(me=b"\x02")])
    running.cancel()
    await asyncio.wait({running})


# ---- what is spoiled, or deadly, or diverges


class MoodyTrainer(SlowTrainer):
    """Does at once what it is told, but that its worker dies of the next calls named in `deaths`, that the aggregates
    in `spoiled` are no use, and that training fails while there is a `trouble`."""

    def __init__(self) -> None:
        super().__init__(can_abandon=False)
        self.deaths: list[str] = []
        self.spoiled: set[int] = set()
        self.trouble: str | None = None
        self.went_back: str | None = None
        self.trained_round = 0

    async def start(self, task: RunTask) -> TrainerInfo:
        return TrainerInfo(1, 1, "cpu", 1, 1, trained_round=self.trained_round)

    def _do(self, what: str) -> None:
        self.log.append(what)
        if what in self.deaths:
            self.deaths.remove(what)
            raise WorkerDied("exit status 1")

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        self._do(f"train {height}")
        if self.trouble is not None:
            raise TrainingFailed(self.trouble)
        return Trained(1, {}, {}, went_back=self.went_back)

    async def apply(
        self,
        height: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Mapping[str, float]:
        self._do(f"apply {height}")
        if height in self.spoiled:
            raise AggregateSpoiled(f"height {height}: the loss is nan")
        return {"accuracy": 0.5}

    async def pass_over(self, height: int) -> Mapping[str, float]:
        self._do(f"pass over {height}")
        return {"accuracy": 0.25}


class Told:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.measured: list[str] = []

    async def on_trained(self, height: int, trained: Trained) -> None:
        self.log.append(f"trained {height}")

    def on_applied(self, height: int, metrics: Mapping[str, float]) -> None:
        self.log.append(f"applied {height} {metrics['accuracy']}")

    def on_measured(self, height: int, measured: Measured) -> None:
        self.measured.append(f"{height} after {self.log[-1]}")

    def on_peer_refused(self, height: int, peer: Id, reason: str) -> None:
        self.log.append(f"refused {peer.hex()} at {height}: {reason}")

    def on_spoiled(self, height: int, reason: str) -> None:
        self.log.append(f"spoiled {height}: {reason}")

    async def on_training_failed(self, height: int, reason: str) -> None:
        self.log.append(f"failed {height}: {reason}")


@contextmanager
def learning(trainer: Trainer, inputs: RoundInputs | None = None) -> Iterator[tuple[Learner, list[str]]]:
    """A learner at work, and what it tells."""
    with telling(trainer, inputs) as (learner, told):
        yield learner, told.log


@contextmanager
def telling(trainer: Trainer, inputs: RoundInputs | None = None) -> Iterator[tuple[Learner, Told]]:
    told = Told()
    learner = Learner(trainer, inputs or Nothing(), told)
    running = asyncio.create_task(learner.run())
    try:
        yield learner, told
    finally:
        running.cancel()


async def rest(seconds: float = 1.0) -> None:
    await asyncio.sleep(seconds)  # of virtual time


def test_training_alone_is_told_of_once_more_when_it_has_caught_up() -> None:
    class Lagging(MoodyTrainer):
        """Training alone does a step a second."""

        def __init__(self) -> None:
            super().__init__()
            self.owed = 12

        async def measure(self) -> Measured:
            self.log.append("measure")
            return Measured(alone=TrainedAlone(1, max(0, self.owed), 0.5))

    async def story() -> None:
        trainer = Lagging()
        with telling(trainer) as (learner, told):
            learner.set_target(make_target(1, trains=False))
            await rest()
            assert told.measured == ["1 after applied 1 0.5"]
            for _ in range(12):
                await rest()
                trainer.owed -= 1
            await rest(LOOK_AGAIN_S)
            assert told.measured == ["1 after applied 1 0.5"] * 2
            assert trainer.log.count("measure") == 4
            await rest(10 * LOOK_AGAIN_S)
            assert trainer.log.count("measure") == 4
            trainer.owed = 3
            learner.set_target(make_target(2, trains=True))  # where there is other work, nobody looks again before it
            await rest()
            learner.set_target(make_target(3, trains=False))
            await rest()
            assert trainer.log.count("measure") == 6

    run_virtual(story())


def test_the_model_is_measured_when_the_next_training_is_over_or_there_is_none() -> None:
    async def story() -> None:
        trainer = MoodyTrainer()
        with telling(trainer) as (learner, told):
            learner.set_target(make_target(1, trains=True))
            await rest()
            assert told.measured == ["1 after trained 2"]
            assert learner.applied == 1
            trainer.trouble = "loss not finite at step 3 of 20, lr 50"
            learner.set_target(make_target(2, trains=True))
            await rest()
            assert told.measured[1:] == ["2 after applied 2 0.5"]  # before it is told that training has failed
            learner.set_target(make_target(3, trains=False))
            await rest()
            assert told.measured[2:] == ["3 after applied 3 0.5"]
            trainer.trouble, trainer.deaths = None, ["train 5"]
            learner.set_target(make_target(4, trains=True))
            await rest()
            assert told.measured[3:] == ["4 after applied 4 0.5", "4 after trained 5"]  # anew, as the worker died

    run_virtual(story())


def test_an_aggregate_that_workers_die_of_is_passed_over_after_the_second() -> None:
    async def story() -> None:
        trainer = MoodyTrainer()
        trainer.deaths = ["apply 1"] * 3
        with learning(trainer) as (learner, told):
            head = make_head(1)
            learner.set_target(make_target(head.height, head=head, trains=True))
            await rest()
            assert trainer.log == ["apply 1", "apply 1", "pass over 1", "train 2"]
            assert told == ["spoiled 1: 2 workers have died over it", "applied 1 0.25", "trained 2"]
            assert learner.spoiled == SpoiledAggregate(1, "2 workers have died over it")
            learner.set_target(make_target(2, trains=True))
            await rest()
            assert trainer.log[4:] == ["apply 2", "train 3"]
            assert learner.spoiled is None

    run_virtual(story())


def test_so_is_one_that_they_die_of_in_training_and_then_training_has_failed_for_the_height() -> None:
    async def story() -> None:
        trainer = MoodyTrainer()
        trainer.deaths = ["train 2"] * 5
        with learning(trainer) as (learner, told):
            learner.set_target(make_target(1, trains=True))
            await rest()
            at_first = ["apply 1", "train 2"] * 2 + ["pass over 1", "train 2"] * 2
            assert trainer.log == at_first
            assert told[-1] == "failed 2: exit status 1"
            assert told.count("spoiled 1: 2 workers have died over it") == 1
            await rest(RETRY_S - 2)
            assert trainer.log == at_first
            await rest(2 * RETRY_S)
            assert trainer.log[8:] == ["pass over 1", "train 2"] * 2  # of the second it does not die
            assert told[-1] == "trained 2"
            assert learner.trouble is None

    run_virtual(story())


def test_one_death_is_nobodys_fault() -> None:
    async def story() -> None:
        trainer = MoodyTrainer()
        with learning(trainer) as (learner, told):
            for height in (1, 2, 3):
                trainer.deaths = [f"apply {height}"]
                learner.set_target(make_target(height, trains=True))
                await rest()
            assert not [line for line in told if line.startswith("spoiled")]
            assert [line for line in trainer.log if line.startswith("pass")] == []

    run_virtual(story())


def test_training_that_fails_is_tried_again_after_a_minute_or_with_the_next_head() -> None:
    async def story() -> None:
        trainer = MoodyTrainer()
        trainer.trouble = "loss not finite at step 3 of 20, lr 50"
        with learning(trainer) as (learner, told):
            learner.set_target(make_target(0, trains=True))
            await rest(10 * RETRY_S - 1)
            assert trainer.log == ["train 1"] * 10
            assert set(told) == {f"failed 1: {trainer.trouble}"}
            assert learner.trouble == trainer.trouble
            learner.set_target(make_target(1, trains=True))
            assert learner.trouble is None
            await rest()
            assert trainer.log[10:] == ["apply 1", "train 2"]
            trainer.trouble = None
            await rest(RETRY_S)
            assert told[-1] == "trained 2"
            assert learner.trouble is None
            before = [*trainer.log]
            await rest(10 * RETRY_S)
            assert trainer.log == before  # there is nothing left to do

    run_virtual(story())


class Unopened(Nothing):
    """A run that could not be opened for a reason that nobody foresaw, until `trouble` is over."""

    def __init__(self) -> None:
        self.trouble: Exception | None = ValueError("bytes that decode to nothing known")

    async def open_run(self, state: State) -> RunTask:
        if self.trouble is not None:
            raise self.trouble
        return await super().open_run(state)


def test_a_run_that_cannot_be_opened_costs_its_training_and_is_tried_again() -> None:
    async def story() -> None:
        trainer, inputs = MoodyTrainer(), Unopened()
        with learning(trainer, inputs) as (learner, told):
            learner.set_target(make_target(0, trains=True))
            await rest()
            assert told == [f"failed 1: {UNFORESEEN}"]
            inputs.trouble = None
            await rest(RETRY_S)
            assert told[-1] == "trained 1"

    run_virtual(story())


def test_training_that_went_back_is_told_of_the_aggregate_before() -> None:
    async def story() -> None:
        trainer = MoodyTrainer()
        trainer.went_back = "loss not finite at step 1 of 20, lr 0.1"
        with learning(trainer) as (learner, told):
            learner.set_target(make_target(1, trains=True))
            await rest()
            assert told == [
                "applied 1 0.5",
                "spoiled 1: training from it diverges: loss not finite at step 1 of 20, lr 0.1",
                "trained 2",
            ]
            assert learner.spoiled is not None

    run_virtual(story())


@pytest.mark.parametrize("trained_round", [0, 7])
def test_a_client_without_a_model_of_its_own_takes_the_newest_that_is_sound(trained_round: int) -> None:
    async def story() -> None:
        trainer, inputs = MoodyTrainer(), Older(2)
        trainer.trained_round = trained_round
        trainer.spoiled = {8, 9, 10, 11}
        with learning(trainer, inputs) as (learner, told):
            learner.set_target(make_target(10, trains=True))
            await rest()
            older = [] if trained_round else ["apply 8", "apply 6"]
            assert trainer.log == ["apply 10", *older, "pass over 10", "train 11"]
            assert inputs.asked == ([] if trained_round else [10, 8])
            assert told[0] == "spoiled 10: height 10: the loss is nan"
            learner.set_target(make_target(11, trains=True))
            await rest()
            assert trainer.log[-3:] == ["apply 11", "pass over 11", "train 12"]  # by now it has one

    run_virtual(story())


def test_older_aggregates_are_tried_up_to_a_number_and_then_it_is_the_initial_model() -> None:
    async def story() -> None:
        trainer = MoodyTrainer()
        trainer.spoiled = set(range(1, 101))
        with learning(trainer, Older(1)) as (learner, _):
            learner.set_target(make_target(100, trains=True))
            await rest()
            tried = [line for line in trainer.log if line.startswith("apply")]
            assert len(tried) == 1 + MAX_RECALLED
            assert trainer.log[-2:] == ["pass over 100", "train 101"]

    run_virtual(story())


# ---- changes, and one run after the other


class CountingTrainer(MoodyTrainer):
    """Writes down which run it begins, and under which limit of weights."""

    async def warm_up(self) -> None:
        self.log.append("warm up")

    async def start(self, task: RunTask) -> TrainerInfo:
        self.log.append(f"start {task.run.number} at {task.limits.max_weight}")
        return await super().start(task)


def make_later(
    head: int, first_height: int, *, number: int = 1, max_weight: int = 1_000_000, **settings: Any
) -> Target:
    """In a run whose round 1 makes the block at `first_height`, or would if changes had not taken heights since."""
    run = replace(STATE.run, number=number, first_height=first_height)
    rules = replace(STATE.rules, limits=replace(STATE.rules.limits, max_weight=max_weight))
    made = run.get_round(head)
    return Target(make_head(head), replace(STATE, run=run, rules=rules), head if made else 0, **settings)


async def test_training_under_way_goes_on_through_a_change_and_is_for_the_height_after_it() -> None:
    class Awaited(MoodyTrainer):
        may_end = asyncio.Event()

        async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
            self.log.append(f"train {height}")
            await self.may_end.wait()
            return Trained(1, {}, {})

    trainer = Awaited()
    with learning(trainer) as (learner, told):
        learner.set_target(make_target(2, trains=True))
        await wait_until(lambda: "train 3" in trainer.log, "training")
        learner.set_target(replace(make_later(3, 2, trains=True), made_height=2))
        await asyncio.sleep(0.01)
        trainer.may_end.set()
        await wait_until(lambda: "trained 4" in told, "the training to count for height 4")
    assert trainer.log == ["apply 2", "train 3"]


class Ended(MoodyTrainer):
    """Trains until it is told to end; the weight says for which round that was."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        self.log.append(f"train {height}")
        await self.may_end.wait()
        return Trained(height, {}, {})


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(make_target(3, trains=True), id="the round is over"),
        pytest.param(replace(make_later(3, 2, trains=False), made_height=2), id="a change to which the site said no"),
        pytest.param(make_later(3, 4, number=2, trains=True), id="the next run"),
    ],
)
async def test_training_that_ends_as_it_is_wanted_no_more_is_signed_for_nothing_else(later: Target) -> None:
    class Weighing(Told):
        async def on_trained(self, height: int, trained: Trained) -> None:
            self.log.append(f"round {trained.weight} for height {height}")

    trainer, told = Ended(), Weighing()
    learner = Learner(trainer, Nothing(), told)
    running = asyncio.create_task(learner.run())
    learner.set_target(make_target(2, trains=True))
    await wait_until(lambda: "train 3" in trainer.log, "training")
    learner.set_target(later)
    trainer.may_end.set()  # in the same moment
    await asyncio.sleep(0.05)
    running.cancel()
    assert not [line for line in told.log if line.startswith("round 3")]


async def test_another_run_or_other_limits_begin_a_worker_anew_and_a_change_of_nothing_else_does_not() -> None:
    trainer = CountingTrainer()
    with learning(trainer) as (learner, told):
        learner.set_target(make_target(1, trains=True))
        await wait_until(lambda: "trained 2" in told, "the first run")
        learner.set_target(replace(make_later(2, 2, trains=True, has_contributed=True), made_height=1))
        await asyncio.sleep(0.01)
        learner.set_target(make_later(3, 2, max_weight=7, trains=True))
        await wait_until(lambda: "trained 4" in told, "training under another limit")
        learner.set_target(make_later(4, 5, number=2, trains=True))
        await wait_until(lambda: "trained 5" in told, "the second run")
    begun = [what for what in trainer.log if what.startswith(("start", "train"))]
    assert begun == ["start 1 at 1000000", "train 2", "start 1 at 7", "train 3", "start 2 at 1000000", "train 1"]


async def test_no_worker_begins_a_run_that_this_node_has_no_part_in() -> None:
    trainer = CountingTrainer()
    with learning(trainer) as (learner, told):
        learner.set_target(make_target(1, trains=False, may_start=False))
        await asyncio.sleep(0.01)
        assert trainer.log == []
        assert learner.info is None
        learner.set_target(make_target(2, trains=True))
        await wait_until(lambda: "trained 3" in told, "training once it has")


async def test_a_worker_that_is_about_to_start_and_may_not_yet_warms_up() -> None:
    trainer = CountingTrainer()
    with learning(trainer) as (learner, told):
        learner.set_target(make_target(1, trains=False, may_start=False, only_starts=True))
        await wait_until(lambda: trainer.log == ["warm up"], "it to be warm")
        assert learner.info is None
        learner.set_target(make_target(2, trains=True))
        await wait_until(lambda: "trained 3" in told, "training once it has a part in the run")


async def test_a_worker_that_only_starts_takes_nothing_in_until_the_node_has_a_part_in_the_run() -> None:
    trainer = CountingTrainer()
    with learning(trainer) as (learner, told):
        learner.set_target(make_target(1, trains=False, only_starts=True))
        await wait_until(lambda: learner.info is not None, "the worker")
        learner.set_target(make_target(2, trains=False, only_starts=True))
        await asyncio.sleep(0.01)
        assert trainer.log == ["start 1 at 1000000"]
        learner.set_target(make_target(2, trains=True))
        await wait_until(lambda: "trained 3" in told, "training once it has")
        assert trainer.log.count("start 1 at 1000000") == 1


async def test_it_says_why_there_is_no_worker_yet() -> None:
    class Starting(CountingTrainer):
        def __init__(self) -> None:
            super().__init__()
            self.answer: asyncio.Future[TrainerInfo] = asyncio.get_running_loop().create_future()

        async def start(self, task: RunTask) -> TrainerInfo:
            return await self.answer

    trainer = Starting()
    with learning(trainer) as (learner, _):
        assert describe_unready(learner) == (
            "the worker is not ready yet: there is no run yet that this node may train in"
        )
        learner.set_target(make_target(1, trains=True))
        await wait_until(lambda: learner.work == STARTING, "the worker to be started")
        reason = "the worker is not ready yet: it is being started, imports the model and reads the data"
        assert describe_unready(learner) == reason
        trainer.last_death = "killed by signal 9"
        assert describe_unready(learner) == f"{reason}; the one before died: killed by signal 9"
        trainer.answer.set_exception(WorkerFailed("the worker cannot be set up: no such file"))
        await wait_until(lambda: learner.failure is not None, "it to fail")
        assert describe_unready(learner) == "the worker cannot be set up: no such file"
        learner.info = TrainerInfo(1, 1, "cpu", 1, 1)
        assert describe_unready(learner) is None


async def test_a_run_that_cannot_be_begun_costs_its_own_training_alone() -> None:
    class Unable(CountingTrainer):
        async def start(self, task: RunTask) -> TrainerInfo:
            if task.run.number == 1:
                raise WorkerFailed("the worker cannot be set up: method.name: unknown")
            return await super().start(task)

    trainer = Unable()
    with learning(trainer) as (learner, told):
        learner.set_target(make_target(1, trains=True))
        await wait_until(lambda: learner.failure is not None, "it to fail")
        learner.set_target(make_target(2, trains=True))
        await wait_until(lambda: len(told) >= 2, "each height to hear of it")
        assert told[0].startswith("failed 2")
        learner.set_target(make_later(3, 4, number=2, trains=True))
        await wait_until(lambda: "trained 4" in told, "the second run")
        assert learner.failure is None


async def test_a_run_that_could_not_be_begun_is_begun_when_that_is_asked_for() -> None:
    class Empty(CountingTrainer):
        has_samples = False

        async def start(self, task: RunTask) -> TrainerInfo:
            if not self.has_samples:
                raise WorkerFailed("0 samples: contributes nothing")
            return await super().start(task)

    trainer = Empty()
    with learning(trainer) as (learner, told):
        assert not learner.retry()  # nothing has failed
        learner.set_target(make_target(1, trains=True))
        await wait_until(lambda: learner.failure is not None, "it to fail")
        assert learner.retry()
        await wait_until(lambda: len(told) >= 2, "it to fail again")
        assert learner.failure == "0 samples: contributes nothing"
        trainer.has_samples = True
        assert learner.retry()
        await wait_until(lambda: "trained 2" in told, "the training")
        assert learner.failure is None


async def test_news_of_the_data_stand_until_a_worker_begins_anew() -> None:
    class Changed(CountingTrainer):
        news: str | None = "your data differ from round 20: 200 -> 203 rows"

        async def start(self, task: RunTask) -> TrainerInfo:
            return replace(await super().start(task), data_change=self.news)

        async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
            return replace(await super().train(height, beacon, **options), data_change=self.news)

    trainer = Changed()
    with learning(trainer) as (learner, told):
        learner.set_target(make_target(1, trains=True))
        await wait_until(lambda: "trained 2" in told, "the training")
        first, trainer.news = trainer.news, None
        assert learner.data_change == first
        learner.set_target(make_target(2, trains=True))
        await wait_until(lambda: "trained 3" in told, "the next training")
        assert learner.data_change == first
        trainer.news = "the files of your data have changed"
        learner.set_target(make_target(3, trains=True))
        await wait_until(lambda: "trained 4" in told, "the last training")
        assert learner.data_change == trainer.news
