"""`fednode.connect` and `fednode.aconnect`: the commands' own records, in threads and in coroutines."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

import fednode
from fednode.client import Record
from ml import payload
from node.admin import client as admin_client
from node.admin.address import TOKEN_FILE_VARIABLE
from node.cli import main
from node.training.trainer import Predicted
from support.federation.asked import running
from support.federation.asked_over_tcp import remote
from support.federation.cluster import NUM_CLASSES, ScriptedTrainer
from support.federation.recording import PATIENCE_S

Captured = pytest.CaptureFixture[str]
T = TypeVar("T")
ROUNDS = 3


class Telling(ScriptedTrainer):
    """Tells of each sample the class that its first pixel is."""

    async def predict(
        self,
        samples: bytes,
        *,
        alone: bool = False,
        kappa: float | None = None,
        kept: int | None = None,
        calibrated: bool = False,
    ) -> Predicted:
        labels = payload.decode_arrays(samples, len(samples))["x"][:, 0, 0, 0].astype(np.int64)
        probabilities = np.full((len(labels), NUM_CLASSES), 0.05, np.float32)
        probabilities[np.arange(len(labels)), labels] = 0.55
        answer: dict[str, payload.Array] = {"labels": labels, "probabilities": probabilities}
        return Predicted(payload.encode_arrays(answer), max(self.applied, default=0))


def make_trainers() -> list[ScriptedTrainer]:
    return [Telling(0, 0.001), ScriptedTrainer(1, 0.001), ScriptedTrainer(2, 0.001)]


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


async def ask(path: Path, question: Callable[[fednode.Client], T]) -> T:
    """From another thread, as the node lives on this one's loop."""

    def run() -> T:
        with fednode.connect(path) as client:
            return question(client)

    return await asyncio.to_thread(run)


