"""Real `fednode` processes on this machine: the demo shows them, the benchmarks measure them, the tests kill them."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from node.admin.client import AdminClient
from node.admin.json_view import to_json
from node.config.node_config import load_config
from node.errors import NodeError, NodeUnreachable
from node.host.child import make_command
from node.host.forking import ForkedProcess, ForkError, ForkServer, is_supported
from node.testnet.layout import Testnet, TestnetNode

STOP_S = 10.0  # for a node to end after SIGTERM
POLL_S = 0.1
TAIL_BYTES = 4000
LOADS = ("node.cli.app", "node.daemon", "node.log", "node.host.notify")  # all that a daemon needs


class NodeExited(NodeError):
    """A node ended by itself; the error carries the end of its log."""


class NodeProcess:
    """One node's daemon. It logs to a file beside its configuration.

    `via` is a command that runs the daemon when the daemon's own command is put behind it, such as `ip netns exec
    NAME`.
    """

    def __init__(self, node: TestnetNode, *, options: Sequence[str] = (), via: Sequence[str] = ()) -> None:
        self.node = node
        self.log_file = node.config_file.with_suffix(".log")
        self.process: Process | ForkedProcess | None = None
        self.socket = _get_socket(node.config_file)
        self._options = tuple(options)
        self.via = tuple(via)

    def __repr__(self) -> str:
        return f"NodeProcess({self.name}, running={self.is_running})"

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self, fork_server: ForkServer | None = None) -> None:
        """Starts the daemon, as a copy of the fork server if there is one that can."""
        arguments = ("--config", str(self.node.config_file), *self._options)
        with self.log_file.open("ab") as log:
            if fork_server is not None and not self.via:
                with suppress(ForkError):
                    self.process = await fork_server.fork("node.cli", *arguments, output=log.fileno(), loads=LOADS)
                    return
            command = (*self.via, *make_command("node.cli", *arguments))
            self.process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=log, stderr=log)

    async def stop(self) -> int:
        """Sends SIGTERM and returns the exit code; sends SIGKILL if it does not end in STOP_S."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> int:
        """Ends the daemon by SIGKILL. Returns the exit code."""
        return await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> int:
        assert self.process is not None  # noqa: S101 - only asked of a process that was started
        if self.process.returncode is None:
            self.process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_S):
                return await self.process.wait()
        except TimeoutError:
            self.process.kill()
            return await self.process.wait()

    async def get_status(self) -> dict[str, Any] | None:
        """Returns the node's status, None while it does not answer. Raises NodeExited if it has ended."""
        if not self.is_running:
            code = self.process.returncode if self.process is not None else None
            raise NodeExited(f"{self.name} ended with exit code {code}:\n{self.read_log_tail()}")
        if not self.socket.exists():
            return None
        try:
            return await asyncio.to_thread(self._read_status)
        except NodeUnreachable:
            return None

    async def expect_status(self) -> dict[str, Any]:
        """Returns the status of a node that has answered before. Raises NodeError where it does not answer now, and as
        `get_status`."""
        status = await self.get_status()
        if status is None:
            raise NodeError(f"{self.name} does not answer")
        return status

    def _read_status(self) -> dict[str, Any]:
        with AdminClient(self.socket) as admin:
            return to_json(admin.get_status())

    async def get_round(self, number: int) -> dict[str, Any]:
        """Returns the record of one round, which the node took part in or only caught up with."""
        return await asyncio.to_thread(self._read_round, number)

    def _read_round(self, number: int) -> dict[str, Any]:
        with AdminClient(self.socket) as admin:
            return to_json(admin.get_round(number))

    async def get_rounds(self) -> list[dict[str, Any]]:
        """Returns the records of all rounds that this node took part in, oldest first."""
        return await asyncio.to_thread(self._read_rounds)

    async def get_block_times(self) -> list[float]:
        """Returns the times at which blocks were sealed, from height 1 on, in Unix seconds by the miners' clocks."""
        return await asyncio.to_thread(self._read_block_times)

    def _read_block_times(self) -> list[float]:
        with AdminClient(self.socket) as admin:
            return [datetime.fromisoformat(block.time).timestamp() for block in admin.iterate_blocks(1, reverse=True)]

    def _read_rounds(self) -> list[dict[str, Any]]:
        with AdminClient(self.socket) as admin:
            return [to_json(record) for record in admin.iterate_rounds(1, reverse=True) if record.measured]

    def read_log_tail(self) -> str:
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES))
            return log.read().decode(errors="replace")


class LocalCluster:
    """The processes of a test network. Leaving its context ends those that still run.

    They are copies of one process with the modules imported, where that is possible, unless each `stands_alone`, as on
    a machine of its own.
    """

    def __init__(self, testnet: Testnet, *, options: Sequence[str] = (), stands_alone: bool = False) -> None:
        self.testnet = testnet
        self._shares = is_supported() and not stands_alone
        self._context = AsyncExitStack()
        self.processes = tuple(NodeProcess(node, options=options) for node in testnet.nodes)

    def __repr__(self) -> str:
        return f"LocalCluster({[*self.processes]})"

    async def __aenter__(self) -> LocalCluster:
        return self

    async def __aexit__(self, *exception: object) -> None:
        async with self._context:
            running = [process for process in self.processes if process.is_running]
            await asyncio.gather(*(process.stop() for process in running))

    async def start(self) -> None:
        server = await self._context.enter_async_context(ForkServer.started()) if self._shares else None
        await asyncio.gather(*(process.start(server) for process in self.processes))

    async def get_statuses(self) -> Mapping[str, dict[str, Any] | None]:
        """Returns the statuses by node name; None for a node that does not answer yet, or was stopped on purpose."""
        statuses = await asyncio.gather(*(_get_status_if_running(process) for process in self.processes))
        return {process.name: status for process, status in zip(self.processes, statuses, strict=True)}

    async def wait_for_height(self, height: int, timeout_s: float, names: Sequence[str] = ()) -> None:
        """Waits until the named nodes (all by default) have finalised and applied `height`. Raises NodeUnreachable."""
        wanted = [process for process in self.processes if not names or process.name in names]
        try:
            async with asyncio.timeout(timeout_s):
                for process in wanted:
                    while not _has_applied(await process.get_status(), height):  # noqa: ASYNC110 - another process
                        await asyncio.sleep(POLL_S)
        except TimeoutError:
            logs = "\n".join(f"--- {process.name}\n{process.read_log_tail()}" for process in wanted)
            raise NodeUnreachable(f"height {height} was not reached within {timeout_s:g} s\n{logs}") from None


def _get_socket(config_file: Path) -> Path:
    socket = load_config(config_file).admin.socket
    if socket is None:
        raise NodeError(f"{config_file}: expected an admin socket")
    return socket


async def _get_status_if_running(process: NodeProcess) -> dict[str, Any] | None:
    return await process.get_status() if process.is_running else None


def _has_applied(status: Mapping[str, Any] | None, height: int) -> bool:
    """Says whether a node has applied `height`, or the last round where patience has ended the run before it."""
    if status is None:
        return False
    stopped = (status.get("selected") or {}).get("stopped") or height
    return (status["applied_round"] or 0) >= min(height, stopped)
