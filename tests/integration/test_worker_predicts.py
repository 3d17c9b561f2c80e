"""Predictions by the worker process: between the rounds' own calls, never in their way, and leaving nothing behind.

Most tests run a worker whose client is a number (`support.federation.fake_worker`), the last one the real thing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.build import get_client_seed, make_initial_aggregate
from ml.clients.client import Client
from ml.clients.inference import answer
from ml.data.base import InputFormat
from ml.data.readers.digits import load_digits
from ml.payload import Arrays, decode_arrays, encode_arrays
from ml.seeding import get_partition_seed
from ml.specs import add_kind
from node.training import child_process
from node.training import worker as worker_module
from node.training.trainer import AnswerRefused, Predicted, Trainer, WorkerDied, WorkerFailed
from node.training.worker import WorkerProcess
from node.training.worker_config import WorkerConfig
from support.federation.fake_task import TASK
from support.federation.fake_worker import (
    ANSWER,
    ANSWER_UNTIL_STOPPED,
    DIE,
    DIE_OF_IT,
    REFUSE,
    TRAIN,
    TRAIN_UNTIL_STOPPED,
    FakeClient,
    always,
    make_config,
)
from support.federation.inline import InlineTrainer
from support.federation.processes import kill
from support.federation.recording import wait_until
from support.federation.simulated import make_described_client

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "CLOSE_S", DEADLINE_S)


@asynccontextmanager
async def running(config: WorkerConfig) -> AsyncIterator[WorkerProcess]:
    worker = WorkerProcess(always(config))
    await asyncio.wait_for(worker.start(TASK), DEADLINE_S)
    try:
        yield worker
    finally:
        await worker.close()


def make_samples(told: int = ANSWER, count: int = 1) -> bytes:
    return encode_arrays({"x": np.full((count, 1, 1, 1), told, np.uint8)})


def aggregate(number: float) -> bytes:
    return encode_arrays({"model/w": np.array([number])})


def read(predicted: Predicted) -> Arrays:
    return decode_arrays(predicted.answer, len(predicted.answer))


def get_number(predicted: Predicted) -> float:
    """The state of a fake client when it was asked."""
    return float(read(predicted)["probabilities"][0, 0])


async def begin(call: Coroutine[Any, Any, Any], said: str, caplog: pytest.LogCaptureFixture) -> asyncio.Task[Any]:
    """The call, once the worker has said that it has begun."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    task = asyncio.create_task(call)
    await wait_until(lambda: said in caplog.text, said, DEADLINE_S)
    return task


async def begin_endless_answer(worker: WorkerProcess, caplog: pytest.LogCaptureFixture) -> asyncio.Task[Any]:
    return await begin(worker.predict(make_samples(ANSWER_UNTIL_STOPPED)), "an answer began", caplog)


async def begin_endless_training(worker: WorkerProcess, caplog: pytest.LogCaptureFixture) -> asyncio.Task[Any]:
    return await begin(worker.train(1, TRAIN_UNTIL_STOPPED), "training began", caplog)


@pytest.mark.parametrize("kind", ["process", "inline"])
async def test_a_trainer_answers_as_it_stands_and_says_whose_aggregate_it_has(kind: str, tmp_path: Path) -> None:
    client = FakeClient({"model/w": np.zeros(1)})
    trainer: Trainer = InlineTrainer(client, client.answer)
    if kind == "process":
        trainer = WorkerProcess(always(make_config(tmp_path)))
    await trainer.start(TASK)
    told = [await trainer.predict(make_samples(count=3))]
    await trainer.train(1, TRAIN)
    told.append(await trainer.predict(make_samples()))
    await trainer.apply(1, aggregate(4))
    told.append(await trainer.predict(make_samples()))
    assert [(get_number(said), said.applied_round) for said in told] == [(0, 0), (1, 0), (5, 1)]
    assert read(told[0])["labels"].tolist() == [0, 0, 0]
    with pytest.raises(AnswerRefused, match=r"^the model gives no numbers$"):
        await trainer.predict(make_samples(REFUSE))
    assert get_number(await trainer.predict(make_samples())) == 5
    await trainer.close()


