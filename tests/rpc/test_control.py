"""The operator's control of a running node, over its admin socket and from the command line."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from chain.signing import encode_id
from node.admin import client as admin_client
from node.cli import main
from node.config.node_config import NodeConfig, load_config
from node.consensus.height.participation import PAUSED
from node.errors import InvalidRequest
from support.federation.asked import Running, running
from support.federation.recording import PATIENCE_S

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


async def run(capsys: Captured, one: Running, *arguments: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, [*arguments, "--socket", str(one.path)])
    said = capsys.readouterr()
    return code, said.out, said.err


async def test_pausing_and_resuming_say_what_holds_then(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path) as one:
        await one.net.wait_for_height(1)
        code, out, _ = await run(capsys, one, "pause")
        assert code == 0
        assert out.startswith("hospital-a is paused: it contributes ")
        store = one.net["node0"].store
        assert store is not None
        assert (store.path / PAUSED).exists()
        code, out, _ = await run(capsys, one, "pause", "--json")
        assert (code, json.loads(out)["paused"]) == (0, True)
        code, out, _ = await run(capsys, one, "status", "--json")
        assert (json.loads(out)["paused"], json.loads(out)["stops_after"]) == (True, None)
        code, out, _ = await run(capsys, one, "status")
        assert out.startswith("PAUSED")
        code, out, _ = await run(capsys, one, "resume")
        assert (code, out[:25]) == (0, "hospital-a contributes to")
        code, out, _ = await run(capsys, one, "status", "--json")
        assert json.loads(out)["paused"] is False
        told = await one.ask(lambda node: [json.loads(e.data) for e in islice(node.watch(["operator"], "0-0"), 2)])
        assert told == [{"paused": True}, {"paused": False}]


async def test_the_others_see_who_abstains(tmp_path: Path) -> None:
    async with running(tmp_path, n=4) as one:
        await one.net.wait_for_height(1)
        node3 = one.net["node3"].service
        assert node3 is not None
        node3.participation.is_paused = True

        async def is_seen() -> bool:
            peers = {peer.name: peer for peer in await one.ask(lambda node: node.list_peers())}
            return peers["node3"].abstains and not peers["node1"].abstains

        async with asyncio.timeout(PATIENCE_S):
            while not await is_seen():  # noqa: ASYNC110 (over a socket)
                await asyncio.sleep(0.02)


async def test_a_shutdown_answers_first_and_ends_then(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path) as one:
        for wrong in (0.5, -1.0, 4000.0, float("nan")):
            with pytest.raises(InvalidRequest, match="grace_s: expected 1 to 3600"):
                await one.ask(lambda node, wrong=wrong: node.shut_down(wrong))  # type: ignore[misc]
        assert not one.stopped.is_set()
        code, out, err = await run(capsys, one, "stop", "--grace", "60", "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["stopping"] is True
        async with asyncio.timeout(PATIENCE_S):
            await one.stopped.wait()
        assert (await one.ask(lambda node: node.shut_down())).stopping
        code, _, err = await run(capsys, one, "stop", "--withdraw")
        assert (code, "ending already" in err) == (2, True)


async def test_the_round_to_end_after_is_told_and_withdrawn(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=1_000_000) as one:
        await one.net.wait_for_height(1)
        code, out, _ = await run(capsys, one, "stop", "--after-round", "1000000")
        assert (code, out.endswith("and ends after round 1000000\n")) == (0, True)
        assert json.loads((await run(capsys, one, "status", "--json"))[1])["stops_after"] == 1_000_000
        assert (await run(capsys, one, "status"))[1].splitlines()[0].split() == ["ENDS", "after", "round", "1000000"]
        code, out, _ = await run(capsys, one, "stop", "--withdraw", "--json")
        assert (code, json.loads(out)["stops_after"]) == (0, None)
        code, _, err = await run(capsys, one, "stop", "--after-round", "1000001")
        assert (code, "expected at most 1000000" in err) == (2, True)
        assert (await run(capsys, one, "stop", "--after-round", "3", "--grace", "3"))[0] == 2


async def test_the_log_level_changes_and_says_from_what(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path) as one:
        logging.getLogger().setLevel("INFO")
        assert (await run(capsys, one, "log-level", "error"))[:2] == (0, "error; it was info\n")
        assert logging.getLogger().level == logging.ERROR
        code, out, _ = await run(capsys, one, "log-level", "debug", "--json")
        assert (code, json.loads(out)) == (0, {"before": "error", "level": "debug"})
        code, _, err = await run(capsys, one, "log-level", "loud")
        assert (code, "expected one of debug, info, warning, error (got 'loud')" in err) == (2, True)
        assert logging.getLogger().level == logging.DEBUG


# ---- the configuration


class File:
    """A node.yaml, and how it is read."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "node.yaml"
        self.write()

    def write(self, **sections: object) -> None:
        tree = {
            "node": {"name": "hospital-a", "identity_key_file": "a.key", "data_dir": "data"},
            "genesis_file": "genesis.yaml",
            "network": {"listen": "127.0.0.1:7050"},
            "training": {"seed": 1},
        }
        self.path.write_text(json.dumps(tree | sections))

    def load(self) -> NodeConfig:
        return load_config(self.path)


