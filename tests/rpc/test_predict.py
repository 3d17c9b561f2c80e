"""Predictions of a running node over its admin socket: what it says, how the command shows it, and how it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc import aio

from chain.signing import SigningKey, encode_id
from ml import payload
from ml.data.inference_files import DEFAULT_LABEL
from ml.measures.alone import TrainedAlone
from node.admin import answers, predictor
from node.admin import client as admin_client
from node.admin.asking import Labelled
from node.admin.client import AdminClient
from node.admin.samples import MAX_BYTES
from node.admin.wiring import make_predictor
from node.cli import main
from node.config.node_sections import ColumnsSection
from node.errors import InvalidRequest, NodeError, NodeUnreachable
from node.pb import admin_pb2 as pb
from node.pb import admin_pb2_grpc
from node.training.trainer import AnswerRefused, Predicted, RunTask, TrainerInfo, WorkerDied, WorkerFailed
from support.federation.asked import Running, make_config, running
from support.federation.cluster import NUM_CLASSES, ScriptedTrainer
from support.federation.recording import PATIENCE_S

pytestmark = pytest.mark.outer

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


class Telling(ScriptedTrainer):
    """Tells of each sample the class that its first pixel is, and of a pool's prototype, and what it was asked."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, 0.001)
        self.counts: list[int] = []
        self.kappas: list[float | None] = []
        self.authors: list[int] | None = None
        self.error: Exception | None = None
        self.alone: TrainedAlone | None = None
        self.alone_says: int | None = None  # of every sample
        self.weight: float | None = None  # of its own model in what is mixed
        self.is_let = asyncio.Event()
        self.is_let.set()

    async def predict(
        self,
        samples: bytes,
        *,
        alone: bool = False,
        kappa: float | None = None,
        kept: int | None = None,
        calibrated: bool = False,
    ) -> Predicted:
        await self.is_let.wait()
        if self.error is not None:
            raise self.error
        x = payload.decode_arrays(samples, len(samples))["x"]
        self.counts.append(len(x))
        self.kappas.append(kappa)
        labels = x[:, 0, 0, 0].astype(np.int64)
        probabilities = np.full((len(x), NUM_CLASSES), 0.05, np.float32)
        probabilities[np.arange(len(x)), labels] = 0.55
        answer: dict[str, payload.Array] = {"labels": labels, "probabilities": probabilities}
        if self.authors is not None:
            answer["authors"] = np.resize(np.array(self.authors, np.int64), len(x))
            answer["distances"] = np.full(len(x), 1.5, np.float32)
        if calibrated:
            answer["temperature"] = np.array([2.0])
        applied = max(self.applied, default=0)
        if not alone or self.alone is None:
            return Predicted(payload.encode_arrays(answer), applied)
        if self.alone_says is None:
            return Predicted(payload.encode_arrays(answer), applied, 1, self.alone)
        other = make_same(len(x), self.alone_says)
        beside = [payload.encode_arrays(each) for each in (answer, other)]
        if self.weight is None:
            return Predicted(beside[0], applied, 1, self.alone, beside[1])
        said = self.weight * probabilities + (1 - self.weight) * np.asarray(other["probabilities"])
        mixed = {"labels": said.argmax(1), "probabilities": said, "weight": np.array([self.weight])}
        return Predicted(beside[0], applied, 1, self.alone, beside[1], payload.encode_arrays(mixed))


def make_same(count: int, label: int) -> payload.Arrays:
    """An answer to so many samples that gives all of them one class."""
    probabilities = np.eye(1, NUM_CLASSES, label, dtype=np.float32).repeat(count, axis=0)
    return {"labels": np.full(count, label, np.int64), "probabilities": probabilities}


def make_trainers(first: ScriptedTrainer) -> Sequence[ScriptedTrainer]:
    return [first, ScriptedTrainer(1, 0.001), ScriptedTrainer(2, 0.001)]


def encode(*labels: int) -> bytes:
    x = np.zeros((len(labels), 1, 8, 8), np.uint8)
    x[:, 0, 0, 0] = labels
    return payload.encode_arrays({"x": x})


def ask(samples: bytes, top: int = 3, wait_s: float = PATIENCE_S) -> Callable[[AdminClient], pb.PredictReply]:
    return lambda node: node.predict(samples, top, wait_s)


