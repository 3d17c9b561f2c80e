"""The worker process: training in it is training, and neither cancelling nor killing it loses or changes anything.

Most tests run a worker whose client is a number (`support.federation.fake_worker`), the last ones the real thing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from ml.clients.build import get_client_seed, make_initial_aggregate
from ml.payload import decode_arrays, encode_arrays
from ml.seeding import get_partition_seed
from ml.specs import Offer, add_kind
from node.training import child_process
from node.training import worker as worker_module
from node.training.checkpoint import Checkpoints, Phase
from node.training.exchange import Exchange
from node.training.kept_answers import decode_answers
from node.training.progress import PROGRESS_S, Progress
from node.training.trainer import (
    AggregateSpoiled,
    OwnAnswers,
    Trained,
    Trainer,
    TrainerInfo,
    TrainingAbandoned,
    TrainingFailed,
    WorkerDied,
    WorkerFailed,
    apply_to,
)
from node.training.worker import WorkerProcess
from node.training.worker_config import WorkerConfig
from support.federation.fake_task import TASK
from support.federation.fake_worker import (
    ARGUMENTS,
    BREAK,
    DEADLY,
    DIE,
    DIVERGE,
    FILL_DISK,
    HIGHEST,
    STREAMED_HEIGHT,
    STREAMED_NUMBERS,
    TALK,
    TRAIN,
    TRAIN_UNTIL_STOPPED,
    FakeClient,
    always,
    make_config,
)
from support.federation.inline import InlineTrainer
from support.federation.processes import is_alive, kill
from support.federation.recording import wait_until
from support.federation.simulated import make_described_client

T = TypeVar("T")

DEADLINE_S = 120.0
ME, PEER, OTHER = (bytes([i]) * 32 for i in (7, 8, 9))


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is told to leave has its checkpoint to write, however long that takes here."""
    monkeypatch.setattr(child_process, "CLOSE_S", DEADLINE_S)


@asynccontextmanager
async def running(config: WorkerConfig) -> AsyncIterator[WorkerProcess]:
    worker = WorkerProcess(always(config))
    await asyncio.wait_for(worker.start(TASK), DEADLINE_S)
    try:
        yield worker
    finally:
        await worker.close()


def get_number(trained: Trained) -> float:
    """The state of a fake client after training."""
    payload = trained.payloads["model"]
    return float(decode_arrays(payload, len(payload))["w"][0])