async def test_a_reload_applies_what_it_can_and_names_what_needs_a_restart(tmp_path: Path, capsys: Captured) -> None:
    file = File(tmp_path)
    async with running(tmp_path, load=file.load) as one:
        logging.getLogger().setLevel("INFO")
        assert await run(capsys, one, "reload") == (0, "applied: nothing\n", "")
        peer = encode_id(one.net.id("node1"))
        file.write(
            log={"level": "debug"},
            network={"listen": "127.0.0.1:7060", "peers": [f"{peer}@node1:7063"]},
            consensus={"mine": False, "workers": 2},
        )
        for _ in range(2):
            code, out, _ = await run(capsys, one, "reload")
            assert code == 0
            applied, rest = out.splitlines()
            assert rest == "needs a restart: network.listen, consensus.workers"
            assert applied in ("applied: network.peers, consensus.mine, log.level", "applied: nothing")
        assert logging.getLogger().level == logging.DEBUG
        node0 = one.net["node0"].service
        assert node0 is not None
        assert node0.opener.mines is False
        shown = {peer.name: peer for peer in await one.ask(lambda node: node.list_peers())}
        assert (shown["node1"].address, shown["node1"].added) == ("node1:7063", False)
        config = json.loads(one.view.get_config().json)
        assert (config["log"]["level"], config["consensus"]["mine"]) == ("debug", False)
        assert config["consensus"]["workers"] == 1
        assert config["network"]["listen"] == "127.0.0.1:7050"
        file.write()
        assert (await run(capsys, one, "reload"))[1] == "applied: network.peers, consensus.mine, log.level\n"
        assert not (await one.ask(lambda node: node.list_peers()))[0].HasField("address")


async def test_a_broken_file_changes_nothing_and_every_problem_is_printed(tmp_path: Path, capsys: Captured) -> None:
    file = File(tmp_path)
    async with running(tmp_path, load=file.load) as one:
        logging.getLogger().setLevel("INFO")
        file.write(log={"level": "debug", "levl": 1}, training={"seed": -1})
        code, out, err = await run(capsys, one, "reload")
        assert (code, out) == (78, "")
        assert "unknown key. Did you mean 'level'" in err
        assert "training.seed: must be at least 0" in err
        assert "fednode: 2 problems in the node's configuration; nothing was applied" in err
        assert logging.getLogger().level == logging.INFO
        stranger = "b" * 52
        file.write(log={"level": "debug"}, network={"listen": "127.0.0.1:7050", "peers": [f"{stranger}@a:1"]})
        assert (await run(capsys, one, "reload", "--json"))[0] == 78
        file.path.unlink()
        code, _, err = await run(capsys, one, "reload")
        assert (code, "node.yaml" in err) == (78, True)
        assert logging.getLogger().level == logging.INFO
        file.write(log={"level": "debug"})
        assert (await run(capsys, one, "reload"))[:2] == (0, "applied: log.level\n")


async def test_a_node_that_was_started_from_no_file_says_so(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path) as one:
        code, _, err = await run(capsys, one, "reload")
        assert (code, "not started from a file" in err) == (78, True)


# ---- metrics


async def test_few_rounds_of_a_running_node_are_those_that_matter(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path) as one:
        await one.net.wait_for(lambda: _count_records(one) >= 14, "14 records")
        code, out, _ = await run(capsys, one, "metrics", "--max-points", "8", "--series", "seconds.wall", "--json")
        found = json.loads(out)
        assert (code, found["series"]) == (0, ["seconds.wall"])
        code, out, _ = await run(capsys, one, "metrics", "--series", "seconds.wall", "--json", "--to", "14")
        every = json.loads(out)["rounds"]
        assert 2 <= len(found["rounds"]) <= 8
        assert found["rounds"][0] == every[0]
        walls = {row["round"]: row["seconds.wall"] for row in every}
        assert all(walls[row["round"]] == row["seconds.wall"] for row in found["rounds"] if row["round"] <= 14)
        assert (await run(capsys, one, "metrics", "--max-points", "12", "--from", "100000"))[0] == 3
        assert (await run(capsys, one, "metrics", "--max-points", "8"))[0] == 2


def _count_records(one: Running) -> int:
    store = one.net["node0"].store
    return 0 if store is None else len(list(store.rounds(1, 14)))