async def run_command(capsys: Captured, path: Path, *words: str) -> object:
    assert await asyncio.to_thread(main, [*words, "--socket", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


async def test_what_it_answers_are_the_commands_own_records(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=ROUNDS) as one:
        await one.net.wait_for_height(ROUNDS)
        status = await ask(one.path, lambda node: node.status())
        told = await run_command(capsys, one.path, "status")
        assert isinstance(told, dict)
        assert status.keys() == told.keys()
        assert (status["name"], status["height"]) == ("hospital-a", ROUNDS)
        rounds = await ask(one.path, lambda node: node.rounds())
        assert {"rounds": rounds[::-1]} == await run_command(capsys, one.path, "rounds", "list")
        assert [record["height"] for record in rounds] == [1, 2, 3]
        assert await ask(one.path, lambda node: node.rounds(2)) == rounds[1:]
        shown = await ask(one.path, lambda node: node.round(2))
        assert shown == await run_command(capsys, one.path, "rounds", "show", "2")
        members = await ask(one.path, lambda node: node.members())
        listed = await run_command(capsys, one.path, "members", "list")
        assert isinstance(listed, dict)
        assert (members.keys(), members["quorum"]) == (listed.keys(), listed["quorum"])
        assert {"runs": await ask(one.path, lambda node: node.runs())} == await run_command(capsys, one.path, "runs")
        assert await ask(one.path, lambda node: node.proposals()) == []


async def test_metrics_are_rows_by_height(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=ROUNDS) as one:
        await one.net.wait_for_height(ROUNDS)
        rows = await ask(one.path, lambda node: node.metrics())
        told = await run_command(capsys, one.path, "metrics")
        assert isinstance(told, dict)
        assert [{name: row[name] for name in ("run", "round", "time", *told["series"])} for row in rows] == told[
            "rounds"
        ]
        assert list(rows[0]) == ["height", "run", "round", "time", *told["series"]]
        some = await ask(one.path, lambda node: node.metrics(["votes", "seconds.wall"], first=2, last=2))
        assert [(row["height"], row["votes"] > 0, row["seconds.wall"] >= 0) for row in some] == [(2, True, True)]
        assert "seconds.wall" in (await ask(one.path, lambda node: node.metrics("all")))[0]
        with pytest.raises(fednode.InvalidRequest, match=r"series: no round has 'losss'; there are .*votes"):
            await ask(one.path, lambda node: node.metrics("losss"))


async def test_a_change_is_proposed_and_approved(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=0) as one:
        await one.net.wait_for_height(1)
        draft = await ask(
            one.path, lambda node: node.propose("set_rules", rules={"waits.collect_s": 7}, dry_run=True, expires=900)
        )
        assert [each["path"] for each in draft["differences"]] == ["rules.waits.collect_s"]
        assert await ask(one.path, lambda node: node.proposals()) == []
        signed = await ask(one.path, lambda node: node.propose("set_rounds", rounds=4000, note="longer", expires=900))
        (waiting,) = await ask(one.path, lambda node: node.proposals())
        assert (waiting["id"], waiting["note"], waiting["approved_here"]) == (signed["id"], "longer", True)
        with pytest.raises(fednode.InvalidRequest, match=f"expected its whole id.*{signed['id']}.*begins so"):
            await ask(one.path, lambda node: node.approve(signed["id"][:63]))
        approved = await ask(one.path, lambda node: node.approve(signed["id"]))
        assert approved["id"] == signed["id"]
        with pytest.raises(fednode.NodeError, match="no member is called"):
            await ask(one.path, lambda node: node.propose("remove_member", name="nobody"))
        with pytest.raises(fednode.ConfigError, match="expected numbers, texts, lists or mappings"):
            await ask(one.path, lambda node: node.propose("set_rounds", rounds=object()))
        with pytest.raises(fednode.NotFound, match="no such change is open"):
            await ask(one.path, lambda node: node.approve("0" * 64))


async def test_settings_of_a_run_are_a_mapping_and_its_model_a_path(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=0) as one:
        await one.net.wait_for_height(1)
        draft = await ask(
            one.path,
            lambda node: node.propose("start_run", initial="continue", set={"lr": 0.0625}, rounds=9, dry_run=True),
        )
        assert {"run.method.lr", "run.rounds"} <= {each["path"] for each in draft["differences"]}
        with pytest.raises(fednode.NodeError, match="nowhere"):
            await ask(one.path, lambda node: node.propose("start_run", initial=tmp_path / "nowhere", dry_run=True))


# ---- predictions


def make_images(*labels: int) -> NDArray[np.uint8]:
    x = np.zeros((len(labels), 8, 8), np.uint8)
    x[:, 0, 0] = labels
    return x


async def test_an_array_is_classified_with_all_probabilities(tmp_path: Path) -> None:
    trainers = make_trainers()
    async with running(tmp_path, rounds=2, trainers=trainers) as one:
        await one.net.wait_for(lambda: 2 in trainers[0].applied, "round 2 to be applied")
        said = await ask(one.path, lambda node: node.predict(make_images(7, 3, 3)))
        assert (said.labels.tolist(), said.names, len(said)) == ([7, 3, 3], ("7", "3", "3"), 3)
        assert said.probabilities.shape == (3, NUM_CLASSES)
        assert said.probabilities[0] == pytest.approx([0.55 if k == 7 else 0.05 for k in range(NUM_CLASSES)])
        assert (said.applied_round, said.expected, said.accuracy) == (2, None, None)
        floats = await ask(one.path, lambda node: node.predict((make_images(7, 3, 3)[:, None]).astype(float)))
        assert floats.labels.tolist() == [7, 3, 3]
        with pytest.raises(fednode.NodeError, match=r"samples: expected images that can be made \[1, 8, 8\]"):
            await ask(one.path, lambda node: node.predict(np.zeros((1, 4, 8, 8), np.uint8)))
        with pytest.raises(fednode.NodeError, match="samples: expected an array"):
            await ask(one.path, lambda node: node.predict([[1.0], [1.0, 2.0]]))
        with pytest.raises(fednode.NodeError, match="samples: expected"):
            await ask(one.path, lambda node: node.predict([]))


async def test_files_are_classified_as_the_command_does(tmp_path: Path, capsys: Captured) -> None:
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    np.savez(first, x=make_images(7, 3), y=np.array([7, 4]))
    np.savez(second, x=make_images(1), y=np.array([1]))
    trainers = make_trainers()
    async with running(tmp_path, rounds=2, trainers=trainers) as one:
        await one.net.wait_for(lambda: 2 in trainers[0].applied, "round 2 to be applied")
        said = await ask(one.path, lambda node: node.predict([first, second]))
        told: Any = await run_command(capsys, one.path, "predict", str(first), str(second), "--top", str(NUM_CLASSES))
        assert [*said.records] == told["predictions"]
        assert told["answer_by"] == said.answer_by == "federation"
        assert said.expected is not None
        assert said.expected.tolist() == [7, 4, 1]
        assert said.accuracy == pytest.approx(2 / 3)
        with pytest.raises(fednode.NodeError, match="no such file"):
            await ask(one.path, lambda node: node.predict("nowhere.npz"))
        measured = await ask(one.path, lambda node: node.evaluate([first, second], resamples=50))
        printed = await run_command(capsys, one.path, "evaluate", str(first), str(second), "--resamples", "50")
        assert measured == printed
        assert measured["measures"]["num_samples"] == 3


# ---- what happens


async def test_events_go_on_after_the_last_cursor(tmp_path: Path) -> None:
    def read_two(node: fednode.Client, since: str) -> list[Record]:
        events = node.watch("block", since=since)
        return [next(events), next(events)]

    async with running(tmp_path, rounds=4) as one:
        first = await ask(one.path, lambda node: read_two(node, "0-0"))
        second = await ask(one.path, lambda node: read_two(node, first[-1]["cursor"]))
        assert [event["data"]["height"] for event in (*first, *second)] == [1, 2, 3, 4]
        assert list(first[0]) == ["cursor", "time", "kind", "data", "missed"]
        with pytest.raises(fednode.InvalidRequest, match="event kind 'blocks': expected one of block"):
            await ask(one.path, lambda node: next(node.watch("blocks")))


async def test_closing_a_client_ends_what_other_threads_wait_for(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=1) as one:
        client = await asyncio.to_thread(fednode.connect, one.path)
        seen = threading.Event()

        def read_all() -> int:
            count = 0
            for _ in client.watch("block", since="0-0"):
                count += 1
                seen.set()
            return count

        reading = asyncio.create_task(asyncio.to_thread(read_all))
        await asyncio.to_thread(seen.wait, PATIENCE_S)
        client.close()
        client.close()
        assert await asyncio.wait_for(reading, PATIENCE_S) == 1
        with pytest.raises(fednode.NodeError, match=r"the client of the node at .* is closed"):
            client.status()
        with pytest.raises(fednode.NodeError, match="is closed"):
            next(client.watch())
        assert repr(client).endswith("node0.sock, closed>")


async def test_several_threads_share_a_client(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=ROUNDS) as one:
        await one.net.wait_for_height(ROUNDS)
        with ThreadPoolExecutor(4) as threads:
            client = await asyncio.to_thread(fednode.connect, one.path)
            loop = asyncio.get_running_loop()
            answers = await asyncio.gather(
                *(loop.run_in_executor(threads, client.round, 1 + i % ROUNDS) for i in range(40))
            )
            client.close()
        assert [answer["height"] for answer in answers] == [1 + i % ROUNDS for i in range(40)]


# ---- from coroutines


async def test_coroutines_ask_on_the_nodes_own_loop(tmp_path: Path) -> None:
    trainers = make_trainers()
    async with running(tmp_path, rounds=ROUNDS, trainers=trainers) as one:
        async with fednode.aconnect(one.path) as node:
            heights = []
            async for event in node.watch("block", since="0-0"):
                heights.append(event["data"]["height"])
                if len(heights) == ROUNDS:
                    break
            assert heights == [1, 2, 3]
            status, rounds, members, runs = await asyncio.gather(
                node.status(), node.rounds(1), node.members(), node.runs()
            )
            assert (status["height"], rounds[0]["height"], runs[0]["number"]) == (ROUNDS, ROUNDS, 1)
            assert len(members["members"]) == 3
            assert (await node.round(1))["height"] == 1
            assert [row["height"] for row in await node.metrics("votes", first=2)] == [2, 3]
            await one.net.wait_for(lambda: ROUNDS in trainers[0].applied, "the last round to be applied")
            assert (await node.predict(make_images(4))).labels.tolist() == [4]
            draft = await node.propose("end_run", dry_run=True)
            assert draft["kind"] == "end_run"
            assert await node.proposals() == []
            with pytest.raises(fednode.NotFound):
                await node.approve("0" * 64)
        with pytest.raises(fednode.NodeError, match="is closed"):
            await node.status()
        assert "closed" in repr(node)


async def test_a_coroutine_that_waits_for_an_event_is_cancelled_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=1) as one, fednode.aconnect(one.path) as node:
        await one.net.wait_for_height(1)

        async def wait() -> Record:
            return await anext(node.watch("operator"))

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await node.status())["height"] == 1