def list_children(program: str = "fake_worker") -> list[int]:
    """The processes of workers that this one has started and that live."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def get_pid(worker: WorkerProcess) -> int:
    assert worker.pid is not None
    return worker.pid


def aggregate(number: float) -> bytes:
    return encode_arrays({"model/w": np.array([number])})


async def begin_endless_training(worker: WorkerProcess, caplog: pytest.LogCaptureFixture) -> asyncio.Task[Trained]:
    caplog.set_level(logging.INFO)
    caplog.clear()
    training = asyncio.create_task(worker.train(1, TRAIN_UNTIL_STOPPED))
    await wait_until(lambda: "training began" in caplog.text, "training began", DEADLINE_S)
    return training


@pytest.mark.parametrize("kind", ["process", "inline"])
async def test_what_is_measured_is_the_round_that_was_taken_in_though_it_has_trained_since(
    kind: str, tmp_path: Path
) -> None:
    inline = InlineTrainer(FakeClient({"model/w": np.zeros(1)}))
    trainer: Trainer = WorkerProcess(always(make_config(tmp_path))) if kind == "process" else inline
    await trainer.start(TASK)
    assert (await trainer.measure()).measures is None  # nothing has been taken in
    assert (await trainer.measure()).curves is None
    assert await trainer.list_answers() == OwnAnswers(1, 0, None)
    await trainer.apply(1, aggregate(4))
    await trainer.train(2, TRAIN)
    measured = (await trainer.measure()).measures
    assert measured is not None
    assert measured.loss == 4.0
    assert (await trainer.measure()).curves == {"roc": [[[0, 0], [1, 1]]], "reliability": None, "number": 4.0}
    told = await trainer.list_answers()
    assert (told.run, told.round, told.data is None) == (1, 1, False)
    assert decode_answers(told.data or b"").labels.tolist() == [0, 1]
    await trainer.pass_over(2)
    measured = (await trainer.measure()).measures
    assert measured is not None
    assert measured.loss == 42.0
    await trainer.close()


@pytest.mark.parametrize("kind", ["process", "inline"])
async def test_a_trainer_trains_and_applies(kind: str, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    inline = InlineTrainer(FakeClient({"model/w": np.zeros(1)}))
    trainer: Trainer = WorkerProcess(always(config)) if kind == "process" else inline
    assert await trainer.start(TASK) == TrainerInfo(2, 1, "cpu", parameters=1, model_bytes=8)
    trained = await trainer.train(1, TRAIN)
    assert (trained.weight, get_number(trained)) == (2, 1.0)
    assert math.isnan(trained.metrics["loss"])
    assert await trainer.apply(1, aggregate(4)) == {"accuracy": 5.0, "loss": 0.0}
    assert await trainer.apply(2, None) == {"accuracy": 5.0, "loss": 0.0}
    with pytest.raises(TrainingFailed, match="round 3: the loss is nan"):
        await trainer.train(3, DIVERGE)
    assert get_number(await trainer.train(3, TRAIN)) == 53.0
    await trainer.close()


async def test_a_process_that_was_warmed_up_begins_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(tmp_path)
    worker = WorkerProcess(always(config), config.command)
    for _ in range(2):
        await worker.warm_up()
    [pid] = list_children()
    assert (await worker.start(TASK)).num_train == 2
    assert get_pid(worker) == pid
    assert get_number(await worker.train(1, TRAIN)) == 1.0
    await worker.close()
    assert list_children() == []


async def test_what_is_too_long_to_be_asked_fails_its_call_and_no_other(tmp_path: Path) -> None:
    many = Exchange(offers=tuple(Offer(PEER, i, {}) for i in range(20_000)))
    async with running(make_config(tmp_path)) as worker, asyncio.timeout(DEADLINE_S):
        with pytest.raises(TrainingFailed, match="cannot be asked: header too long"):
            await worker.train(1, TRAIN, shared=many)
        assert get_number(await worker.train(1, TRAIN)) == 1.0


async def test_the_real_worker_has_torch_in_memory_once_it_is_warm() -> None:
    worker = WorkerProcess(lambda _: pytest.fail("no run has begun"))
    await worker.warm_up()
    [pid] = list_children("worker_child")
    await wait_until(lambda: "libtorch" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"), "load torch")
    await worker.close()


async def test_one_that_dies_while_it_is_warm_is_replaced(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    worker = WorkerProcess(always(config), config.command)
    await worker.warm_up()
    [pid] = list_children()
    os.kill(pid, signal.SIGKILL)
    assert (await worker.start(TASK)).num_train == 2
    assert get_pid(worker) != pid
    await worker.close()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_one_that_is_not_needed_any_more_is_ended(has_begun: bool, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    worker = WorkerProcess(always(config), config.command)
    await worker.warm_up()
    starting = asyncio.create_task(worker.start(TASK))
    await asyncio.sleep(0)
    if not has_begun:
        starting.cancel()
    await worker.close()
    await asyncio.gather(starting, return_exceptions=True)
    assert list_children() == []


async def test_a_cancelled_training_stops_between_steps_and_the_worker_is_usable_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_config(tmp_path)) as worker:
        pid = get_pid(worker)
        for height in (1, 2):
            training = await begin_endless_training(worker, caplog)
            training.cancel()
            with pytest.raises(asyncio.CancelledError):
                await training
            await asyncio.wait_for(worker.apply(height, aggregate(1)), DEADLINE_S)
        assert get_number(await worker.train(3, TRAIN)) == 23.0
        assert worker.pid == pid


async def test_an_abandoned_training_ends_between_steps_and_one_that_has_ended_cannot_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_config(tmp_path)) as worker:
        pid = get_pid(worker)
        assert not worker.abandon()
        for height in (1, 2):
            training = await begin_endless_training(worker, caplog)
            assert worker.abandon()
            with pytest.raises(TrainingAbandoned):
                await asyncio.wait_for(training, DEADLINE_S)
            assert not worker.abandon()
            await asyncio.wait_for(worker.apply(height, aggregate(1)), DEADLINE_S)
        assert get_number(await worker.train(3, TRAIN)) == 23.0
        assert worker.pid == pid
    assert not worker.abandon()


async def test_calls_go_one_at_a_time_in_the_order_they_were_made(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        first, applied, second = await asyncio.gather(
            worker.train(1, TRAIN), worker.apply(1, aggregate(1)), worker.train(2, TRAIN)
        )
        assert (get_number(first), applied["accuracy"], get_number(second)) == (1.0, 2.0, 22.0)


async def test_a_call_cancelled_while_it_waits_for_its_turn_never_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_config(tmp_path)) as worker:
        training = await begin_endless_training(worker, caplog)
        waiting = asyncio.create_task(worker.apply(1, aggregate(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        training.cancel()
        await asyncio.wait({training, waiting})
        assert get_number(await worker.train(1, TRAIN)) == 1.0


@pytest.mark.outer
async def test_a_long_training_tells_how_far_it_is_until_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_config(tmp_path)) as worker:
        told: list[Progress] = []
        training = asyncio.create_task(worker.train(1, TRAIN_UNTIL_STOPPED, on_progress=told.append))
        await wait_until(lambda: len(told) == 2, "two reports", DEADLINE_S)
        assert {(progress.step, progress.steps) for progress in told} == {(3, 4)}
        assert PROGRESS_S <= told[0].seconds <= told[1].seconds - PROGRESS_S
        training.cancel()
        await asyncio.wait({training})
        count = len(told)
        await worker.train(2, TRAIN)
        assert len(told) == count


BABBLER = """
import os, socket
from node.training.frames import Frame, receive_frame, send_frame
def talk(sock):
    started = receive_frame(sock).header["number"]
    info = {"num_train": 1, "num_test": 1, "device": "cpu", "parameters": 1, "model_bytes": 1}
    send_frame(sock, Frame({"number": started, "result": info, "saved": None}))
    good = {"step": 1, "steps": 2, "seconds": 0.5}
    while (frame := receive_frame(sock)) is not None:
        number = frame.header["number"]
        strange = [None, 7, [], {}, {**good, "more": 1}, {**good, "step": True}, {**good, "step": 3}]
        strange += [{**good, "step": 0}, {**good, "steps": "2"}, {**good, "seconds": -1.0}]
        strange += [{**good, "seconds": float("nan")}]
        for progress in strange:
            send_frame(sock, Frame({"number": number, "progress": progress}))
        for other in (number - 1, number + 1, -1, None, [], "1"):
            send_frame(sock, Frame({"number": other, "progress": good}))
        send_frame(sock, Frame({"progress": good}))
        send_frame(sock, Frame({"number": number, "progress": good}))
        result = {"weight": 1, "metrics": {}, "files": {}, "went_back": None, "data_change": None}
        send_frame(sock, Frame({"number": number, "saved": None, "result": result}))
        send_frame(sock, Frame({"number": number, "progress": good}))
