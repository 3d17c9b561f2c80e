"""Scores from the worker process: the effect of aggregates on a client, never in the rounds' way, and leaving nothing
behind.

Most tests run a worker whose client is a number (`support.federation.fake_worker`), the last ones the real thing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.errors import Stopped
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.specs import METHODS, AuthorPayloads, compute_aggregate
from node.training import child_process
from node.training import worker as worker_module
from node.training.trainer import AnswerRefused, Trainer, WorkerDied, WorkerFailed
from node.training.worker import WorkerProcess
from support.federation.fake_task import TASK
from support.federation.fake_worker import (
    ANSWER,
    ANSWER_UNTIL_STOPPED,
    DEADLY,
    ENDLESS,
    TRAIN,
    TRAIN_UNTIL_STOPPED,
    FakeClient,
    always,
    make_config,
)
from support.federation.inline import InlineTrainer
from support.federation.recording import wait_until

DEADLINE_S = 120.0
Log = pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "CLOSE_S", DEADLINE_S)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """As in a worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_samples(told: int = ANSWER) -> bytes:
    return encode_arrays({"x": np.full((1, 1, 1, 1), told, np.uint8)})


def aggregate(number: float) -> bytes:
    return encode_arrays({"model/w": np.array([number])})


async def start(path: Path) -> WorkerProcess:
    worker = WorkerProcess(always(make_config(path)))
    await asyncio.wait_for(worker.start(TASK), DEADLINE_S)
    return worker


async def begin(call: Any, said: str, caplog: Log) -> asyncio.Task[Any]:
    """The call, once the worker has said that it has begun."""
    caplog.set_level("INFO")
    caplog.clear()
    task = asyncio.create_task(call)
    await wait_until(lambda: said in caplog.text, said, DEADLINE_S)
    return task


@pytest.mark.parametrize("kind", ["process", "inline"])
async def test_a_trainer_says_what_aggregates_would_do_and_takes_over_none(kind: str, tmp_path: Path) -> None:
    client = FakeClient({"model/w": np.zeros(1)})
    trainer: Trainer = InlineTrainer(client) if kind == "inline" else WorkerProcess(always(make_config(tmp_path)))
    await trainer.start(TASK)
    await trainer.train(1, TRAIN)
    assert await trainer.score(1, [aggregate(4), aggregate(-7), aggregate(0)]) == [5.0, -6.0, 1.0]
    assert await trainer.score(1, []) == []
    assert math.isnan((await trainer.score(1, [aggregate(math.nan)]))[0])
    with pytest.raises(AnswerRefused, match=r"^round 1: expected an array 'model/w'$"):
        await trainer.score(1, [encode_arrays({"model/v": np.zeros(1)})])
    assert (await trainer.apply(1, aggregate(4)))["accuracy"] == 5.0
    assert await trainer.score(1, [aggregate(4)]) == [9.0]
    assert (await trainer.pass_over(1))["accuracy"] == 1.0  # it can still go back behind what it took over
    told = await trainer.tell_of(aggregate(4), 50)
    assert decode_arrays(told, len(told))["told"] == [54.0]
    with pytest.raises(AnswerRefused, match="expected an array 'model/w'"):
        await trainer.tell_of(encode_arrays({"model/v": np.zeros(1)}), 50)
    await trainer.close()


async def test_a_score_waits_for_the_training_under_way(tmp_path: Path, caplog: Log) -> None:
    worker = await start(tmp_path)
    training = await begin(worker.train(1, TRAIN_UNTIL_STOPPED), "training began", caplog)
    scoring = asyncio.create_task(worker.score(1, [aggregate(1)]))
    await asyncio.sleep(0.05)
    assert not scoring.done()
    assert worker.abandon() is True  # what waits in line is none of a training's business
    training.cancel()
    assert await asyncio.wait_for(scoring, DEADLINE_S) == [1.0]
    await worker.close()


