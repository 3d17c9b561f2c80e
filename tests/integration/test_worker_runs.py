"""A worker process that goes from one run to the next."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ml.payload import decode_arrays, encode_arrays
from node.training.checkpoint import Phase, get_run_dir, list_runs, read_checkpoint
from node.training.trainer import RunTask, Trained, WorkerDied
from node.training.worker import WorkerProcess
from node.training.worker_config import WorkerConfig
from support.federation.fake_task import TASK
from support.federation.fake_worker import TRAIN, make_config

pytestmark = pytest.mark.outer

DEADLINE_S = 60.0


def make_task(number: int, *, goes_on_after: int | None = None) -> RunTask:
    return replace(TASK, run=replace(TASK.run, number=number), goes_on_after=goes_on_after)


def configure(path: Path) -> Callable[[RunTask], WorkerConfig]:
    """As a site does: each run with checkpoints of its own, and begun from the number 1000 times that of the run."""

    def make(task: RunTask) -> WorkerConfig:
        number = task.run.number
        return make_config(
            get_run_dir(path, number),
            outgoing_dir=path / "outgoing",
            initial_model=encode_arrays({"model/w": np.array([1000.0 * number])}),
            run=number,
            before_dir=None if task.goes_on_after is None else get_run_dir(path, number - 1),
            before_round=task.goes_on_after,
        )

    return make


@asynccontextmanager
async def started(path: Path, task: RunTask) -> AsyncIterator[WorkerProcess]:
    worker = WorkerProcess(configure(path))
    try:
        await asyncio.wait_for(worker.start(task), DEADLINE_S)
        yield worker
    finally:
        await worker.close()


def get_number(trained: Trained) -> float:
    data = trained.payloads["model"]
    return float(decode_arrays(data, len(data))["w"][0])


async def test_the_next_run_begins_from_its_own_model_and_keeps_the_checkpoints_of_the_last(tmp_path: Path) -> None:
    async with started(tmp_path, make_task(1)) as worker:
        assert get_number(await worker.train(1, TRAIN)) == 10_001
        await worker.apply(1, None)
        first = worker.pid
        info = await worker.start(make_task(2))
        assert worker.pid != first
        assert (info.checkpoint_round, info.trained_round) == (None, 0)
        assert get_number(await worker.train(1, TRAIN)) == 20_001
        assert worker.deaths == 0
    before = read_checkpoint(get_run_dir(tmp_path, 1), Phase.APPLIED)
    assert before is not None
    assert before.round_number == 1
    async with started(tmp_path, make_task(3)):
        pass
    assert not get_run_dir(tmp_path, 1).exists()
    assert get_run_dir(tmp_path, 2).exists()
    assert list_runs(tmp_path) == [3, 2]


async def test_a_run_that_continues_goes_on_from_the_clients_own_state(tmp_path: Path) -> None:
    async with started(tmp_path, make_task(1)) as worker:
        await worker.train(1, TRAIN)
        await worker.apply(1, None)
        await worker.start(make_task(2, goes_on_after=1))
        assert get_number(await worker.train(1, TRAIN)) == 100_011


async def test_a_state_of_another_round_is_not_gone_on_from(tmp_path: Path) -> None:
    """This node was not there for the last round of the run before: its state is older than what all begin from."""
    async with started(tmp_path, make_task(1)) as worker:
        await worker.train(1, TRAIN)
        await worker.apply(1, None)
        await worker.start(make_task(2, goes_on_after=2))
        assert get_number(await worker.train(1, TRAIN)) == 20_001


async def test_a_worker_killed_at_the_switch_is_replaced_by_one_in_the_new_run(tmp_path: Path) -> None:
    async with started(tmp_path, make_task(1)) as worker:
        await worker.train(1, TRAIN)
        await worker.apply(1, None)
        await worker.start(make_task(2, goes_on_after=1))
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    trained = await worker.train(1, TRAIN)
                    break
                except WorkerDied:
                    continue
        assert get_number(trained) == 100_011
        assert worker.deaths == 1


async def test_a_prediction_says_which_run_it_is_of(tmp_path: Path) -> None:
    samples = encode_arrays({"x": np.zeros((1, 1), np.float32)})
    async with started(tmp_path, make_task(1)) as worker:
        assert (await worker.predict(samples)).run == 1
        await worker.start(make_task(2))
        predicted = await worker.predict(samples)
        assert (predicted.run, predicted.applied_round) == (2, 0)