with socket.socket(fileno=os.dup(0)) as sock:
    talk(sock)
"""


async def test_progress_that_cannot_be_or_comes_late_says_nothing(tmp_path: Path) -> None:
    async with running(make_config(tmp_path, arguments=("-c", BABBLER))) as worker:
        told: list[Progress] = []
        for height in (1, 2):
            await worker.train(height, TRAIN, on_progress=told.append)
        await worker.train(3, TRAIN)
        assert told == [Progress(1, 2, 0.5)] * 2
        assert worker.deaths == 0


async def test_a_training_is_as_long_as_it_is_asked_to_be_also_in_the_next_worker(tmp_path: Path) -> None:
    """The training that no checkpoint has is repeated there with as many iterations."""
    async with running(make_config(tmp_path, checkpoint_every=100)) as worker:
        assert get_number(await worker.train(1, TRAIN, num_iterations=7)) == 7.0
        pid = get_pid(worker)
        kill(pid)
        await wait_until(lambda: worker.pid not in (pid, None), "another worker is ready", DEADLINE_S)
        assert get_number(await worker.train(2, TRAIN)) == 72.0


async def test_a_worker_killed_at_rest_is_replaced_unnoticed(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        await worker.train(1, TRAIN)
        await worker.apply(1, aggregate(4))
        pid = get_pid(worker)
        kill(pid)
        await wait_until(lambda: worker.pid not in (pid, None), "another worker is ready", DEADLINE_S)
        assert get_number(await worker.train(2, TRAIN)) == 52.0
        assert worker.deaths == 1


CALLS = ("train 1", "apply 1", "train 2", "apply 2", "train 3", "apply 3", "apply 4", "apply 5", "train 6")


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.outer) for count in (1, 4, 7, 9))])
async def test_a_worker_killed_while_its_disk_lags_is_replaced_by_one_that_is_where_it_was(
    tmp_path: Path, count: int
) -> None:
    """So slow a disk that a worker which did not wait for it would have answered all these calls with no file there."""
    here = InlineTrainer(FakeClient({"model/w": np.zeros(1)}))
    async with running(make_config(tmp_path, arguments=(*ARGUMENTS, "0.1"))) as there:
        for call in CALLS[:count]:
            what, height = call.split()
            for trainer in (here, there):
                if what == "train":
                    await trainer.train(int(height), TRAIN)
                else:
                    await trainer.apply(int(height), aggregate(4))
        pid = get_pid(there)
        kill(pid)
        await wait_until(lambda: there.pid not in (pid, None), "another worker is ready", DEADLINE_S)
        assert get_number(await there.train(7, TRAIN)) == get_number(await here.train(7, TRAIN))


async def test_a_worker_killed_at_work_fails_the_call_and_asking_again_gives_what_it_would_have_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_config(tmp_path)) as worker:
        training = await begin_endless_training(worker, caplog)
        kill(get_pid(worker))
        with pytest.raises(WorkerDied, match="exit status -9"):
            await asyncio.wait_for(training, DEADLINE_S)
        assert get_number(await worker.train(1, TRAIN)) == 1.0
        with pytest.raises(WorkerDied):
            await worker.train(2, DIE)
        assert get_number(await worker.train(2, TRAIN)) == 12.0
        with pytest.raises(WorkerDied):
            await worker.train(3, BREAK)
        assert "RuntimeError: something nobody foresaw" in caplog.text
        assert get_number(await worker.train(3, TRAIN)) == 123.0
        assert worker.deaths == 3


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ((0, 1), "killed by the kernel for want of memory; a smaller batch_size or input.shape needs less"),
        ((0, 0), "killed by somebody, or by the kernel for want of memory; then a smaller batch_size"),
        ((None, None), "killed by somebody, or by the kernel"),
    ],
)
async def test_a_worker_killed_for_want_of_memory_is_said_to_be(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    counted: tuple[int | None, int | None],
    said: str,
) -> None:
    now = {"count": counted[0]}
    monkeypatch.setattr(child_process, "count_killed", lambda: now["count"])
    async with running(make_config(tmp_path)) as worker:
        training = await begin_endless_training(worker, caplog)
        now["count"] = counted[1]
        kill(get_pid(worker))
        with pytest.raises(WorkerDied, match=re.escape(f"the worker died: exit status -9, {said}")):
            await asyncio.wait_for(training, DEADLINE_S)
        assert get_number(await worker.train(1, TRAIN)) == 1.0


async def test_training_a_height_again_gives_the_same_bytes_also_after_a_restart(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        await worker.train(1, TRAIN)
        await worker.apply(1, aggregate(4))
        first = await worker.train(2, TRAIN)
        assert (await worker.train(2, TRAIN)).payloads == first.payloads
    async with running(make_config(tmp_path)) as worker:
        assert (await worker.train(2, TRAIN)).payloads == first.payloads


async def test_applying_a_height_again_changes_nothing(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        first = await worker.apply(1, aggregate(4))
        assert await worker.apply(1, aggregate(4)) == first


def make_exchange(number: float, *, gone: bool = False) -> Exchange:
    """What was taken of one peer, at weight 3; nothing of another."""
    blob = encode_arrays({"w": np.array([number])})
    digest = hashlib.sha256(blob).digest()
    offers = (Offer(PEER, 3, {"model": digest}), Offer(OTHER, 1, {"model": bytes(32)}))
    if gone:
        return Exchange(TRAIN, ME, offers, frozenset({PEER, OTHER}))
    return Exchange(TRAIN, ME, offers, frozenset({OTHER}), {digest: blob})


async def test_what_was_taken_of_peers_is_applied_and_again_in_the_worker_after_one_that_died(tmp_path: Path) -> None:
    async with running(make_config(tmp_path, checkpoint_every=100)) as worker:
        await worker.train(1, TRAIN)
        assert (await worker.apply(1, aggregate(4), make_exchange(10)))["accuracy"] == 35.0
        pid = get_pid(worker)
        kill(pid)
        await wait_until(lambda: worker.pid not in (pid, None), "another worker is ready", DEADLINE_S)
        assert (await worker.apply(1, aggregate(4), make_exchange(10, gone=True)))["accuracy"] == 35.0
        assert get_number(await worker.train(2, TRAIN)) == 352.0


async def test_a_worker_that_dies_of_what_it_applies_can_be_given_the_same_again(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        await worker.train(1, TRAIN)
        with pytest.raises(WorkerDied):
            await worker.apply(1, None, Exchange(beacon=DIE, me=DIE))
        assert (await worker.apply(1, None, make_exchange(10)))["accuracy"] == 31.0


@pytest.mark.outer
@pytest.mark.parametrize("every", [1, 100])
async def test_a_restart_goes_on_from_where_it_was(tmp_path: Path, every: int) -> None:
    config = make_config(tmp_path, checkpoint_every=every)
    async with running(config) as worker:
        assert (await worker.start(TASK)).checkpoint_round is None
        await worker.train(1, TRAIN)
        await worker.apply(1, aggregate(4))
    async with running(config) as worker:
        info = await worker.start(TASK)
        assert (info.checkpoint_round, info.trained_round) == (1, 1)
        assert get_number(await worker.train(2, TRAIN)) == 52.0
    async with running(config) as worker:
        info = await worker.start(TASK)
        assert (info.checkpoint_round, info.trained_round) == (1, 2)


async def test_the_last_two_calls_that_no_checkpoint_has_are_repeated_in_the_next_worker(tmp_path: Path) -> None:
    """As many as there can be with a checkpoint a round; with fewer checkpoints what was done before is lost."""
    async with running(make_config(tmp_path, checkpoint_every=100)) as worker:
        for height in (1, 2, 3):
            await worker.apply(height, aggregate(4))
        pid = get_pid(worker)
        kill(pid)
        await wait_until(lambda: worker.pid not in (pid, None), "another worker is ready", DEADLINE_S)
        assert get_number(await worker.train(4, TRAIN)) == 84.0


# ---- what is spoiled


@pytest.mark.parametrize("kind", ["process", "inline"])
async def test_a_spoiled_aggregate_leaves_the_client_as_it_was_until_it_is_passed_over(
    kind: str, tmp_path: Path
) -> None:
    inline = InlineTrainer(FakeClient({"model/w": np.zeros(1)}))
    trainer: Trainer = WorkerProcess(always(make_config(tmp_path))) if kind == "process" else inline
    await trainer.start(TASK)
    await trainer.train(1, TRAIN)
    await trainer.apply(1, aggregate(4))
    await trainer.train(2, TRAIN)
    with pytest.raises(AggregateSpoiled, match="round 2: the loss is nan"):
        await trainer.apply(2, aggregate(math.nan))
    assert (await trainer.pass_over(2))["accuracy"] == 52.0
    trained = await trainer.train(3, TRAIN)
    assert (get_number(trained), trained.went_back) == (523.0, None)
    await trainer.close()


@pytest.mark.parametrize("kind", ["process", "inline"])
async def test_passing_over_what_was_taken_in_undoes_it(kind: str, tmp_path: Path) -> None:
    inline = InlineTrainer(FakeClient({"model/w": np.zeros(1)}))
    trainer: Trainer = WorkerProcess(always(make_config(tmp_path))) if kind == "process" else inline
    await trainer.start(TASK)
    await trainer.train(1, TRAIN)
    await trainer.apply(1, aggregate(4))
    for _ in range(2):
        assert (await trainer.pass_over(1))["accuracy"] == 1.0
    await trainer.close()


async def test_a_checkpoint_of_what_was_passed_over_is_the_clients_own_model(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        await worker.train(1, TRAIN)
        with pytest.raises(AggregateSpoiled):
            await worker.apply(1, aggregate(math.inf))
        await worker.pass_over(1)
    checkpoint = Checkpoints(tmp_path).load_newest()
    assert checkpoint is not None
    assert (checkpoint.position, checkpoint.arrays["model/w"].item()) == ((1, True), 1.0)
    async with running(make_config(tmp_path)) as worker:
        assert (await worker.apply(1, aggregate(math.inf)))["accuracy"] == 1.0  # it was dealt with
        assert get_number(await worker.train(2, TRAIN)) == 12.0


@pytest.mark.parametrize(("every", "number"), [(1, 423.0), (100, 23.0)])
async def test_the_next_worker_is_brought_to_where_an_aggregate_was_passed_over(
    tmp_path: Path, every: int, number: float
) -> None:
    """With fewer checkpoints than one a round what was done before the last two calls is lost."""
    async with running(make_config(tmp_path, checkpoint_every=every)) as worker:
        await worker.apply(1, aggregate(4))
        await worker.train(2, TRAIN)
        await worker.pass_over(2)
        pid = get_pid(worker)
        kill(pid)
        await wait_until(lambda: worker.pid not in (pid, None), "another worker is ready", DEADLINE_S)
        assert get_number(await worker.train(3, TRAIN)) == number


@pytest.mark.outer
@pytest.mark.parametrize("restarts", [False, True])
async def test_training_that_diverges_from_an_aggregate_goes_back_also_after_a_restart(
    tmp_path: Path, restarts: bool
) -> None:
    """And gives the same when it is asked for again: the client's own model is where it began."""
    async with running(make_config(tmp_path)) as worker:
        await worker.train(1, TRAIN)
        await worker.apply(1, aggregate(2 * HIGHEST))
        if not restarts:
            trained = await worker.train(2, TRAIN)
    if restarts:
        async with running(make_config(tmp_path)) as worker:
            trained = await worker.train(2, TRAIN)
    assert get_number(trained) == 12.0
    assert trained.went_back == "from 2e+06"
    async with running(make_config(tmp_path)) as worker:
        again = await worker.train(2, TRAIN)
        assert again.payloads == trained.payloads


