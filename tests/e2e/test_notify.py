"""A real node under a service manager: what it hears from start to stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from node.addresses import parse_address
from node.config.node_config import load_config
from support.federation.real_nodes import make_federation

pytestmark = pytest.mark.e2e


def test_a_node_says_when_it_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    directory = make_federation(tmp_path / "c", num_nodes=2, rounds=0, settings=("model.hidden=[8]",))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        env = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        command = [sys.executable, "-m", "node.cli", "--config", str(directory / "node0.yaml")]
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as node:
            try:
                heard = [systemd.recv(4096).decode()]
                assert heard[0].startswith("READY=1\nSTATUS=height 0"), heard
                while not heard[-1].startswith("WATCHDOG=1"):
                    heard.append(systemd.recv(4096).decode())
                node.send_signal(signal.SIGTERM)
                while heard[-1] != "STOPPING=1":
                    heard.append(systemd.recv(4096).decode())
                _, errors = node.communicate(timeout=60)
                assert node.returncode == 0, errors
            finally:
                node.kill()


def test_a_node_that_cannot_start_never_says_it_is_ready(tmp_path: Path) -> None:
    directory = make_federation(tmp_path / "c", num_nodes=2, rounds=0, settings=("model.hidden=[8]",))
    host, port = parse_address(load_config(directory / "node0.yaml").network.listen)
    with (
        socket.create_server((host, port)),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
    ):
        systemd.bind(str(tmp_path / "notify"))
        env = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        command = [sys.executable, "-m", "node.cli", "--config", str(directory / "node0.yaml")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 78, done.stderr
        systemd.setblocking(False)
        heard = []
        try:
            while True:
                heard.append(systemd.recv(4096).decode())
        except BlockingIOError:
            pass
    assert heard == ["STOPPING=1"]
