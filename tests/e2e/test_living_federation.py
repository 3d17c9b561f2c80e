"""The page "How a federation changes" as it is written: hospitals that join, leave, lose keys and begin new runs.

Each has a directory of its own, a daemon, and a shell in which its operator types.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chain import protocol
from node.boundary import UNFORESEEN
from support.faults import newer_release
from support.federation.ports import find_free_ports
from support.federation.real_nodes import STOP_S, WAIT_S, Federation, make_federation, paused, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class Hospital:
    """A site, and the daemon that it runs."""

    def __init__(self, home: Path, name: str, port: int) -> None:
        self.name = name
        self.place = home / f"{name}-{port}"
        self.address = f"127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.place / "node.yaml"

    @property
    def log(self) -> str:
        file = self.place / "log"
        return file.read_text() if file.exists() else ""

    def init(self, *options: object) -> str:
        """What it sends to the others: its address with the key, or its request to join."""
        where = ("--listen", self.address, "--advertise", self.address)
        done = run_command("init", self.place, "--name", self.name, *where, *options)
        assert done.code == 0, done.err
        return done.out.strip()

    def say(self, *words: object, code: int = 0) -> str:
        done = run_command(*words, "-c", self.config)
        assert done.code == code, f"{self.name}: fednode {words}: {done.err}{done.out}"
        return done.out

    def ask(self, *words: object) -> Any:
        return json.loads(self.say(*words, "--json"))

    def start(self) -> None:
        with (self.place / "log").open("ab") as log:
            command = [sys.executable, "-m", "node.cli", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def get_status(self) -> dict[str, Any]:
        done = run_command("status", "-c", self.config, "--json")
        return json.loads(done.out) if done.code == 0 else {}

    def get_height(self) -> int:
        return int(self.get_status().get("height", -1))

    def list_open(self) -> list[str]:
        return [each["id"] for each in self.ask("proposals")["proposals"]]

    def list_members(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.ask("members")["members"]}

    def list_rounds(self) -> list[dict[str, Any]]:
        """Newest first."""
        rounds: list[dict[str, Any]] = self.ask("rounds", "list", "--limit", 200)["rounds"]
        return rounds


async def wait_for(condition: Callable[[], bool], what: str, sites: Iterable[Hospital]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline_s, f"no {what}\n" + "\n".join(f"{s.name}:\n{s.log[-3000:]}" for s in sites)
        await asyncio.sleep(0.2)


async def agree(proposer: Hospital, others: Iterable[Hospital], *words: object) -> str:
    """One proposes, and the others approve. The change's id, once it is open no more at the proposer."""
    sites = [proposer, *others]
    change: str = json.loads(await asyncio.to_thread(proposer.say, *words, "--yes", "--json"))["id"]

    def is_over() -> bool:
        return change not in proposer.list_open()

    for other in sites[1:]:
        await wait_for(lambda other=other: change in other.list_open() or is_over(), "the proposal", sites)  # type: ignore[misc]
        await asyncio.to_thread(run_command, "approve", change, "--yes", "-c", other.config)

    await wait_for(is_over, f"block with {words}", sites)
    return change