@pytest.mark.outer
async def test_a_worker_that_dies_of_an_aggregate_can_be_told_to_pass_it_over(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        await worker.train(1, TRAIN)
        for _ in range(2):
            with pytest.raises(WorkerDied):
                await worker.apply(1, aggregate(DEADLY))
        assert (await worker.pass_over(1))["accuracy"] == 1.0
        assert get_number(await worker.train(2, TRAIN)) == 12.0
        assert worker.deaths == 2


async def test_a_corrupt_checkpoint_is_reported_and_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_config(tmp_path)) as worker:
        await worker.apply(1, aggregate(4))
    damage(tmp_path)
    async with running(make_config(tmp_path)) as worker:
        assert (await worker.start(TASK)).checkpoint_round is None
        assert get_number(await worker.train(1, TRAIN)) == 1.0
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("applied.safetensors cannot be used and was moved to applied.safetensors.corrupt" in w for w in warnings)


def damage(directory: Path) -> None:
    for path in directory.iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


async def test_what_a_worker_prints_is_logged_at_its_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(make_config(tmp_path)) as worker:
        await worker.train(1, TALK)
    assert ("node.training.child_process", logging.INFO, "a library printed this") in caplog.record_tuples
    assert ("node.training.child_process", logging.WARNING, "a library warned of this") in caplog.record_tuples


