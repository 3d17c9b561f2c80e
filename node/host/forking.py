"""Processes of fednode on one machine that share imported modules: they are copies of one that has imported them.

Four nodes on one machine would each compile, link and initialise the same modules twice, in a daemon and a worker with
torch: two seconds of CPU a node, and as much memory each. A `ForkServer` loads them once. The processes that it starts
are like any others, each with its own memory as soon as it writes to it. Only Linux can end exactly one process for
certain, so elsewhere, and where the server is gone, processes are started as usual.

    async with ForkServer.started() as server:
        process = await server.fork("node.cli", "--config", "node0.yaml", output=1, loads=("node.daemon",))
        await process.wait()
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import DEVNULL
from typing import Any
from weakref import WeakSet

from node.host.child import make_command

STOP_S = 10.0  # time for the server to end after its last process
MAX_MESSAGE = 1 << 16
LOST = 255  # the exit code of a process that outlived the server

_numbers = itertools.count(1)  # of requests: a channel may outlive the loop in which it was first used
inherited: socket.socket | None = None  # this process's own channel, if a server started it
_own: ForkServer | None = None


class ForkError(Exception):
    """A process could not be started by the server; start it as usual."""


class ForkedProcess:
    """Acts as `asyncio.subprocess.Process` for a process whose parent is the server."""

    def __init__(self, pid: int, file: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: asyncio.StreamReader | None = None  # of `fork_piped`
        self._file = file  # refers to this process, even if its number is reused
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        return f"ForkedProcess({self.pid}, returncode={self.returncode})"

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None  # noqa: S101 - it has ended
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal; does nothing where the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._file, number)

    def on_exit(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            os.close(self._file)
            self._ended.set()

    def watch(self) -> None:
        """Notices the end of the process without the server: its exit code is then LOST."""
        loop = asyncio.get_running_loop()

        def on_end() -> None:
            loop.remove_reader(self._file)
            self.on_exit(LOST)

        loop.add_reader(self._file, on_end)


class ForkServer:
    """Asks the server to start processes, over one end of a channel. Must be used within one event loop."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.is_gone = False
        self.loop = asyncio.get_running_loop()
        self._channel = channel
        self._asked: dict[int, asyncio.Future[ForkedProcess]] = {}
        self._running: dict[int, ForkedProcess] = {}
        self._outputs: WeakSet[asyncio.ReadTransport] = WeakSet()  # of `fork_piped`
        self.loop.add_reader(channel, self._on_readable)

    def __repr__(self) -> str:
        return f"ForkServer(running={len(self._running)}, is_gone={self.is_gone})"

    @classmethod
    @asynccontextmanager
    async def started(cls) -> AsyncIterator[ForkServer]:
        """Starts a new server, which ends when all that it has started have ended. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *make_command("node.host.fork_server"), stdin=theirs.fileno(), stdout=DEVNULL
                )
            server = cls(ours)
            try:
                yield server
            finally:
                server.close()
                for output in server._outputs:  # the end of a process killed just now is not noticed yet
                    output.close()
                try:
                    async with asyncio.timeout(STOP_S):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()

    async def fork(
        self,
        module: str,
        *arguments: str,
        output: int,
        stdin: int | None = None,
        loads: Sequence[str] = (),
        own_group: bool = False,
        dies_with_asker: bool = False,
    ) -> ForkedProcess:
        """Starts a process that runs `main` of a module of fednode, once `loads` are imported. Its output goes to the
        file `output`, and without `stdin` it has nothing to read.

        `own_group` shields it from Ctrl-C, and with `dies_with_asker` it is killed when this process ends. Raises
        ForkError.
        """
        if self.is_gone:
            raise ForkError("the server is gone")
        number = next(_numbers)
        request = {
            "number": number,
            "module": module,
            "arguments": arguments,
            "loads": list(loads),
            "own_group": own_group,
            "dies_with_asker": dies_with_asker,
        }
        made: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._asked[number] = made
        files = [output] if stdin is None else [output, stdin]
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], files)
        except OSError as error:
            del self._asked[number]
            raise ForkError(f"the server cannot be asked: {error}") from error
        return await made

    async def fork_piped(self, module: str, *, stdin: int | None = None, loads: Sequence[str] = ()) -> ForkedProcess:
        """Starts a process that ends with this one, and that Ctrl-C does not reach; its output is its `stdout`."""
        reading, writing = os.pipe()
        try:
            process = await self.fork(
                module,
                output=writing,
                stdin=stdin,
                loads=loads,
                own_group=True,
                dies_with_asker=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        process.stdout = output = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reading, "rb")
        )
        self._outputs.add(transport)
        return process

    def close(self) -> None:
        """Closes the channel. Processes that it has started go on, but for those that die with this process."""
        if not self.is_gone:
            self.is_gone = True
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
            for made in self._asked.values():
                if not made.done():
                    made.set_exception(ForkError("the server is gone"))
            for process in self._running.values():
                process.watch()

    def _on_readable(self) -> None:
        try:
            data, files, _, _ = socket.recv_fds(self._channel, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, files = b"", []
        if data:
            self._on_message(json.loads(data), files)
        else:
            self.close()

    def _on_message(self, message: Mapping[str, Any], files: Sequence[int]) -> None:
        number = message["number"]
        if "exit" in message:
            if (ended := self._running.pop(number, None)) is not None:  # else it was started in an earlier loop
                ended.on_exit(message["exit"])
            return
        made = self._asked.pop(number, None)
        if "failed" in message:
            if made is not None and not made.done():
                made.set_exception(ForkError(message["failed"]))
            return
        self._running[number] = process = ForkedProcess(message["pid"], files[0])
        if made is None or made.done():  # the caller was cancelled, or its loop has ended
            process.kill()
        else:
            made.set_result(process)


def is_supported() -> bool:
    """Says whether the system supports this; some Linux containers do not."""
    if sys.platform != "linux":
        return False
    try:
        file = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(file, 0)
        finally:
            os.close(file)
    except OSError:
        return False
    return True


def get_fork_server() -> ForkServer | None:
    """Returns the server that has started this process, None where there is none any more. Must be called within the
    event loop."""
    global _own
    if inherited is not None and (_own is None or (not _own.is_gone and _own.loop is not asyncio.get_running_loop())):
        _own = ForkServer(inherited)
    return None if _own is None or _own.is_gone else _own
