"""A demo seen and ended from another terminal, and the nodes of one that was killed."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.testnet.running import is_running
from support.federation.ports import find_free_ports
from support.federation.real_nodes import Finished, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.outer]

WAIT_S = 120.0


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's demos are, and no others."""
    path = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))  # this process has looked already
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


@pytest.mark.parametrize("how", ["Ctrl-C", "down"])
def test_a_demo_that_stays_can_be_looked_at_as_it_says_until_it_is_ended(temporary: Path, how: str) -> None:
    port = find_free_ports(2)[0]
    options = ("-n", "2", "--rounds", "1", "--partition", "iid", "--set", "local_iterations=1")
    command = [sys.executable, "-m", "node.cli", "demo", *options, "--stay", "--http-port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said: list[str] = []
        while not said or "curl" not in said[-1]:
            said.append(process.stdout.readline())
            assert said[-1], said
        pages = [f"  node{i}  http://127.0.0.1:{port + i}/\n" for i in range(2)]
        assert set(pages) <= set(said)
        first = said.index("the nodes keep running until Ctrl-C, or fednode demo down. From another terminal:\n") + 1
        for line in said[first:-1]:
            done = run_command(*shlex.split(line)[1:])
            assert done.code == 0, done.err
        url = shlex.split(said[-1])[1]
        assert url == f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            assert b"fednode_chain_height 1.0" in answer.read()
        nodes = list_nodes()
        assert [node["http"] for node in nodes] == [f"http://127.0.0.1:{port + i}" for i in range(2)]
        assert {node["status"]["phase"] for node in nodes} == {"done"}
        assert process.poll() is None

        if how == "down":
            assert run_command("demo", "down").code == 0
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
        assert not any(is_running(node["status"]["pid"]) for node in nodes)
        assert list(temporary.iterdir()) == []
    finally:
        run_command("demo", "down")
        process.kill()
        process.communicate()


def test_a_demo_that_is_broken_off_before_its_last_round_says_so_by_its_exit_code(
    demo: subprocess.Popen[bytes], temporary: Path
) -> None:
    nodes = wait_for(list_when_up)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(WAIT_S) == 130
    assert not any(is_running(node["status"]["pid"]) for node in nodes)


def test_an_http_port_that_is_taken_is_seen_before_anything_is_started(temporary: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run_command("demo", "-n", 2, "--http-port", port)
    assert (done.code, done.out) == (78, "")
    assert done.err == f"fednode: --http-port: 127.0.0.1:{port} is in use by another process\n"
    assert list(temporary.iterdir()) == []


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