async def test_a_worker_that_refuses_its_configuration_fails_at_once_and_says_why(tmp_path: Path) -> None:
    worker = WorkerProcess(always(make_config(tmp_path, device="abacus")))
    with pytest.raises(WorkerFailed, match="cannot be set up: device: expected one of this machine, got 'abacus'"):
        await asyncio.wait_for(worker.start(TASK), DEADLINE_S)
    with pytest.raises(WorkerFailed, match="abacus"):
        await worker.train(1, TRAIN)
    assert worker.deaths == 0
    await worker.close()
    with pytest.raises(WorkerFailed, match="closed"):
        await worker.train(1, TRAIN)


async def test_a_worker_that_dies_at_start_is_given_up_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "BACKOFF_S", 0.001)
    last_words = ("-I", "-S", "-c", "import sys; print('no module named this'); sys.exit(3)")
    worker = WorkerProcess(always(make_config(tmp_path, arguments=last_words)))
    with pytest.raises(WorkerFailed, match=r"died 8 times in a row: exit status 3; it last wrote:\n(?s:.*)no module"):
        await asyncio.wait_for(worker.start(TASK), DEADLINE_S)
    assert worker.last_death == "exit status 3"
    await worker.close()
    missing = WorkerProcess(always(make_config(tmp_path, python="/nonexistent/python")))
    with pytest.raises(WorkerFailed, match="/nonexistent/python cannot be started"):
        await missing.start(TASK)
    await missing.close()


async def test_whoever_waits_for_a_worker_hears_of_what_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ValueError("nobody foresaw this")

    worker = WorkerProcess(always(make_config(tmp_path)))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    for call in (worker.start(TASK), worker.train(1, TRAIN)):
        with pytest.raises(ValueError, match="nobody foresaw this"):
            await asyncio.wait_for(call, DEADLINE_S)
    await worker.close()