@pytest.mark.parametrize("what", ["train", "apply", "pass_over", "predict"])
async def test_a_score_gives_way_to_any_other_call_and_begins_anew(what: str, tmp_path: Path, caplog: Log) -> None:
    worker = await start(tmp_path)
    await worker.train(1, TRAIN)
    pid = worker.pid
    scoring = await begin(worker.score(1, [aggregate(1), aggregate(ENDLESS)]), "a score began", caplog)
    assert not worker.abandon()  # a score is nothing to abandon
    caplog.clear()
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "train": lambda: worker.train(1, TRAIN),
        "apply": lambda: worker.apply(1, aggregate(4)),
        "pass_over": lambda: worker.pass_over(1),
        "predict": lambda: worker.predict(make_samples()),
    }
    await asyncio.wait_for(calls[what](), DEADLINE_S)
    await wait_until(lambda: "a score began" in caplog.text, "the score to begin anew", DEADLINE_S)
    assert not scoring.done()
    scoring.cancel()
    await asyncio.wait({scoring})
    assert await worker.score(1, [aggregate(0)]) == [5.0 if what == "apply" else 1.0]
    assert (worker.pid, worker.deaths) == (pid, 0)
    await worker.close()


async def test_scores_come_last_whoever_asked_first(tmp_path: Path, caplog: Log) -> None:
    worker = await start(tmp_path)
    first = await begin(worker.predict(make_samples(ANSWER_UNTIL_STOPPED)), "an answer began", caplog)
    ended: list[str] = []

    async def do(what: str, call: Coroutine[Any, Any, Any]) -> None:
        assert await call != []
        ended.append(what)

    tasks = []
    for what, call in (
        ("score", worker.score(1, [aggregate(0)])),
        ("predict", worker.predict(make_samples())),
        ("score", worker.score(1, [aggregate(0)])),
        ("train", worker.train(1, TRAIN)),
        ("predict", worker.predict(make_samples())),
    ):
        tasks.append(asyncio.create_task(do(what, call)))
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
    assert sorted(ended[:3]) == ["predict", "predict", "train"]
    assert ended[3:] == ["score", "score"]
    assert worker.deaths == 0
    await worker.close()


async def test_a_score_that_is_called_off_leaves_no_answer_behind(tmp_path: Path, caplog: Log) -> None:
    worker = await start(tmp_path)
    for height in (1, 2):
        scoring = await begin(worker.score(1, [aggregate(ENDLESS)]), "a score began", caplog)
        waiting = asyncio.create_task(worker.score(1, [aggregate(DEADLY)]))
        await asyncio.sleep(0)
        waiting.cancel()
        scoring.cancel()
        await asyncio.wait({waiting, scoring})
        assert len(await worker.score(1, [aggregate(0)] * height)) == height
        await asyncio.wait_for(worker.train(height, TRAIN), DEADLINE_S)
    assert worker.deaths == 0
    await worker.close()


async def test_whoever_waits_for_a_score_hears_that_the_worker_was_closed(tmp_path: Path, caplog: Log) -> None:
    worker = await start(tmp_path)
    scoring = await begin(worker.score(1, [aggregate(ENDLESS)]), "a score began", caplog)
    await worker.close()
    with pytest.raises((WorkerDied, WorkerFailed)):
        await scoring
    with pytest.raises(WorkerFailed):
        await worker.score(1, [aggregate(0)])


async def test_an_aggregate_that_kills_the_worker_costs_the_rounds_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "BACKOFF_S", 0.001)
    monkeypatch.setattr(worker_module, "MAX_CRASHES", 2)
    worker = await start(tmp_path)
    await worker.train(1, TRAIN)
    for _ in range(3):
        with pytest.raises(WorkerDied, match="exit status -9"):
            await worker.score(1, [aggregate(0), aggregate(DEADLY)])
    assert await worker.score(1, [aggregate(0)]) == [1.0]
    assert (await worker.apply(1, aggregate(4)))["accuracy"] == 5.0
    await worker.close()