async def test_a_worker_answers_as_after_a_round_that_is_kept_and_stands_where_it_stood(tmp_path: Path) -> None:
    async with running(make_config(tmp_path, keeps_rounds=True, checkpoint_every=10)) as worker:
        for number, shared in enumerate((4.0, 7.0, 2.0), start=1):
            await worker.train(number, TRAIN)
            await worker.apply(number, aggregate(shared))
        now = await worker.predict(make_samples())
        first = await worker.predict(make_samples(), kept=1)
        assert (first.applied_round, now.applied_round) == (1, 3)
        assert get_number(first) == 5.0
        assert get_number(await worker.predict(make_samples())) == get_number(now) != get_number(first)
        with pytest.raises(AnswerRefused, match="round 9: its model is not kept here"):
            await worker.predict(make_samples(), kept=9)
        await worker.train(4, TRAIN)
        assert get_number(await worker.predict(make_samples(), kept=1)) == 5.0


async def test_a_trainer_that_only_trains_refuses() -> None:
    with pytest.raises(AnswerRefused, match="got one that only trains"):
        await InlineTrainer(FakeClient({"model/w": np.zeros(1)})).predict(make_samples())


async def test_a_prediction_waits_for_the_training_under_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_config(tmp_path)) as worker:
        training = await begin_endless_training(worker, caplog)
        asking = asyncio.create_task(worker.predict(make_samples()))
        await asyncio.sleep(0.05)
        assert not asking.done()
        training.cancel()
        assert get_number(await asyncio.wait_for(asking, DEADLINE_S)) == 0.0
        assert training.cancelled()


async def test_training_waits_for_one_of_many_predictions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_config(tmp_path)) as worker:
        first = await begin_endless_answer(worker, caplog)
        numbers: list[float] = []

        async def ask() -> None:
            numbers.append(get_number(await worker.predict(make_samples())))

        others = [asyncio.create_task(ask()) for _ in range(4)]
        await asyncio.sleep(0)
        training = asyncio.create_task(worker.train(1, TRAIN))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(asyncio.gather(training, *others), DEADLINE_S)
        assert numbers == [1.0] * 4


async def test_a_round_that_is_over_does_not_wait_for_a_training_that_waits_for_a_prediction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be abandoned has to be cancelled, and an answer under way is nobody's to abandon."""
    async with running(make_config(tmp_path)) as worker:
        answering = await begin_endless_answer(worker, caplog)
        training = asyncio.create_task(worker.train(1, TRAIN))
        await asyncio.sleep(0)
        assert not worker.abandon()
        training.cancel()
        await asyncio.wait({training})
        assert not answering.done()
        answering.cancel()
        assert get_number(await worker.predict(make_samples())) == 0.0


async def test_a_prediction_that_is_called_off_leaves_no_answer_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_config(tmp_path)) as worker:
        pid = worker.pid
        for height in (1, 2):
            answering = await begin_endless_answer(worker, caplog)
            waiting = asyncio.create_task(worker.predict(make_samples(DIE_OF_IT)))
            await asyncio.sleep(0)
            waiting.cancel()
            answering.cancel()
            await asyncio.wait({waiting, answering})
            assert len(read(await worker.predict(make_samples(count=height)))["labels"]) == height
            await asyncio.wait_for(worker.train(height, TRAIN), DEADLINE_S)
        assert (worker.pid, worker.deaths) == (pid, 0)