async def test_a_worker_that_dies_at_every_call_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "BACKOFF_S", 0.001)
    monkeypatch.setattr(worker_module, "MAX_CRASHES", 3)
    async with running(make_config(tmp_path)) as worker:
        for _ in range(3):
            with pytest.raises(WorkerDied):
                await worker.train(1, DIE)
        with pytest.raises(WorkerFailed, match="died 3 times in a row: exit status -9"):
            await worker.train(1, TRAIN)


async def test_closing_ends_the_process_and_the_call_under_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_config(tmp_path)) as worker:
        pid = get_pid(worker)
        training = await begin_endless_training(worker, caplog)
        await asyncio.wait_for(worker.close(), DEADLINE_S)
        with pytest.raises(WorkerDied):
            await training
    assert not is_alive(pid)
    assert "was killed" not in caplog.text


async def test_closing_before_the_worker_is_ready_ends_it(tmp_path: Path) -> None:
    worker = WorkerProcess(always(make_config(tmp_path)))
    starting = asyncio.create_task(worker.start(TASK))
    await asyncio.sleep(0)
    await worker.close()
    with pytest.raises(WorkerFailed, match="closed"):
        await starting


DAEMON = """
import asyncio, sys
from pathlib import Path
from support.federation.fake_task import TASK
from support.federation.fake_worker import TRAIN_UNTIL_STOPPED, always, make_config
from node.training.worker import WorkerProcess
async def main():
    worker = WorkerProcess(always(make_config(Path(sys.argv[1]))))
    await worker.start(TASK)
    assert "torch" not in sys.modules
    print(worker.pid, flush=True)
    await worker.train(1, TRAIN_UNTIL_STOPPED)
asyncio.run(main())
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", DAEMON, str(tmp_path)]
    with subprocess.Popen(command, cwd=tests, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def test_the_worker_dies_with_the_daemon_which_has_no_torch(daemon: subprocess.Popen[str]) -> None:
    assert daemon.stdout is not None
    pid = int(await asyncio.to_thread(daemon.stdout.readline))
    assert is_alive(pid)
    daemon.send_signal(signal.SIGKILL)
    await wait_until(lambda: not is_alive(pid), "the worker is gone", DEADLINE_S)


# ---- payloads too large to pass, and sets that stand on the disk


async def ask_until_alive(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The answer, asked for again when the worker died, as the service does."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(WorkerDied):
                return await ask()


def list_outgoing(tmp_path: Path) -> list[str]:
    directory = tmp_path / "outgoing"
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


async def test_a_payload_too_large_to_pass_is_a_file_that_whoever_called_may_move_away(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        trained = await worker.train(STREAMED_HEIGHT, TRAIN)
        assert trained.payloads.keys() == {"model"}
        (kind,), (path,) = trained.files, trained.files.values()
        assert (kind, path.parent) == ("encrypted_set", tmp_path / "outgoing")
        made = decode_arrays(path.read_bytes(), 1 << 30)
        np.testing.assert_array_equal(made["x"], np.full(STREAMED_NUMBERS, 100.0))
        path.rename(tmp_path / "mine")
        kill(get_pid(worker))
        measured = await ask_until_alive(lambda: worker.apply(STREAMED_HEIGHT, aggregate(1)))
        assert measured["accuracy"] == 101.0
        assert (tmp_path / "mine").exists()


async def test_what_an_earlier_life_left_is_gone_at_the_start_and_what_nobody_took_at_the_next_training(
    tmp_path: Path,
) -> None:
    (tmp_path / "outgoing").mkdir()
    (tmp_path / "outgoing" / "1-encrypted_set.half").write_bytes(b"half")
    async with running(make_config(tmp_path)) as worker:
        assert list_outgoing(tmp_path) == []
        first = await worker.train(STREAMED_HEIGHT, TRAIN)
        second = await worker.train(STREAMED_HEIGHT, TRAIN)
        (old,), (new,) = first.files.values(), second.files.values()
        assert old != new
        assert list_outgoing(tmp_path) == [new.name]
        kill(get_pid(worker))
        await ask_until_alive(lambda: worker.train(STREAMED_HEIGHT + 1, TRAIN))
        assert list_outgoing(tmp_path) == []


async def test_a_file_that_finds_no_room_fails_the_training_and_nothing_else(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        pid = get_pid(worker)
        with pytest.raises(TrainingFailed, match=f"round {STREAMED_HEIGHT}: .*outgoing.*File too large.*expected room"):
            await worker.train(STREAMED_HEIGHT, FILL_DISK)
        assert list_outgoing(tmp_path) == []
        assert (await worker.apply(STREAMED_HEIGHT, aggregate(1)))["accuracy"] == 101.0
        assert worker.pid == pid


def make_shared_sets(tmp_path: Path) -> Exchange:
    """A peer's number, 3, at weight 2, in a file; another's cannot be had."""
    data = encode_arrays({"w": np.array([3.0])})
    path = tmp_path / "set"
    path.write_bytes(data)
    digest = hashlib.sha256(data).digest()
    offers = (Offer(PEER, 2, {"model": digest}), Offer(OTHER, 5, {"model": bytes(32)}))
    return Exchange(TRAIN, ME, offers, frozenset({OTHER}), files={digest: path})


@pytest.mark.parametrize("kind", ["process", "inline"])
async def test_training_reads_what_stands_on_the_disk(kind: str, tmp_path: Path) -> None:
    inline = InlineTrainer(FakeClient({"model/w": np.zeros(1)}))
    trainer: Trainer = WorkerProcess(always(make_config(tmp_path))) if kind == "process" else inline
    await asyncio.wait_for(trainer.start(TASK), DEADLINE_S)
    shared = make_shared_sets(tmp_path)
    assert get_number(await trainer.train(1, TRAIN, shared=shared)) == 1 + 2 * 3
    (path,) = shared.files.values()
    path.unlink()
    with pytest.raises(TrainingFailed, match=f"round 2: {path}: cannot be read"):
        await trainer.train(2, TRAIN, shared=shared)
    assert get_number(await trainer.train(2, TRAIN)) == 10 * 7 + 2
    await trainer.close()


async def test_a_training_that_cannot_be_repeated_is_lost_and_the_worker_is_not(tmp_path: Path) -> None:
    """What it read is gone when the worker dies: the aggregate is applied to what there was before."""
    shared = make_shared_sets(tmp_path)
    async with running(make_config(tmp_path, checkpoint_every=10)) as worker:
        assert get_number(await worker.train(1, TRAIN, shared=shared)) == 7.0
        next(iter(shared.files.values())).unlink()
        kill(get_pid(worker))
        measured = await ask_until_alive(lambda: worker.apply(1, aggregate(4)))
        assert measured["accuracy"] == 4.0
        assert get_number(await worker.train(2, TRAIN)) == 42.0


# ---- the real one: torch, digits, methods

MODEL = {"name": "mlp"}
INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]}
CLASSES = tuple("0123456789")
BEACON = bytes(range(32))


def describe_client(method: str) -> dict[str, Any]:
    part = {"scheme": "classes", "avg": 3, "std": 1, "index": 1, "of": 4, "seed": get_partition_seed(1)}
    return {
        "method": {"name": method, "local_iterations": 20},
        "model": MODEL,
        "classes": CLASSES,
        "input": INPUT,
        "data": {"format": "digits", "partition": part},
        "seed": get_client_seed(1, 1),
        "device": "cpu",
    }


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """As in a worker: how many threads add numbers up decides their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


