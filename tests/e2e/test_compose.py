"""The image and docker-compose.yml as they stand, under whichever container engine this machine has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
UP = ("up", "-d")
NODES = ("node0", "node1", "node2", "node3")
BUILD_S = 1800  # torch is fetched on the first build
COMMAND_S = 180
PATIENCE_S = 120

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Engine:
    """A container engine and the command that reads Compose files with it."""

    program: str
    compose: tuple[str, ...]
    build: tuple[str, ...]

    def run(self, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        return check([self.program, *arguments], timeout_s)


@dataclass(frozen=True)
class Federation:
    """The services of docker-compose.yml, under a project name of this test's own, with the files in `directory`."""

    engine: Engine
    project: str
    directory: Path

    def compose(self, *arguments: str) -> str:
        settings = {"FEDNODE_DIR": str(self.directory)}
        return check([*self.engine.compose, "-p", self.project, *arguments], COMMAND_S, settings)

    def ask(self, node: str, *command: str) -> Any:
        """What a command of fednode prints inside the container of `node`."""
        return json.loads(self.compose("exec", "-T", node, "fednode", *command, "--json"))

    def get_heights(self, nodes: Sequence[str] = NODES) -> list[int]:
        return [self.ask(node, "status")["height"] for node in nodes]

    def wait_for(self, claim: Callable[[], bool], what: str) -> None:
        """Raises AssertionError with every node's log when it does not come true."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                if claim():
                    return
                why = ""
            except subprocess.CalledProcessError as error:  # a node that does not answer yet
                why = f": {error.stderr}"
            if time.monotonic() > until_s:
                raise AssertionError(f"not within {PATIENCE_S} s: {what}{why}\n{self.compose('logs')}")
            time.sleep(1)

    def wait_for_height(self, height: int, nodes: Sequence[str] = NODES) -> None:
        self.wait_for(lambda: min(self.get_heights(nodes)) >= height, f"height {height} at {', '.join(nodes)}")

    def assert_one_chain(self) -> None:
        height = min(self.get_heights())
        blocks = {self.ask(node, "chain", "show", str(height))["id"] for node in NODES}
        assert len(blocks) == 1, f"different blocks at height {height}: {blocks}"


def check(command: Sequence[str], timeout_s: float, settings: dict[str, str] | None = None) -> str:
    environment = os.environ | (settings or {})
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, list(command), done.stdout, done.stderr)
    return done.stdout


def find_engine() -> Engine | None:
    docker = Engine("docker", ("docker", "compose"), ("build",))
    podman = Engine("podman", ("podman-compose",), ("build", "--network", "host"))
    for engine in (docker, podman):
        if not all(shutil.which(program) for program in (engine.program, engine.compose[0])):
            continue
        probes = ((engine.program, "info"), (*engine.compose, "version"))
        if all(subprocess.run(probe, capture_output=True, check=False).returncode == 0 for probe in probes):
            return engine
    return None


@pytest.fixture(scope="module")
def engine() -> Engine:
    """With the image built from the working tree."""
    found = find_engine()
    if found is None:
        pytest.skip("no container engine: expected docker with its compose plugin, or podman with podman-compose")
    found.run(*found.build, "-t", "fednode", "-f", "deploy/Dockerfile", ".", timeout_s=BUILD_S)
    return found


@pytest.fixture
def federation(engine: Engine, tmp_path: Path) -> Iterator[Federation]:
    # As root of a container, so that the keys become those of the image's user, whoever runs this.
    make = ("run", "--rm", "--user", "0", "-v", f"{tmp_path}:/out", "fednode", "testnet", "--target", "compose")
    # Until stopped: how fast rounds go is no part of what is asked here.
    engine.run(*make, "-n", str(len(NODES)), "-o", "/out/cluster", "--rounds", "0")
    made = Federation(engine, f"fednode-test-{os.getpid()}", tmp_path / "cluster")
    try:
        made.compose(*UP)
        yield made
    finally:
        made.compose("down", "-v")


def test_image_runs_as_nobody_and_holds_no_key(engine: Engine) -> None:
    look = "id -u; find / -xdev -name '*.key' 2>/dev/null; find /data -type f"
    found = engine.run("run", "--rm", "--read-only", "--entrypoint", "/bin/sh", "fednode", "-c", look)

    assert found.split() == ["10001"]
    assert engine.run("run", "--rm", "--read-only", "fednode", "version").startswith("fednode ")


def test_four_containers_agree_through_a_kill_and_a_stop(federation: Federation) -> None:
    others = [node for node in NODES if node != "node2"]
    federation.wait_for_height(3)
    federation.assert_one_chain()
    keys = "find / -name '*.key' -not -path '/proc/*' 2>/dev/null || true"
    assert federation.compose("exec", "-T", "node0", "/bin/sh", "-c", keys).split() == ["/run/secrets/identity.key"]
    root = "touch /usr/written 2>&1; cat /proc/1/status"
    seen = federation.compose("exec", "-T", "node0", "/bin/sh", "-c", root)
    assert "Read-only file system" in seen
    assert "CapEff:\t0000000000000000" in seen
    assert "NoNewPrivs:\t1" in seen

    federation.compose("kill", "-s", "SIGKILL", "node2")
    federation.wait_for_height(max(federation.get_heights(others)) + 2, others)
    federation.compose("start", "node2")
    federation.wait_for_height(max(federation.get_heights(others)) + 2)
    federation.assert_one_chain()

    before = max(federation.get_heights())
    federation.compose("stop")
    federation.compose(*UP)
    federation.wait_for_height(before + 2)
    federation.assert_one_chain()
    for node in NODES:
        federation.compose("exec", "-T", node, "fednode", "health", "--ready", "--wait", "30")
    assert federation.ask("node2", "chain", "verify")["ok"]