async def test_closing_ends_a_watch_in_another_task(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=1) as one:
        node = fednode.aconnect(one.path)
        seen = asyncio.Event()

        async def read_all() -> int:
            count = 0
            async for _ in node.watch("block", since="0-0"):
                count += 1
                seen.set()
            return count

        reading = asyncio.create_task(read_all())
        await asyncio.wait_for(seen.wait(), PATIENCE_S)
        await node.aclose()
        assert await asyncio.wait_for(reading, PATIENCE_S) == 1


# ---- whom it asks


async def test_an_address_takes_its_token_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_FILE_VARIABLE, raising=False)
    token = tmp_path / "reader.token"
    async with remote(tmp_path) as there:
        token.write_text(there.reader + "\n")
        async with fednode.aconnect(there.address, token) as node:
            assert (await node.status())["name"] == "hospital-a"
            with pytest.raises(fednode.PermissionRefused, match="expected a token of role admin, got one of read"):
                await node.propose("end_run")
        with pytest.raises(fednode.PermissionRefused, match="expected --token-file, or FEDNODE_TOKEN_FILE"):
            fednode.connect(there.address)
        token.write_text("fn_guess\n")
        with pytest.raises(fednode.PermissionRefused, match="not known, or was revoked"):
            await asyncio.to_thread(fednode.connect, there.address, token)


@pytest.mark.parametrize(
    ("place", "kind", "message"),
    [
        ("run/nowhere.sock", fednode.NodeUnreachable, "no such socket; is the node running"),
        ("nowhere.yaml", fednode.ConfigError, "nowhere.yaml"),
        (".", fednode.NodeUnreachable, "expected a node's socket, got a directory"),
        ("host:port:x", fednode.ConfigError, "expected the path of a unix socket"),
        ("hospital-a:7050", fednode.PermissionRefused, "expected ID@hospital-a:7050"),
    ],
)
def test_what_is_no_place_is_told(
    place: str, kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        fednode.connect(place)


@contextmanager
def silent_socket(path: Path) -> Iterator[Path]:
    """Takes connections, and says nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path


def test_a_node_that_says_nothing_is_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", 0.5)
    message = r"node\.sock: the node has not answered for 0\.5 s"
    with silent_socket(tmp_path / "node.sock") as path, pytest.raises(fednode.NodeUnreachable, match=message):
        fednode.connect(path)