async def train_at_last(worker: WorkerProcess, height: int, num_iterations: int | None = None) -> Trained:
    return await ask_until_alive(lambda: worker.train(height, BEACON, num_iterations=num_iterations))


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("method", ["dfpl", pytest.param("fedavg", marks=pytest.mark.outer)])
@pytest.mark.outer
async def test_training_in_a_worker_gives_the_bytes_of_training_here_even_if_it_is_killed(
    method: str, tmp_path: Path
) -> None:
    initial = make_initial_aggregate(MODEL, INPUT["shape"], len(CLASSES), 1)
    client = make_described_client(describe_client(method), initial)
    (tmp_path / "initial_model.safetensors").write_bytes(encode_arrays(initial))
    config = WorkerConfig(
        **describe_client(method),
        initial_model=tmp_path / "initial_model.safetensors",
        checkpoint_dir=tmp_path / "checkpoints",
        outgoing_dir=tmp_path / "outgoing",
    )
    async with running(config) as worker:
        info = await worker.start(TASK)
        assert (info.num_train, info.num_test, info.device) == (client.num_train, client.num_test, "cpu")
        assert (info.parameters, info.model_bytes) == (client.spec.task.num_parameters, client.spec.model_bytes)
        for height, num_iterations in ((1, None), (2, 7), (3, 1)):
            here = client.train(height, BEACON, num_iterations=num_iterations)
            there = await train_at_last(worker, height, num_iterations)
            assert there.payloads == {kind: encode_arrays(arrays) for kind, arrays in here.payloads.items()}
            assert (there.weight, there.metrics["loss"]) == (here.weight, here.metrics["loss"])
            assert there.metrics.keys() >= {"loss", "accuracy", "seconds", "steps", "alpha_s"}
            assert there.metrics["iterations"] == there.metrics["steps"] == (num_iterations or 20)
            agreed = {
                name: array for kind, arrays in here.payloads.items() for name, array in add_kind(kind, arrays).items()
            }
            assert await worker.apply(height, encode_arrays(agreed)) == client.apply(height, agreed)
            if height == 2:
                kill(get_pid(worker))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    newest = checkpoints.load_newest()
    checkpoints.close()
    assert newest is not None
    assert (newest.round_number, newest.phase) == (3, Phase.APPLIED)
    assert encode_arrays(newest.arrays) == encode_arrays(client.state_arrays())


