"""Real `fednode` processes for tests: started, frozen, killed, asked, and compared; and commands about them.

    async with Federation(make_federation(tmp_path / "net", rounds=0)) as net:
        await net.start()
        with paused(await net.get_worker("node3")):
            await net.kill("node0")

A wait that fails shows the end of every node's log.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar
from unittest.mock import patch

from chain.genesis import Genesis
from node.admin.client import AdminClient
from node.admin.json_view import to_json
from node.boundary import UNFORESEEN
from node.cli import main
from node.config.genesis_file import load_genesis
from node.config.node_config import load_config
from node.errors import NodeUnreachable
from node.host.forking import ForkServer
from node.testnet.cluster import NodeProcess
from node.testnet.layout import TestnetNode, TestnetSpec, make_testnet
from support.federation.fork_servers import fork_server_of_the_session
from support.federation.ports import find_free_ports

POLL_S = 0.1
WAIT_S = 240.0  # for any wait: generous, as a loaded machine may be ten times slower than an idle one
COMMAND_S = 240.0
STOP_S = 60.0

_ONE_AT_A_TIME = threading.Lock()  # as stdout belongs to the whole process, and tests call commands on threads

T = TypeVar("T")

Status = dict[str, Any]
Statuses = Mapping[str, Status]


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A run of `fednode demo --json --keep directory`: how it ended, and the object it printed last."""

    directory: Path
    rounds: int
    seed: int
    finished: Finished
    result: dict[str, Any]


def run_command(*arguments: object) -> Finished:
    """Calls `fednode` with these arguments in this process.

    Use `run_process` for a command that handles signals, runs an event loop, has to be stopped, or waits for a command
    on a second thread: this function calls one at a time.
    """
    with _as_in_a_process() as (out, err):
        code = Context().run(main, [*map(str, arguments)])
        return Finished(code, _read(out), _read(err))


def run_process(*arguments: object, timeout_s: float = COMMAND_S) -> Finished:
    """Runs `fednode` with these arguments, in a process of its own."""
    return _run("node.cli", arguments, timeout_s)


def run_bench(*arguments: object, timeout_s: float = COMMAND_S) -> Finished:
    """Runs `make bench-NAME` with these arguments, the first of them the NAME, in a process of its own."""
    return _run("tests.bench", arguments, timeout_s)


def ask_stopped(directory: Path, node: int, *command: object) -> Any:
    """Returns the object that a command prints about the files of a stopped node of a demo that was kept."""
    done = run_command(*command, "--json", "--data-dir", directory / f"data/node{node}")
    assert done.code == 0, done.err
    return json.loads(done.out)


@contextmanager
def _as_in_a_process() -> Iterator[tuple[TextIO, TextIO]]:
    """Stands in for a process of its own: an empty stdin, a stdout and a stderr, which it yields, and unconfigured
    logging. It undoes the command's changes to the garbage collector."""
    with _ONE_AT_A_TIME:
        given, out, err = io.TextIOWrapper(io.BytesIO()), _OfThisThread(sys.stdout), _OfThisThread(sys.stderr)
        thresholds = gc.get_threshold()
        try:
            with (
                patch.multiple(sys, stdin=given, stdout=out, stderr=err),
                patch.object(logging.getLogger(), "handlers", []),  # so that warnings go to stderr
            ):
                yield out, err
        finally:
            gc.set_threshold(*thresholds)


class _OfThisThread(io.TextIOWrapper):
    """Captures what this thread writes, and passes on what others write meanwhile: a test may print beside its
    command."""

    def __init__(self, before: TextIO) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self._before = before
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        return super().write(text) if threading.get_ident() == self._thread else self._before.write(text)


def _read(written: TextIO) -> str:
    written.seek(0)
    return written.read()


def _run(module: str, arguments: Sequence[object], timeout_s: float) -> Finished:
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def make_federation(directory: Path, **spec: Any) -> Path:
    """Makes the files of a test network on ports that are free now. `spec` is `TestnetSpec`'s."""
    made = TestnetSpec(**spec)
    return make_testnet(directory, replace(made, base_port=find_free_ports(made.num_nodes)[0])).directory


@contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Stops the processes by SIGSTOP until the context is left. Those killed meanwhile stay dead."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def flip_byte(file: Path, data: bytes) -> None:
    """Changes one byte in the middle of `data` wherever `file` holds it: a split page of the database may keep a stale
    copy."""
    content = file.read_bytes()
    assert data in content, f"{file}: these {len(data)} bytes are not in it"
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x01
    file.write_bytes(content.replace(data, bytes(changed)))


class Federation:
    """The nodes of a directory that `fednode testnet` or `fednode demo --keep` wrote. Leaving it ends them all.

    Nodes are copies of the session's process with the modules imported, unless each `stands_alone`, for claims about a
    start, a command line or memory. `via` holds for each node the command that starts it, as in `NodeProcess`.
    """

    def __init__(
        self, directory: Path, via: Mapping[str, Sequence[str]] | None = None, *, stands_alone: bool = False
    ) -> None:
        self.directory = directory
        self._shares = not stands_alone
        self._server: ForkServer | None = None
        self._context = ExitStack()
        made = (_make_process(file, via or {}) for file in sorted(directory.glob("node*.yaml")))
        self.nodes = {node.name: node for node in made}

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.nodes)

    @property
    def running(self) -> Sequence[str]:
        return tuple(name for name, node in self.nodes.items() if node.is_running)

    @property
    def genesis(self) -> Genesis:
        return load_genesis(self.directory / "genesis.yaml").genesis

    def get_data_dir(self, name: str) -> Path:
        return load_config(self.nodes[name].node.config_file).node.data_dir

    async def __aenter__(self) -> Self:
        if self._shares:
            self._server = self._context.enter_context(fork_server_of_the_session())
        return self

    async def __aexit__(self, *exception: object) -> None:
        with self._context:
            await asyncio.gather(*(self.nodes[name].stop() for name in self.running))
        if exception[0] is None:
            for name, node in self.nodes.items():
                if node.log_file.exists():
                    assert UNFORESEEN not in node.log_file.read_text(errors="replace"), f"{name}: see its log"

    # ---- starting and ending

    async def start(self, *names: str) -> None:
        """Starts the named nodes, or all that are down; returns when each answers, well before its worker is ready."""
        starting = [self.nodes[name] for name in names or self.names if not self.nodes[name].is_running]
        await asyncio.gather(*(node.start(self._server) for node in starting))
        wanted = {node.name for node in starting}
        await self.wait_for(lambda statuses: wanted <= set(statuses), f"an answer of {', '.join(sorted(wanted))}")

    async def wait_until_ready(self, *names: str) -> None:
        """Waits until the nodes' workers are ready and they see a quorum."""
        wanted = names or self.running
        await self.wait_for(lambda now: all(now[name]["ready"] for name in wanted), f"{', '.join(wanted)} ready")

    async def stop(self, name: str) -> int:
        """Sends SIGTERM. Returns the exit code. AssertionError when the node does not end by itself."""
        process = self.nodes[name].process
        assert process is not None, f"{name} was never started"
        process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            raise AssertionError(f"{name} has not ended after {STOP_S:g} s\n{self._describe({})}") from None

    async def kill(self, name: str) -> None:
        """Ends a node by SIGKILL."""
        assert await self.nodes[name].kill() == -signal.SIGKILL

    # ---- asking

    async def get_statuses(self) -> dict[str, Status]:
        """Returns the statuses of the running nodes that answer. Raises NodeExited when one has ended by itself."""
        found = await asyncio.gather(*(self.nodes[name].get_status() for name in self.running))
        return {status["name"]: status for status in found if status is not None}

    async def get_status(self, name: str) -> Status:
        status: Status = to_json(await self.ask(name, AdminClient.get_status))
        return status

    def read_log(self, name: str) -> str:
        """Returns all that a node has logged."""
        return self.nodes[name].log_file.read_text(errors="replace")

    def get_pid(self, name: str) -> int:
        process = self.nodes[name].process
        assert process is not None, f"{name} was never started"
        return process.pid

    async def get_worker(self, name: str) -> int:
        """Returns the process id of a worker that is ready."""
        pid: int = (await self.get_status(name))["worker_pid"]
        return pid

    async def read_chain(self, name: str) -> list[dict[str, Any]]:
        """Returns every finalised block as the running node lists it, genesis first."""
        return await self.ask(name, _read_chain)

    async def read_contributors(self, name: str, height: int) -> list[str]:
        """Returns the names of the contributors to the block of a height, as the running node has it."""
        block = await self.ask(name, lambda admin: admin.get_block(height))
        return [contribution.name for contribution in block.contributions]

    async def ask(self, name: str, question: Callable[[AdminClient], T]) -> T:
        """Returns a running node's answer, also if it takes longer than a command would wait."""

        def ask() -> T:
            with AdminClient(self.nodes[name].socket) as admin:
                return question(admin)

        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                return await asyncio.to_thread(ask)
            except NodeUnreachable:
                if not self.nodes[name].is_running or time.monotonic() > deadline_s:
                    raise AssertionError(f"{name} does not answer\n{self._describe({})}") from None
            await asyncio.sleep(POLL_S)

    async def check_agreement(self) -> int:
        """Checks that no two running nodes have different blocks at a height. Returns their least height."""
        chains = await asyncio.gather(*(self.read_chain(name) for name in self.running))
        least = min(len(chain) for chain in chains)
        ids = [[block["id"] for block in chain[:least]] for chain in chains]
        assert all(other == ids[0] for other in ids), f"chains differ: {dict(zip(self.running, ids, strict=True))}"
        for chain in chains:
            assert [block["height"] for block in chain] == list(range(len(chain)))
            assert all(block["prev"] == parent["id"] for parent, block in pairwise(chain))
        return least - 1

    # ---- waiting

    async def wait_for(
        self, condition: Callable[[Statuses], bool], what: str, *, looks: int = 1, timeout_s: float = WAIT_S
    ) -> Statuses:
        """Waits until `condition` holds for the statuses of all running nodes, in so many `looks` in a row."""
        deadline_s = time.monotonic() + timeout_s
        held = 0
        while True:
            statuses = await self.get_statuses()
            is_complete = len(statuses) == len(self.running)
            held = held + 1 if is_complete and condition(statuses) else 0
            if held == looks:
                return statuses
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {timeout_s:g} s: {what}\n{self._describe(statuses)}")
            await asyncio.sleep(POLL_S)

    async def wait_until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """Waits until `holds`, which asks the nodes for more than their statuses, returns true."""
        deadline_s = time.monotonic() + WAIT_S
        while not await holds():
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {WAIT_S:g} s: {what}\n{self._describe(await self.get_statuses())}")
            await asyncio.sleep(POLL_S)

    async def wait_for_height(self, height: int, *names: str) -> None:
        """Waits until the named nodes, or all running ones, have finalised `height`."""
        wanted = names or self.running
        await self.wait_for(
            lambda now: all(now[name]["height"] >= height for name in wanted),
            f"height {height} on {', '.join(wanted)}",
        )

    async def wait_for_contribution(self, author: str, after: int) -> int:
        """Waits until `author` itself holds a block above height `after` that has its contribution. Returns that
        height."""
        height = after
        while True:
            height += 1
            await self.wait_for_height(height, author)
            if author in await self.read_contributors(author, height):
                return height

    def _describe(self, statuses: Statuses) -> str:
        lines = []
        for name, node in self.nodes.items():
            status = statuses.get(name)
            shown = "does not answer" if status is None else {key: status[key] for key in _SHOWN}
            state = "running" if node.is_running else "down"
            lines.append(f"--- {name}, {state}: {shown}\n{node.read_log_tail()}")
        return "\n".join(lines)


_SHOWN = ("height", "round", "phase", "view", "contributions", "candidates", "members_in_sight", "stalled", "ready")


def _read_chain(admin: AdminClient) -> list[dict[str, Any]]:
    return [to_json(block) for block in admin.iterate_blocks(0, reverse=True)]


def _make_process(config_file: Path, via: Mapping[str, Sequence[str]]) -> NodeProcess:
    """Makes the process of a node as `LocalCluster` does; the samples assigned to the node do not matter here."""
    config = load_config(config_file)
    name = config.node.name
    return NodeProcess(TestnetNode(name, b"", config.network.listen, config_file, 0, 0, ()), via=via.get(name, ()))
