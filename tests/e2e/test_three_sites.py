"""The guide of docs/deploy/organisations.md as it is written: three sites begin, run, and one moves to a new machine.

Each has a host of its own, in a network namespace, and a directory that no other one reads.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.federation.real_nodes import STOP_S, WAIT_S, Finished
from support.machines import namespaces
from support.machines.namespaces import Host, lan

OBSTACLE = namespaces.find_obstacle()
NAMES = ("alice", "bob", "carol")
PORT = 7050

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces: {OBSTACLE}"),
]


class Site:
    """An organisation: its directory, and the machine it has at present."""

    def __init__(self, name: str, home: Path, host: Host) -> None:
        self.name = name
        self.home = home
        self.host = host
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir()

    @property
    def place(self) -> Path:
        return self.home / "site"

    @property
    def log(self) -> str:
        file = self.home / "log"
        return file.read_text() if file.exists() else ""

    def run(self, *arguments: str, cwd: Path | None = None) -> Finished:
        """`fednode` on this site's machine, in its directory."""
        command = [*self.host.enter, sys.executable, "-m", "node.cli", *arguments]
        done = subprocess.run(
            command, cwd=cwd or self.place, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def succeed(self, *arguments: str, cwd: Path | None = None) -> str:
        """What it prints."""
        done = self.run(*arguments, cwd=cwd)
        assert done.code == 0, f"{self.name}: fednode {' '.join(arguments)}: {done.err}{done.out}"
        return done.out.strip()

    def start(self) -> None:
        command = [*self.host.enter, sys.executable, "-m", "node.cli", "--config", "node.yaml"]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.place, stdout=log, stderr=log)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(STOP_S)

    def get_status(self) -> dict[str, Any] | None:
        done = self.run("status", "--config", "node.yaml", "--json")
        return json.loads(done.out) if done.code == 0 else None

    def find_failures(self) -> list[str]:
        """What doctor finds amiss, but for warnings."""
        done = self.run("doctor", "--config", "node.yaml", "--json")
        return [check["check"] for check in json.loads(done.out)["checks"] if check["verdict"] == "fail"]

    def contributed_after(self, height: int) -> bool:
        listed = json.loads(self.succeed("rounds", "list", "--config", "node.yaml", "--limit", "5", "--json"))
        return any(one["round"] > height and self.name in one["contributor_names"] for one in listed["rounds"])


@asynccontextmanager
async def stopping(sites: list[Site]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for site in sites:
            if site.process is not None and site.process.poll() is None:
                site.stop()


async def wait_for(condition: Callable[[], bool], what: str, sites: list[Site]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline_s, f"no {what}\n" + "\n".join(f"{s.name}:\n{s.log[-3000:]}" for s in sites)
        await asyncio.sleep(0.2)


@pytest.mark.long
async def test_three_organisations_begin_run_and_one_moves(tmp_path: Path) -> None:
    with lan(4) as net:
        sites = [Site(name, tmp_path / name, host) for name, host in zip(NAMES, net, strict=False)]
        alice, bob, carol = sites
        async with stopping(sites):
            # 1. Each for itself: a key, a configuration, and a line for the others.
            lines = []
            for site in sites:
                advertised = f"{site.host.address}:{PORT}"
                begun = ("init", "site", "--name", site.name, "--advertise", advertised)
                lines.append(site.succeed(*begun, cwd=site.home))
                site.succeed("data", "inspect", "digits")
                assert lines[-1].endswith(f"@{advertised}")

            # 2. One writes genesis down; the two files go to all.
            members = [f"{site.name}={line}" for site, line in zip(sites, lines, strict=True)]
            agreed = ("--data", "digits", "--profile", "local", "--set", "quorum=majority")
            alice.succeed("genesis", "new", *members, *agreed)
            for site in (bob, carol):
                for file in ("genesis.yaml", "initial_model.safetensors"):
                    shutil.copy(alice.place / file, site.place / file)

            # 3. All see the same, and nothing amiss.
            assert len({site.succeed("genesis", "hash", "genesis.yaml") for site in sites}) == 1
            for site in sites:
                site.succeed("genesis", "show", "genesis.yaml")
                assert site.find_failures() == ["quorum"]

            # 5. They start in whatever order, and agree.
            for site in (carol, alice, bob):
                site.start()
            await wait_for(lambda: all((s.get_status() or {}).get("height", 0) >= 3 for s in sites), "3 blocks", sites)
            assert "signed twice" not in alice.succeed("chain", "evidence", "--config", "node.yaml", "--json")
            alice.succeed("chain", "verify", "--deep", "--config", "node.yaml")
            assert [site.find_failures() for site in sites] == [[], [], []]

            # Bob's machine is replaced: stopped, moved whole, told to the others.
            assert bob.stop() == 0
            bob.host = net[3]
            moved = f"{bob.host.address}:{PORT}"
            shutil.move(bob.place, bob.home / "moved")
            shutil.move(bob.home / "moved", bob.place)
            config = yaml.safe_load((bob.place / "node.yaml").read_text())
            config["network"]["advertise"] = moved
            (bob.place / "node.yaml").write_text(yaml.safe_dump(config))
            bob.start()
            bob_id = lines[1].partition("@")[0]
            for site in (alice, carol):
                site.succeed("peers", "add", f"{bob_id}@{moved}", "--config", "node.yaml")
            status = alice.get_status()
            assert status is not None
            await wait_for(lambda: bob.contributed_after(status["height"]), "contribution of bob's", sites)

            # In the end all have one chain, which anybody can recompute.
            for site in sites:
                assert site.stop() == 0, site.log[-3000:]
                site.succeed("chain", "verify", "--deep", "--config", "node.yaml")
            heads = [json.loads(s.succeed("chain", "show", "3", "--config", "node.yaml", "--json")) for s in sites]
            assert len({head["id"] for head in heads}) == 1
