"""The learner and a training that its round does not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from chain.block import Block
from node.exchange import Exchange
from node.learner import Given, Learner, Target
from node.trainer import NOTHING_TAKEN, OnProgress, Predicted, Trained, TrainerInfo, TrainingAbandoned
from support.recording import wait_until


def make_head(height: int) -> Block:
    return SimpleNamespace(height=height, id=bytes(32))  # type: ignore[return-value]  # all that a learner looks at


class SlowTrainer:
    """Trains until it is broken off."""

    def __init__(self, *, can_abandon: bool) -> None:
        self.can_abandon = can_abandon
        self.log: list[str] = []
        self.standing: list[Exchange] = []
        self._abandoned = asyncio.Event()

    async def start(self) -> TrainerInfo:
        return TrainerInfo(1, 1, "cpu", 1, 1)

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        standing: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        self._abandoned.clear()
        self.log.append(f"train {height}")
        self.standing.append(standing)
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
        self, height: int, aggregate: bytes | None, exchange: Exchange = NOTHING_TAKEN
    ) -> Mapping[str, float]:
        self.log.append(f"apply {height}")
        return {"accuracy": 0.5}

    async def pass_over(self, height: int) -> Mapping[str, float]:
        raise AssertionError

    async def predict(self, samples: bytes) -> Predicted:
        raise AssertionError

    async def close(self) -> None:
        pass


class Silent:
    async def on_trained(self, height: int, trained: Trained) -> None:
        raise AssertionError

    def on_applied(self, height: int, metrics: Mapping[str, float]) -> None:
        pass

    def on_spoiled(self, height: int, reason: str) -> None:
        raise AssertionError

    async def on_training_failed(self, height: int, reason: str) -> None:
        raise AssertionError


async def gather_nothing(block: Block) -> Given:
    return Given(None)


async def run_through(trainer: SlowTrainer, *targets: Target) -> list[str]:
    """What the trainer was told, each target set once the training for the one before is under way."""
    learner = Learner(trainer, gather_nothing, Silent())
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
        SlowTrainer(can_abandon=can_abandon), Target(make_head(0), trains=True), Target(make_head(1), trains=True)
    )
    assert log == ["train 1", end, "apply 1", "train 2", "cancelled 2"]


async def test_a_training_that_is_wanted_otherwise_begins_anew() -> None:
    targets: list[Any] = [Target(make_head(0), trains=True, num_iterations=n) for n in (5, 6)]
    log = await run_through(SlowTrainer(can_abandon=True), *targets)
    assert log == ["train 1", "cancelled 1", "train 1", "cancelled 1"]


async def test_training_gets_what_was_prepared_for_it_and_does_not_begin_before() -> None:
    prepared = {height: asyncio.Event() for height in (1, 2)}
    asked: list[tuple[int, int]] = []

    async def prepare(height: int, head: Block) -> Exchange:
        asked.append((height, head.height))
        await prepared[height].wait()
        return Exchange(me=bytes([height]))

    trainer = SlowTrainer(can_abandon=True)
    learner = Learner(trainer, gather_nothing, Silent(), prepare=prepare)
    running = asyncio.create_task(learner.run())
    learner.set_target(Target(make_head(0), trains=True))
    await wait_until(lambda: asked == [(1, 0)], "the first to be prepared")
    assert learner.work == "what training for round 1 reads is being gathered"
    learner.set_target(Target(make_head(1), trains=True))  # the round is over: nobody waits for it any more
    await wait_until(lambda: len(asked) == 2, "the second to be prepared")
    assert trainer.log == ["apply 1"]
    prepared[2].set()
    await wait_until(lambda: "train 2" in trainer.log, "training")
    assert (asked, trainer.standing) == ([(1, 0), (2, 1)], [Exchange(me=b"\x02")])
    running.cancel()
    await asyncio.wait({running})
