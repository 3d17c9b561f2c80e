"""A demo seen and ended from another terminal, and the nodes of one that was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.demos import is_running
from support.real_nodes import Finished, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WAIT_S = 120.0


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's demos are, and no others."""
    path = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(path))
    return path


@pytest.fixture
def demo(temporary: Path) -> Iterator[subprocess.Popen[bytes]]:
    options = ("-n", "2", "--rounds", "100000", "--partition", "iid", "--set", "local_iterations=1")
    process = subprocess.Popen([sys.executable, "-m", "node.cli", "demo", *options], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        run_command("demo", "down")
        process.kill()
        process.wait()


def wait_for(what: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < until_s
        time.sleep(0.2)
    return found


def list_nodes() -> list[dict[str, Any]]:
    done = run_command("demo", "ps", "--json")
    assert done.code == 0, done.err
    nodes: list[dict[str, Any]] = json.loads(done.out)["nodes"]
    return nodes


def list_when_up() -> list[dict[str, Any]]:
    nodes = list_nodes()
    return nodes if len(nodes) == 2 and all(node["status"] is not None for node in nodes) else []


def test_another_terminal_sees_a_demo_and_ends_it(demo: subprocess.Popen[bytes], temporary: Path) -> None:
    nodes = wait_for(list_when_up)
    assert [node["name"] for node in nodes] == ["node0", "node1"]
    assert {node["demo_pid"] for node in nodes} == {demo.pid}
    logged: Finished = run_command("demo", "logs", "node1", "--tail", 3)
    assert logged.code == 0, logged.err
    assert 1 <= len(logged.out.splitlines()) <= 3
    assert all(line.startswith("node1 | ") for line in logged.out.splitlines())
    assert run_command("demo", "logs", "node7").code == 3

    done = run_command("demo", "down", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["stopped"] == ["node0", "node1"]
    demo.wait(WAIT_S)
    assert not any(is_running(node["status"]["pid"]) for node in nodes)
    assert list_nodes() == []
    assert list(temporary.iterdir()) == []
    assert run_command("demo", "down").code == 3


def test_the_nodes_of_a_demo_that_was_killed_are_found_and_ended(
    demo: subprocess.Popen[bytes], temporary: Path
) -> None:
    nodes = wait_for(list_when_up)
    demo.send_signal(signal.SIGKILL)
    demo.wait(WAIT_S)
    assert [node["demo_pid"] for node in list_nodes()] == [None, None]
    assert "its demo is gone" in run_command("demo", "ps").out
    assert run_command("demo", "down").code == 0
    assert not any(is_running(node["status"]["pid"]) for node in nodes)
    assert list(temporary.iterdir()) == []