def _predict_at(prior: float | None, node: AdminClient) -> pb.PredictReply:
    return node.predict(encode(1), 3, PATIENCE_S, prior=prior)


async def get_code(one: Running, request: pb.PredictRequest) -> grpc.StatusCode:
    async with aio.insecure_channel(f"unix:{one.path}") as channel:
        stub: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Predict(request)
    return caught.value.code()


async def test_classes_come_by_name_the_most_probable_first(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=2, trainers=make_trainers(Telling())) as one:
        await one.net.wait_for_height(2)
        reply = await one.ask(ask(encode(7, 3), top=2))
        assert [said.class_name for said in reply.predictions] == ["7", "3"]
        first = reply.predictions[0]
        assert first.label == 7
        assert first.probability == pytest.approx(0.55)
        assert [(other.label, other.class_name) for other in first.top] == [(7, "7"), (0, "0")]
        assert not any(first.HasField(field) for field in ("distance", "nearest", "nearest_name"))
        usual = await one.ask(ask(encode(7), top=0))
        assert len(usual.predictions[0].top) == 3
        every = await one.ask(ask(encode(7), top=99))
        assert len(every.predictions[0].top) == NUM_CLASSES


async def test_the_nearest_prototype_has_an_owner_by_the_applied_block(tmp_path: Path) -> None:
    trainer = Telling()
    async with running(tmp_path, rounds=2, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for(lambda: 2 in trainer.applied, "round 2 to be applied")
        trainer.authors = [2, 0]
        reply = await one.ask(ask(encode(7, 3)))
        authors = [contribution.author for contribution in one.net["node0"].get_block(2).contributions]
        assert reply.applied_round == 2
        assert [said.nearest for said in reply.predictions] == [encode_id(authors[2]), encode_id(authors[0])]
        assert [said.nearest_name for said in reply.predictions] == ["node2", "node0"]
        assert [said.distance for said in reply.predictions] == [1.5, 1.5]
        trainer.authors = [3]
        with pytest.raises(NodeError, match="block 2: expected an author from 0 to 2, got 3"):
            await one.ask(ask(encode(7)))


async def test_what_is_no_sample_is_an_invalid_argument(tmp_path: Path) -> None:
    trainer = Telling()
    async with running(tmp_path, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for_height(1)
        colour = payload.encode_arrays({"x": np.zeros((1, 4, 8, 8), np.uint8)})
        many = payload.encode_arrays({"x": np.zeros((2049, 1, 8, 8), np.uint8)})
        for samples, message in [
            (b"\x00" * 100, "samples: header length: expected"),
            (colour, r"samples: expected images that can be made \[1, 8, 8\]"),
            (many, "samples: expected at most 2048 in one request, got 2049"),
            (bytes(MAX_BYTES + 1), "samples: encoding too long"),
        ]:
            with pytest.raises(InvalidRequest, match=message):
                await one.ask(ask(samples))
            assert await get_code(one, pb.PredictRequest(samples=samples)) is grpc.StatusCode.INVALID_ARGUMENT
        for wait_s in (0.0, -1.0, float("nan"), float("inf")):
            request = pb.PredictRequest(samples=encode(1), wait_s=wait_s)
            assert await get_code(one, request) is grpc.StatusCode.INVALID_ARGUMENT
        trainer.error = AnswerRefused("the model gives no numbers")
        with pytest.raises(InvalidRequest, match="samples: the model gives no numbers"):
            await one.ask(ask(encode(1)))
        assert trainer.counts == []


async def test_more_than_a_request_may_hold_never_reaches_the_node(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        request = pb.PredictRequest(samples=bytes(MAX_BYTES + (1 << 20)))
        assert await get_code(one, request) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_node_that_trains_says_so_when_the_time_is_over(tmp_path: Path) -> None:
    class Training(Telling):
        async def train(self, *arguments: object, **more: object) -> None:  # type: ignore[override]  # never ends
            await asyncio.Event().wait()

    trainer = Training()
    trainer.is_let.clear()
    async with running(tmp_path, trainers=make_trainers(trainer)) as one:
        service = one.net["node0"].service
        assert service is not None
        await one.net.wait_for(lambda: service.learner.work is not None, "training")
        expected = "not answered within 0.05 s: training for round .* is under way, and a prediction waits for its end"
        with pytest.raises(NodeUnreachable, match=expected):
            await one.ask(ask(encode(1), wait_s=0.05))
        code = await get_code(one, pb.PredictRequest(samples=encode(1), wait_s=0.05))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        trainer.is_let.set()
        assert len((await one.ask(ask(encode(1)))).predictions) == 1
        assert trainer.counts == [1]


async def test_a_worker_that_is_away_is_asked_again_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    class Starting(Telling):
        async def start(self, task: RunTask) -> TrainerInfo:
            await self.is_let.wait()
            if self.error is not None:
                raise self.error
            return await super().start(task)

    trainer = Starting()
    trainer.is_let.clear()
    async with running(tmp_path, trainers=make_trainers(trainer)) as one:
        request = pb.PredictRequest(samples=encode(1))
        with pytest.raises(NodeUnreachable, match=r"^the worker is not ready yet; ask again$"):
            await one.ask(ask(encode(1)))
        assert await get_code(one, request) is grpc.StatusCode.UNAVAILABLE
        trainer.is_let.set()
        await one.net.wait_for_height(1)
        trainer.error = WorkerDied("the worker died: exit status -9")
        assert await get_code(one, request) is grpc.StatusCode.UNAVAILABLE
        trainer.error = WorkerFailed("the worker died 8 times in a row")
        with pytest.raises(NodeError, match="no worker any more: the worker died 8 times in a row"):
            await one.ask(ask(encode(1)))
        assert await get_code(one, request) is grpc.StatusCode.FAILED_PRECONDITION
    refused = Starting()
    refused.error = WorkerFailed("the worker cannot be set up: no such device")
    async with running(tmp_path / "other", trainers=make_trainers(refused)) as one:
        service = one.net["node0"].service
        assert service is not None
        await one.net.wait_for(lambda: service.learner.failure is not None, "the worker to be given up")
        assert await get_code(one, request) is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_prior_reaches_the_worker_as_it_was_given_or_not_at_all(tmp_path: Path) -> None:
    trainer = Telling()
    async with running(tmp_path, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for_height(1)
        for prior in (None, 0.0, 0.25, 100.0):
            await one.ask(partial(_predict_at, prior))
        for prior in (-0.1, 100.5, float("nan"), float("inf")):
            request = pb.PredictRequest(samples=encode(1), prior=prior)
            assert await get_code(one, request) is grpc.StatusCode.INVALID_ARGUMENT
        assert trainer.kappas == [None, 0.0, 0.25, 100.0]


async def test_what_is_nearest_to_a_sample_of_the_nodes_own_is_no_members(tmp_path: Path) -> None:
    trainer = Telling()
    async with running(tmp_path, rounds=2, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for(lambda: 2 in trainer.applied, "round 2 to be applied")
        trainer.authors = [answers.OWN, 0]
        first, second = (await one.ask(ask(encode(7, 3)))).predictions
        assert not first.HasField("nearest")
        assert second.HasField("nearest")
        assert first.distance == second.distance == 1.5


async def test_who_only_observes_has_no_model(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.net.wait_for_height(1)
        service = one.net["node0"].service
        assert service is not None
        stranger = replace(one.context, key=SigningKey.from_private_bytes(bytes(32)))
        with pytest.raises(predictor.NoModel, match="this node only observes"):
            await make_predictor(service, stranger).predict(encode(1))


async def test_only_so_many_predictions_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "MAX_PREDICTIONS", 2)
    trainer = Telling()
    async with running(tmp_path, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for_height(1)
        trainer.is_let.clear()
        async with aio.insecure_channel(f"unix:{one.path}") as channel:
            stub: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)
            request = pb.PredictRequest(samples=encode(1), wait_s=PATIENCE_S)
            waiting = [asyncio.ensure_future(stub.Predict(request)) for _ in range(3)]
            done, waiting_on = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            [refused] = done
            error = refused.exception()
            assert isinstance(error, aio.AioRpcError)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            trainer.is_let.set()
            replies = await asyncio.gather(*waiting_on)
            assert [len(reply.predictions) for reply in replies] == [1, 1]
        assert len((await one.ask(ask(encode(1)))).predictions) == 1


# ---- the command


async def run_command(one: Running, *arguments: object) -> int:
    return await asyncio.to_thread(main, ["predict", *map(str, arguments), "--socket", str(one.path)])


async def test_the_command_asks_as_often_as_it_takes_and_shows_a_line_each(tmp_path: Path, capsys: Captured) -> None:
    trainer = Telling()
    x = np.zeros((2050, 8, 8), np.uint8)
    x[:, 0, 0] = np.arange(2050) % 10
    np.savez(tmp_path / "all.npz", x=x, y=np.zeros(2050, np.int64))
    np.savez(tmp_path / "one.npz", x=x[7])
    async with running(tmp_path, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for_height(1)
        trainer.authors = [1]
        code = await run_command(one, tmp_path / "all.npz", tmp_path / "one.npz", "--top", 1)
        captured = capsys.readouterr()
        assert (code, trainer.counts) == (0, [2048, 3])
        lines = captured.out.splitlines()
        assert lines[0].split() == ["SAMPLE", "CLASS", "PROBABILITY", "TOP", "DISTANCE", "NEAREST", "LABEL"]
        assert lines[-1].split()[0] == f"{tmp_path}/one.npz[0]"
        node1 = encode_id(one.net.id("node1"))
        assert lines[-1].split()[1:] == ["7", "0.5500", "7", "0.550", "1.5000", "node1", node1[:8], "-"]
        assert lines[2].split()[-2:] == ["wrong:", "0"]
        assert captured.err.startswith("fednode: 2051 samples, by the model after round")
        assert captured.err.endswith("; 205 of 2050 as labelled\n")

        assert await run_command(one, tmp_path / "one.npz", "--top", 10**10, "--json") == 0
        [said] = json.loads(capsys.readouterr().out)["predictions"]
        assert (said["file"], said["row"], said["class"]) == (f"{tmp_path}/one.npz", 0, "7")
        assert len(said["top"]) == NUM_CLASSES
        assert (said["nearest"], said["nearest_name"], said["correct"]) == (node1, "node1", None)


async def test_the_command_ends_with_the_code_of_what_went_wrong(tmp_path: Path, capsys: Captured) -> None:
    trainer = Telling()
    np.savez(tmp_path / "one.npz", x=np.zeros((8, 8), np.uint8))
    np.savez(tmp_path / "flat.npz", x=np.zeros((2, 64), np.uint8))
    async with running(tmp_path, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for_height(1)
        trainer.is_let.clear()
        for code, said, arguments in [
            (1, "b.npz: no such file", (tmp_path / "one.npz", tmp_path / "b.npz")),
            (1, "flat.npz: expected images that can be made [1, 8, 8]", (tmp_path / "flat.npz",)),
            (4, "not answered within 0.1 s", (tmp_path / "one.npz", "--timeout", 0.1)),
        ]:
            assert await run_command(one, *arguments) == code
            captured = capsys.readouterr()
            assert (captured.out, said in captured.err) == ("", True), captured.err
        assert trainer.counts == []


async def evaluate(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    return await call(capsys, "evaluate", *arguments)


async def call(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, [*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


async def test_the_model_is_measured_on_labelled_samples(tmp_path: Path, capsys: Captured) -> None:
    x = np.zeros((40, 1, 8, 8), np.uint8)
    said, truth = np.array([0] * 20 + [1] * 20), np.array([0] * 15 + [1] * 25)  # five of 25 are missed
    x[:, 0, 0, 0] = said
    np.savez(tmp_path / "test.npz", x=x, y=truth)
    np.savez(tmp_path / "without.npz", x=x)
    async with running(tmp_path, rounds=2, trainers=make_trainers(Telling())) as one:
        await one.net.wait_for_height(2)
        where = ("--socket", one.path)
        code, out, err = await evaluate(capsys, tmp_path / "test.npz", *where)
        assert code == 0
        [note] = err.splitlines()  # it is right and hardly ever sure, which is no alarm where it ranks well
        assert "members may have trained on rows of this" in note
        assert "test samples       40" in out
        assert "0.875 (0.739 to 0.945)" in out  # accuracy, Wilson's interval
        row = next(line for line in out.splitlines() if line.startswith("1 "))
        assert row.split()[1:3] == ["25", "0.800"]
        code, out, _ = await evaluate(capsys, tmp_path / "test.npz", *where, "--json", "--resamples", "100")
        shown = json.loads(out)
        assert (code, shown["signs"]) == (0, {})
        assert shown["measures"]["summary"]["accuracy"] == 0.875
        assert shown["measures"]["classes"][1]["values"]["sensitivity"] == 0.8
        interval = shown["measures"]["intervals"]["auc"]
        assert interval["low"] < shown["measures"]["summary"]["auc"] < interval["high"]
        code, _, err = await evaluate(capsys, tmp_path / "without.npz", *where)
        assert (code, "expected a label for each sample" in err) == (1, True)
        code, _, err = await evaluate(capsys, tmp_path, *where)
        assert code == 1
        assert "expected" in err


async def test_the_model_trained_alone_is_measured_beside_on_the_same_samples(tmp_path: Path, capsys: Captured) -> None:
    x = np.zeros((40, 1, 8, 8), np.uint8)
    said, truth = np.array([0] * 20 + [1] * 20), np.array([0] * 15 + [1] * 25)
    x[:, 0, 0, 0] = said
    np.savez(tmp_path / "test.npz", x=x, y=truth)
    trainer = Telling()
    async with running(tmp_path, rounds=2, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for_height(2)
        where = ("--socket", one.path)
        code, out, _ = await evaluate(capsys, tmp_path / "test.npz", *where)
        assert (code, "alone              not compared: set training.compare_local: true" in out) == (0, True)
        code, out, _ = await evaluate(capsys, tmp_path / "test.npz", *where, "--json", "--resamples", "0")
        assert (code, json.loads(out)["alone"]) == (0, None)

        trainer.alone = TrainedAlone(rounds=0, owed_steps=30, seconds=0.5)
        _, out, _ = await evaluate(capsys, tmp_path / "test.npz", *where)
        assert "alone              no round is done yet, 30 steps to do" in out
        trainer.alone = TrainedAlone(rounds=1, owed_steps=0, seconds=0.5, failure="it diverged")
        _, out, _ = await evaluate(capsys, tmp_path / "test.npz", *where)
        assert "alone              training alone has ended: it diverged" in out

        trainer.alone, trainer.alone_says = TrainedAlone(rounds=2, owed_steps=9, seconds=0.5), 1
        _, out, _ = await evaluate(capsys, tmp_path / "test.npz", *where)
        lines = [line.split() for line in out.splitlines()]
        assert ["alone", "after", "the", "work", "of", "2", "rounds,", "9", "steps", "behind"] in lines
        assert lines[0][:7] == ["verdict", "Training", "alone", "lags", "by", "9", "steps:"]
        assert ["accuracy", "0.875", "(0.739", "to", "0.945)", "0.625", "(0.470", "to", "0.758)"] in lines
        missed = next(i for i, line in enumerate(lines) if line[:2] == ["0", "federation"])
        assert lines[missed][2:4] == ["15", "1.000"]  # sensitivity
        assert lines[missed + 1][:2] == ["alone", "0.000"]
        assert ["alone", "0", "15"] in lines  # as they were confused: all 15 of class 0 were called 1
        code, out, _ = await evaluate(capsys, tmp_path / "test.npz", *where, "--json", "--resamples", "100")
        shown = json.loads(out)
        assert (shown["alone"]["rounds"], shown["alone"]["owed_steps"], shown["alone"]["failure"]) == (2, 9, None)
        assert shown["alone"]["measures"]["summary"]["accuracy"] == 0.625
        assert shown["measures"]["summary"]["accuracy"] == 0.875
        verdict = shown["alone"]["verdict"]
        assert (verdict["outcome"], verdict["rounds"], verdict["num_samples"]) == ("together", None, 40)
        assert verdict["difference"] == verdict["together"] - verdict["alone"]
        many = payload.encode_arrays({"x": np.zeros((1093, 1, 8, 8), np.uint8)})
        trainer.weight = 0.25
        _, out, _ = await evaluate(capsys, tmp_path / "test.npz", *where, "--calibrated")
        lines = [line.split() for line in out.splitlines()]
        assert "mixed         0.25 federation, 0.75 alone; predict answers by: federation" in out
        assert "model after round 2, calibrated at temperature 2.00" in out
        assert ["MEASURE", "FEDERATION", "ALONE", "MIXED"] in lines
        missed = next(i for i, line in enumerate(lines) if line[:2] == ["0", "federation"])
        assert [line[0] for line in lines[missed + 1 : missed + 3]] == ["alone", "mixed"]
        with pytest.raises(InvalidRequest, match="expected at most 1092 in one request, got 1093"):
            await one.ask(lambda node: node.predict(many, NUM_CLASSES, PATIENCE_S, alone=True))


async def test_answers_are_by_the_model_that_is_asked_for_or_that_the_node_has(
    tmp_path: Path, capsys: Captured
) -> None:
    np.savez(tmp_path / "one.npz", x=np.full((1, 1, 8, 8), 0, np.uint8))
    trainer = Telling()
    async with running(tmp_path, rounds=2, trainers=make_trainers(trainer)) as one:
        await one.net.wait_for_height(2)
        where = ("predict", tmp_path / "one.npz", "--socket", one.path)
        code, _, err = await call(capsys, *where, "--answer-by", "mixed")
        assert code == 2
        assert "answer_by mixed: this node trains no model alone (training.compare_local)" in err
        assert "expected federation, alone or mixed" in (await call(capsys, *where, "--answer-by", "nobody"))[2]
        trainer.alone = TrainedAlone(rounds=0, owed_steps=30, seconds=0.5)
        assert "no round of training alone is done yet" in (await call(capsys, *where, "--answer-by", "alone"))[2]
        trainer.alone, trainer.alone_says, trainer.weight = TrainedAlone(2, 0, 0.5), 1, 0.25
        code, out, err = await call(capsys, *where, "--answer-by", "mixed")
        assert (code, out.splitlines()[1].split()[1:3]) == (0, ["1", "0.7625"])
        assert "by the model after round 2, mixed with the one trained alone 0.25 to 0.75" in err
        code, out, err = await call(capsys, *where, "--answer-by", "alone")
        assert (code, out.splitlines()[1].split()[1:3]) == (0, ["1", "1.0000"])
        assert "by the model trained alone" in err
        _, out, _ = await call(capsys, *where, "--calibrated", "--json")
        shown = json.loads(out)
        assert (shown["answer_by"], shown["temperature"]) == ("federation", 2.0)
        assert shown["predictions"][0]["class"] == "0"

        service = one.net["node0"].service
        assert service is not None
        usual = make_predictor(service, one.context, "mixed")
        reply = await usual.predict(encode(0))
        assert (reply.answer_by, reply.weight, reply.predictions[0].class_name) == ("mixed", 0.25, "1")
        trainer.alone = None
        reply = await usual.predict(encode(0))
        assert (reply.answer_by, reply.predictions[0].class_name) == ("federation", "0")


async def test_a_directory_of_classes_is_evaluated_and_one_answer_to_all_is_told(
    tmp_path: Path, capsys: Captured
) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("0", "1"):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for i in range(8):
            image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "scans" / name / f"{i}.png")
    async with running(tmp_path, rounds=2, trainers=make_trainers(Telling())) as one:
        await one.net.wait_for_height(2)
        where = ("--socket", one.path)
        code, out, err = await evaluate(capsys, tmp_path / "scans", *where)
        assert (code, "test samples       16" in out) == (0, True)
        assert "all 16 test samples are called 0, of which 8 are" in err
        (tmp_path / "scans" / "ten").mkdir()  # which stands for nothing while it is empty
        assert (await evaluate(capsys, tmp_path / "scans", *where))[0] == 0
        image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "scans/ten/0.png")
        code, _, err = await evaluate(capsys, tmp_path / "scans", *where)
        assert (code, "expected the name of a class" in err) == (1, True)


async def test_labels_are_looked_for_where_the_nodes_own_configuration_says(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        assert await one.ask(lambda node: Labelled.fetch(node, None)) == Labelled(None, DEFAULT_LABEL)
        config = make_config(tmp_path)
        columns = ColumnsSection(label="diagnosis")
        one.view.on_config(config.model_copy(update={"data": config.data.model_copy(update={"columns": columns})}))
        assert await one.ask(lambda node: Labelled.fetch(node, None)) == Labelled(None, "diagnosis")
        assert await one.ask(lambda node: Labelled.fetch(node, "outcome")) == Labelled("outcome")