# ---- the real client: every method whose members combine something

DIGITS = {"format": "digits"}
MODEL = {"name": "mlp", "hidden": [16]}
SHARING = (
    "fedavg",
    "fedprox",
    "fednova",
    "blade_fl",
    "moon",
    "swim",
    "fedintr",
    "mpfedcl",
    "dfpl",
    "fedproto",
    "fedrep",
    "ditto",
)
BEACON = bytes(32)


def make_three(name: str) -> list[Client]:
    classes, input_ = get_classes(DIGITS), get_default_input(DIGITS, MODEL)
    method = {"name": name, "local_iterations": 5}
    return make_clients(
        Federation(method=method, model=MODEL, classes=classes, input=input_, rounds=2, num_members=3),
        data=DIGITS,
        partition="dirichlet:5",
        run_seed=1,
        initial=make_initial_aggregate(MODEL, input_["shape"], len(classes), 1),
    )


def combine(clients: list[Client], height: int, parent: Arrays | None) -> tuple[Arrays, Arrays]:
    """A round of all: its aggregate, and the same without the last one's part."""
    authors = []
    for i, client in enumerate(clients):
        trained = client.train(height, BEACON)
        authors.append(AuthorPayloads(bytes([i]) * 32, trained.weight, trained.payloads))
    spec = clients[0].spec
    encoded = [compute_aggregate(spec, height, given, parent) for given in (authors, authors[:-1])]
    whole, without = (decode_arrays(data, len(data)) for data in encoded if data is not None)
    return whole, without


def copy_state(client: Client) -> dict[str, bytes]:
    """To the bit, with what cannot travel: buffers that count."""
    arrays: dict[str, Array] = dict(client.state_arrays())
    arrays |= {f"all/{name}": tensor.numpy() for name, tensor in client.state.model.state_dict().items()}
    return {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}


def test_the_methods_here_are_those_that_combine() -> None:
    assert set(SHARING) < set(METHODS)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("name", SHARING)
def test_a_client_is_to_the_bit_as_it_was_and_goes_on_as_if_it_had_not_been_asked(name: str) -> None:
    asked, silent = make_three(name), make_three(name)
    parent: Arrays = make_initial_aggregate(MODEL, (1, 8, 8), 10, 1)
    for height in (1, 2):
        whole, without = combine(asked, height, parent)
        combine(silent, height, parent)
        before, generator = copy_state(asked[0]), torch.get_rng_state()
        losses = asked[0].score(height, [whole, without, whole])
        assert copy_state(asked[0]) == before
        assert torch.equal(torch.get_rng_state(), generator)
        assert losses[0] == losses[2]
        for one, other in zip(asked, silent, strict=True):
            assert one.apply(height, whole) == other.apply(height, whole)
        assert asked[0].evaluate()["loss"] == pytest.approx(losses[0])  # added up of other chunks
        assert asked[0].score(height, [without])[0] == losses[1]  # also once it has been taken over
        parent = whole
    assert copy_state(asked[0]) == copy_state(silent[0])
    assert asked[0].go_back() == silent[0].go_back() is True
    assert copy_state(asked[0]) == copy_state(silent[0])


@pytest.mark.usefixtures("_one_thread")
def test_a_client_is_as_it_was_whatever_becomes_of_the_score() -> None:
    client, *_ = clients = make_three("fedavg")
    whole, _ = combine(clients, 1, None)
    before = copy_state(client)
    spoiled = {key: np.full_like(array, 1e38) for key, array in whole.items()}
    assert not math.isfinite(client.score(1, [spoiled])[0])
    assert copy_state(client) == before
    with pytest.raises(ValueError, match="parameters do not fit"):
        client.score(1, [whole, {"model/none": np.zeros(1, np.float32)}])
    assert copy_state(client) == before
    with pytest.raises(Stopped):
        client.score(1, [whole], should_stop=lambda: True)
    assert copy_state(client) == before