@asynccontextmanager
async def living(sites: list[Hospital]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for site in sites:
            if site.process is not None and site.process.poll() is None:
                site.stop()
    for site in sites:
        assert UNFORESEEN not in site.log, f"{site.name}: see its log"


def found(home: Path, names: str, ports: list[int], rounds: int) -> list[Hospital]:
    """Founders with a genesis in common."""
    sites = [Hospital(home, f"hospital-{name}", port) for name, port in zip(names, ports, strict=False)]
    members = [f"{site.name}={site.init()}" for site in sites]
    genesis = home / "genesis.yaml"
    made = ("--data", "digits", "--profile", "local", "--rounds", rounds, "--difficulty", 4096)
    done = run_command("genesis", "new", *members, *made, "-o", genesis)
    assert done.code == 0, done.err
    assert "three members under bft stand no loss" in done.err
    for site in sites:
        for file in ("genesis.yaml", "initial_model.safetensors"):
            shutil.copy(home / file, site.place / file)
    return sites


def let_in(home: Path, name: str, port: int, member: Hospital) -> tuple[Hospital, str]:
    """A new site with the join file of a member, and its request; it runs."""
    file = home / f"{name}-{port}.join"
    told = member.say("join-file", "-o", file).split()
    assert len(told) == 16  # groups to be read out
    site = Hospital(home, name, port)
    request = site.init("--join", file)
    site.start()
    return site, request


def find_first_contribution(site: Hospital, name: str, above: int) -> int:
    heights = [each["height"] for each in site.list_rounds() if name in each.get("contributor_names", [])]
    return min((int(height) for height in heights if int(height) > above), default=0)


@pytest.mark.long
async def test_three_hospitals_become_four_and_live_on(tmp_path: Path) -> None:
    ports = find_free_ports(6)
    sites = found(tmp_path, "abc", [ports[0] + i for i in range(3)], rounds=0)
    a, b, c = sites
    async with living(sites):
        for site in sites:
            site.start()
        await wait_for(lambda: a.get_height() >= 20, "20 rounds", sites)

        # Three become four, and the fourth trains within a few heights.
        d, request = await asyncio.to_thread(let_in, tmp_path, "hospital-d", ports[0] + 3, a)
        sites.append(d)
        spoiled = request[:60] + ("A" if request[60] != "A" else "B") + request[61:]
        assert (
            "fednode: " in (await asyncio.to_thread(run_command, "propose", "add-member", spoiled, "-c", a.config)).err
        )
        await agree(a, (b, c), "propose", "add-member", request, "--note", "ethics vote 2026-11")
        await wait_for(lambda: "hospital-d" in d.list_members(), "hospital-d among the members", sites)
        since = int((await asyncio.to_thread(a.list_members))["hospital-d"]["since"])
        assert since > 20
        await wait_for(lambda: find_first_contribution(a, "hospital-d", since) > 0, "its contribution", sites)
        assert find_first_contribution(a, "hospital-d", since) <= since + 3

        # A key is rotated under load.
        old = d.list_members()["hospital-d"]["id"]
        d.say("key", "rotate")
        await wait_for(lambda: a.list_members()["hospital-d"]["id"] != old, "the new key", sites)
        height = a.get_height()
        await wait_for(lambda: find_first_contribution(a, "hospital-d", height) > 0, "its contribution", sites)

        # A lost one is replaced by the others.
        d.stop(signal.SIGKILL)
        again, request = await asyncio.to_thread(let_in, tmp_path, "hospital-d", ports[0] + 4, b)
        sites.append(again)
        await agree(a, (b, c), "key", "replace", "hospital-d", request)
        height = a.get_height()
        await wait_for(lambda: find_first_contribution(a, "hospital-d", height) > 0, "its contribution", sites)

        # A second run goes on from the first, more slowly.
        await agree(a, (b, c, again), "propose", "run", "--set", "lr=0.05", "--rounds", 6, "--continue")
        everybody = (a, b, c, again)
        await wait_for(lambda: all(s.get_status().get("done") for s in everybody), "the end of run 2", sites)
        first, second = a.ask("runs")["runs"]
        assert (first["number"], second["number"], int(second["made"])) == (1, 2, 6)
        rounds = {int(each["round"]): each for each in a.list_rounds() if each["run"] == 2}
        assert rounds[1]["accuracy"] > first["accuracy"] - 0.1
        assert second["accuracy"] > first["accuracy"] - 0.05

        # One leaves while the federation is idle, and one comes; then all begin a third run.
        await agree(c, (a, b, again), "leave")
        await wait_for(lambda: "removed at height" in c.get_status().get("silence", ""), "word of it at c", sites)
        e, request = await asyncio.to_thread(let_in, tmp_path, "hospital-e", ports[0] + 5, again)
        sites.append(e)
        await agree(again, (a, b), "propose", "add-member", request)
        await wait_for(lambda: "hospital-e" in e.list_members(), "hospital-e among the members", sites)
        await agree(b, (a, again, e), "propose", "run", "--rounds", 4, "--continue")
        everybody = (a, b, again, e)
        await wait_for(lambda: all(s.get_status().get("done") for s in everybody), "the end of run 3", sites)
        assert find_first_contribution(a, "hospital-e", 0) > 0
        assert {each["phase"] for each in a.ask("runs")["runs"]} == {"over", "done"}
        assert "hospital-c" not in a.list_members()

        # All hold the same chain, and it holds.
        heads = {site.get_status()["head"] for site in everybody}
        assert len(heads) == 1
        for site in (*everybody, c):
            site.say("chain", "verify", "--deep")


async def test_an_upgrade_height_stops_the_node_that_cannot_follow(tmp_path: Path) -> None:
    newer, newest = newer_release.get_command(), protocol.get_newest()
    via = dict.fromkeys(("node0", "node1", "node2"), newer)
    directory = make_federation(tmp_path / "net", rounds=0, difficulty=4096)
    async with Federation(directory, via=via) as net:
        await net.start()
        await net.wait_for_height(2)
        sites = {name: Hospital(tmp_path, name, 0) for name in net.names}

        async def say(name: str, *words: object, code: int = 0) -> str:
            done = await asyncio.to_thread(run_command, *words, "-c", net.nodes[name].node.config_file)
            assert done.code == code, done.err
            return done.out + done.err

        with paused(await net.get_worker("node2")):  # each round takes 2 s, as long as a command or two
            height = (await net.get_status("node0"))["height"] + 40
            change = json.loads(
                await say("node0", "propose", "upgrade", newest + 1, "--from", height, "--yes", "--json")
            )["id"]
            await net.wait_for(lambda now: "upgrade" in now["node3"], "the warning at node3")
            said = await say("node3", "approve", change, "--yes", code=1)
            assert f"and {newest}; update fednode first" in said
            for name in ("node1", "node2"):
                await say(name, "approve", change, "--yes")
            assert f"protocol {newest + 1} is agreed on" in await say("node3", "status")
        assert len(sites) == 4
        process = net.nodes["node3"].process
        assert process is not None
        assert await asyncio.wait_for(process.wait(), WAIT_S) == 78
        assert f"protocol {newest + 1} is in force from height {height + 1} on" in net.read_log("node3")
        await net.wait_for_height(height + 3)
        net.nodes["node3"].via = newer  # its operator installs the later release
        await net.start("node3")
        await net.wait_for_height(height + 5)
        assert await net.check_agreement() >= height + 5