@pytest.mark.outer
@pytest.mark.usefixtures("_one_thread")
async def test_a_peers_model_that_does_harm_is_refused_in_a_worker_as_here(tmp_path: Path) -> None:
    described = describe_client("fedavg_p2p")
    initial = make_initial_aggregate(MODEL, INPUT["shape"], len(CLASSES), 1)
    client = make_described_client(described, initial, max_loss_ratio=2.0)
    config = WorkerConfig(
        **described,
        initial_model=encode_arrays(initial),
        checkpoint_dir=tmp_path / "checkpoints",
        outgoing_dir=tmp_path / "outgoing",
        max_loss_ratio=2.0,
    )
    made = client.train(1, BEACON)
    blobs, offers = {}, [Offer(ME, made.weight, {})]
    for peer, factor in ((PEER, 1.0), (OTHER, -50.0)):
        digests = {}
        for kind, arrays in made.payloads.items():
            data = encode_arrays({name: factor * array for name, array in arrays.items()})
            digests[kind] = hashlib.sha256(data).digest()
            blobs[digests[kind]] = data
        offers.append(Offer(peer, made.weight, digests))
    exchange = Exchange(BEACON, ME, tuple(sorted(offers, key=lambda offer: offer.author)), blobs=blobs)
    refused: dict[bytes, str] = {}
    expected: dict[bytes, str] = {}
    here = apply_to(client, 1, None, exchange, expected.__setitem__)
    async with running(config) as worker:
        await worker.train(1, BEACON)
        assert await worker.apply(1, None, exchange, refused.__setitem__) == here
    assert refused == expected
    assert refused.keys() == {OTHER}
    assert here["peers"] == 1


@pytest.mark.outer
@pytest.mark.usefixtures("_one_thread")
async def test_a_long_training_killed_half_way_gives_the_same_bytes_when_asked_for_again(tmp_path: Path) -> None:
    """And what a site chooses about its training reaches the worker."""
    described = describe_client("dfpl")
    initial = make_initial_aggregate(MODEL, INPUT["shape"], len(CLASSES), 1)
    client = make_described_client(described, initial)
    count = 12_000  # longer than from one report to the next, on any machine
    config = WorkerConfig(
        **described,
        initial_model=encode_arrays(initial),
        checkpoint_dir=tmp_path,
        outgoing_dir=tmp_path / "outgoing",
        engine={"precision": "fp32", "deterministic": True},
        rounds=3,
    )
    async with running(config) as worker:
        assert (await worker.start(TASK)).precision == "fp32"
        told: list[Progress] = []
        training = asyncio.create_task(worker.train(1, BEACON, num_iterations=count, on_progress=told.append))
        await wait_until(lambda: bool(told), "the first report", DEADLINE_S)
        kill(get_pid(worker))
        with pytest.raises(WorkerDied):
            await training
        assert told[0].steps == count
        there = await train_at_last(worker, 1, count)
    here = client.train(1, BEACON, num_iterations=count)
    assert there.payloads == {kind: encode_arrays(arrays) for kind, arrays in here.payloads.items()}


@pytest.mark.parametrize("keeps", [False, pytest.param(True, marks=pytest.mark.outer)])
@pytest.mark.outer
async def test_what_was_learned_stays_if_the_round_is_over_and_not_if_training_is_called_off(
    tmp_path: Path, keeps: bool
) -> None:
    described = describe_client("local")
    initial = make_initial_aggregate(MODEL, INPUT["shape"], len(CLASSES), 1)
    untrained = make_described_client(described, initial).evaluate()
    config = WorkerConfig(
        **described,
        initial_model=encode_arrays(initial),
        checkpoint_dir=tmp_path,
        outgoing_dir=tmp_path / "outgoing",
    )
    async with running(config) as worker:
        told: list[Progress] = []
        training = asyncio.create_task(worker.train(1, BEACON, num_iterations=100_000, on_progress=told.append))
        await wait_until(lambda: bool(told), "the first report", DEADLINE_S)
        if keeps:
            assert worker.abandon()
        else:
            training.cancel()
        with pytest.raises(TrainingAbandoned if keeps else asyncio.CancelledError):
            await training
        measured = await worker.apply(1, None)
        assert (measured["loss"] < untrained["loss"]) == keeps
        assert (measured["loss"] == untrained["loss"]) == (not keeps)


@pytest.mark.outer
@pytest.mark.usefixtures("_one_thread")
async def test_a_worker_killed_in_the_middle_of_the_encryptor_is_replaced_and_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    method = {"name": "fededs", "warmup_epochs": 1, "encryptor_epochs": 12, "unet_width": 8, "share_max": 50}
    described = describe_client("fededs") | {"method": method}
    initial = make_initial_aggregate(MODEL, INPUT["shape"], len(CLASSES), 1)
    client = make_described_client(described, initial)
    config = WorkerConfig(
        **described,
        initial_model=encode_arrays(initial),
        checkpoint_dir=tmp_path,
        outgoing_dir=tmp_path / "outgoing",
    )
    async with running(config) as worker:
        told: list[Progress] = []
        training = asyncio.create_task(worker.train(1, BEACON, on_progress=told.append))
        warmup = math.ceil(client.num_train / 32)
        await wait_until(lambda: bool(told) and told[-1].step > warmup, "the encryptor is being trained", DEADLINE_S)
        kill(get_pid(worker))
        with pytest.raises(WorkerDied):
            await training
        assert told[-1].steps == warmup * 13
        assert list_outgoing(tmp_path) == []
        there = await train_at_last(worker, 1)
        assert worker.deaths == 1
        data = there.files["encrypted_set"].read_bytes()
    here = client.train(1, BEACON)
    assert data == encode_arrays(here.payloads["encrypted_set"])
    assert there.payloads == {"chunk_digests": encode_arrays(here.payloads["chunk_digests"])}
    assert there.weight == here.weight
