"""The one process of a test session that has imported what nodes need: its real nodes start as copies of it.

A test in an event loop has a fork server of the product's own (`node.host.forking`), itself such a copy, so that it
needs no import; a test without a loop copies each node from the session's process. Nodes that need an environment
changed since then are started as usual.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from node.host import fork_server, forking
from node.host.child import make_command
from node.testnet.cluster import LOADS
from node.training import worker_config

ALL_LOADS = (*LOADS, *worker_config.LOADS, worker_config.WORKER)
OWN = ("PYTEST_CURRENT_TEST",)  # environment variables that pytest changes for each test


class CopiedProcess:
    """A process with the interface of `subprocess.Popen`, whose parent is the session's server; its exit code is
    unknown."""

    def __init__(self, pid: int, file: int) -> None:
        self.pid = pid
        self._file = file

    def __del__(self) -> None:
        os.close(self._file)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._file, number)

    def wait(self, timeout: float) -> None:
        """Waits for the end of the process. Raises TimeoutError."""
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        if not poll.poll(timeout * 1000):
            raise TimeoutError(f"process {self.pid} has not ended after {timeout:g} s")


class _Session:
    """The session's end of the connection to the server, for one request at a time."""

    def __init__(self) -> None:
        self.environment = _get_environment()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                make_command(fork_server.__name__), stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        atexit.register(self.close)

    def copy(self, module: str, *arguments: str, files: tuple[int, ...]) -> CopiedProcess:
        """Starts a process that runs `main` of a module; `files` are its output, and its input if it has any."""
        request = {
            "number": 0,
            "module": module,
            "arguments": arguments,
            "loads": ALL_LOADS,
            "own_group": True,
            "dies_with_asker": True,
        }
        socket.send_fds(self._channel, [json.dumps(request).encode()], files)
        while "pid" not in (answer := self._read())[0]:
            assert "exit" in answer[0], answer  # left over from an earlier one
        return CopiedProcess(answer[0]["pid"], answer[1][0])

    def _read(self) -> tuple[dict[str, Any], list[int]]:
        data, files, _, _ = socket.recv_fds(self._channel, forking.MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        assert data, "the process that nodes are copied from has ended"
        return json.loads(data), files

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


_get_session = cache(_Session)


def can_copy() -> bool:
    """Says whether a copied process behaves like one that is started as usual."""
    return forking.is_supported() and _get_session().environment == _get_environment()


@contextmanager
def fork_server_of_the_session() -> Iterator[forking.ForkServer | None]:
    """Returns the fork server for the running event loop; None where nodes have to be started as usual."""
    if not can_copy():
        yield None
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, open(os.devnull, "wb") as nothing:
        _get_session().copy(fork_server.__name__, files=(nothing.fileno(), theirs.fileno()))
    server = forking.ForkServer(ours)
    try:
        yield server
    finally:
        server.close()


def start_node(config_file: Path, log_file: Path) -> CopiedProcess | subprocess.Popen[bytes]:
    """Starts `fednode --config` without an event loop."""
    arguments = ("--config", str(config_file))
    with log_file.open("wb") as log:
        if can_copy():
            return _get_session().copy("node.cli", *arguments, files=(log.fileno(),))
        return subprocess.Popen(make_command("node.cli", *arguments), stdout=log, stderr=log)


def _get_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in OWN}