@pytest.mark.outer
async def test_samples_that_kill_the_worker_cost_the_rounds_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: a prediction says neither that a worker is sick nor that it is well."""
    monkeypatch.setattr(worker_module, "BACKOFF_S", 0.001)
    monkeypatch.setattr(worker_module, "MAX_CRASHES", 2)
    async with running(make_config(tmp_path, checkpoint_every=100)) as worker:
        await worker.train(1, TRAIN)
        await worker.apply(1, aggregate(4))
        for _ in range(3):
            with pytest.raises(WorkerDied, match="exit status -9"):
                await worker.predict(make_samples(DIE_OF_IT))
        told = await worker.predict(make_samples())
        assert (get_number(told), told.applied_round) == (5.0, 1)
        with pytest.raises(WorkerDied):
            await worker.train(2, DIE)
        await worker.predict(make_samples())
        with pytest.raises(WorkerDied):
            await worker.train(2, DIE)
        with pytest.raises(WorkerFailed, match="died 2 times in a row"):
            await worker.predict(make_samples())


async def test_a_prediction_waits_for_the_next_worker(tmp_path: Path) -> None:
    async with running(make_config(tmp_path)) as worker:
        await worker.train(1, TRAIN)
        pid = worker.pid
        assert pid is not None
        kill(pid)
        await wait_until(lambda: worker.pid != pid, "the worker is gone", DEADLINE_S)
        assert get_number(await asyncio.wait_for(worker.predict(make_samples()), DEADLINE_S)) == 1.0
        assert worker.deaths == 1


async def test_a_prediction_makes_no_checkpoint(tmp_path: Path) -> None:
    """The only one is that of the state before the first round."""
    async with running(make_config(tmp_path, checkpoint_every=100)) as worker:
        await worker.start(TASK)
        await wait_until(lambda: bool(get_files(tmp_path)), "the first checkpoint", DEADLINE_S)
        before = get_files(tmp_path)
        await worker.predict(make_samples())
    assert get_files(tmp_path) == before


def get_files(directory: Path) -> dict[str, int]:
    """The checkpoints, by name; each time one is written it is another file."""
    return {path.name: path.stat().st_ino for path in directory.glob("*.safetensors")}


# ---- the real one: torch, digits, methods

MODEL = {"name": "mlp"}
INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "mean": [0.3], "std": [0.4]}
CLASSES = tuple("0123456789")
BEACON = bytes(range(32))
METHODS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "dfpl", "infer": "prototype"},
    {"name": "fedproto"},
    {"name": "mpfedcl"},
]


def get_name(method: dict[str, Any]) -> str:
    return str(method["name"])


def describe_client(method: dict[str, Any]) -> dict[str, Any]:
    part = {"scheme": "classes", "avg": 3, "std": 1, "index": 1, "of": 4, "seed": get_partition_seed(1)}
    return {
        "method": {"local_iterations": 20, **method},
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


def check_answer(told: Predicted, client: Client, encoded: bytes, digits: np.ndarray) -> Arrays:
    """What the worker said is, to the bit, what the client here says."""
    here = answer(client, InputFormat.from_mapping(INPUT), decode_arrays(encoded, len(encoded))["x"])
    there = read(told)
    assert there.keys() == here.keys()
    for name in here:
        np.testing.assert_array_equal(there[name], here[name], name)
    normalised = (digits - np.float32(0.3)) / np.float32(0.4)
    assert there["labels"].tolist() == client.predict(torch.tensor(normalised)).labels.tolist()
    assert there["probabilities"].sum(1) == pytest.approx(1.0)
    return there


# the worker that a node starts, on a disk that lags so far behind a round that a kill finds it at its worst
LAGGING = """
import time
from node.training import worker_child
worker_child.main(faults=lambda step: time.sleep(0.1 if step.endswith(".begin") else 0))
"""


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize(
    "method", [*METHODS[:1], *(pytest.param(method, marks=pytest.mark.outer) for method in METHODS[1:])], ids=get_name
)
@pytest.mark.outer
async def test_a_worker_says_what_the_client_says_and_trains_as_if_it_had_not_been_asked(
    method: dict[str, Any], tmp_path: Path
) -> None:
    initial = make_initial_aggregate(MODEL, INPUT["shape"], len(CLASSES), 1)
    client = make_described_client(describe_client(method), initial)
    config = WorkerConfig(
        **describe_client(method),
        initial_model=encode_arrays(initial),
        checkpoint_dir=tmp_path / "checkpoints",
        outgoing_dir=tmp_path / "outgoing",
        arguments=("-P", "-c", LAGGING),
    )
    digits = load_digits()[1].x[:300]
    encoded = encode_arrays({"x": digits})
    async with running(config) as worker:
        check_answer(await worker.predict(encoded), client, encoded, digits)
        for height in (1, 2):
            here = client.train(height, BEACON)
            there = await worker.train(height, BEACON)
            assert there.payloads == {kind: encode_arrays(arrays) for kind, arrays in here.payloads.items()}
            check_answer(await worker.predict(encoded), client, encoded, digits)
            agreed = compute_agreed(here.payloads, method["name"])
            assert await worker.apply(height, encode_arrays(agreed)) == client.apply(height, agreed)
            told = await worker.predict(encoded)
            said = check_answer(told, client, encoded, digits)
            assert told.applied_round == height
            assert ("distances" in said) == (method["name"] != "fedavg")
            if "authors" in said:
                assert set(said["authors"].tolist()) == {0}
        pid = worker.pid
        assert pid is not None
        kill(pid)
        await wait_until(lambda: worker.pid not in (pid, None), "another worker is ready", DEADLINE_S)
        told = await worker.predict(encoded)
        check_answer(told, client, encoded, digits)
        assert told.applied_round == 2


def compute_agreed(payloads: Any, method: str) -> dict[str, np.ndarray]:
    """The aggregate of a round to which only this client contributed."""
    agreed = {name: array for kind, arrays in payloads.items() for name, array in add_kind(kind, arrays).items()}
    if method == "mpfedcl":
        agreed["prototypes/authors"] = np.zeros(len(agreed["prototypes/classes"]), np.int64)
    return agreed
