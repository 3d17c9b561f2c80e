"""One worker process, from its start to its end: its socket, the calls it has not answered yet, and its last output.

Its program is `node.training.worker_child`. `node.training.worker` replaces it when it dies. What it prints is logged
here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import subprocess
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ml.data.memory import count_killed
from node.host.forking import ForkedProcess, ForkError, get_fork_server
from node.training.checkpoint import Position
from node.training.frames import Frame, FrameError, await_frame, encode_frame, post_pieces
from node.training.progress import OnProgress, Progress
from node.training.trainer import (
    AggregateSpoiled,
    AnswerRefused,
    TrainerInfo,
    TrainingAbandoned,
    TrainingFailed,
    WorkerDied,
    WorkerFailed,
)
from node.training.worker_config import DEFAULT_COMMAND, LOADS, WORKER, WorkerConfig

_log = logging.getLogger(__name__)

_REMEDY = "a smaller batch_size or input.shape needs less, and so does data.images.pixels=uint8"
CLOSE_S = 3.0  # time for a worker to end its step and write its checkpoint


@dataclass(frozen=True, slots=True)
class Call:
    """A call to the worker. `position` is the state that the call moves the client to. None: the call does not move it;
    its failure then says nothing of the worker's health, and it is neither repeated nor abandoned."""

    header: Mapping[str, Any]
    attachments: Mapping[str, bytes]
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """Holds a call that waits for its answer."""

    call: Call
    reply: asyncio.Future[Frame]
    on_progress: OnProgress | None


class ChildProcess:
    """Runs one worker process, from its start to its end, and keeps the calls that it has not answered yet. The context
    manager opens it, unless it is open already."""

    def __init__(self, command: tuple[str, ...], tail: deque[str], on_gone: Callable[[], None]) -> None:
        self.info = TrainerInfo(0, 0, "", 0, 0)
        self.reason = "it was ended"
        self.has_served = False  # answered a call that moves the client
        self.is_blamed = False  # died before it was ready, or during such a call
        self._command = command
        self._tail = tail
        self._on_gone = on_gone
        self._calls = 0
        self._pending: dict[int, _Asked] = {}
        self._outgoing: asyncio.Queue[tuple[bytes, ...]] = asyncio.Queue()  # encoded: errors are the caller's
        self._gone = asyncio.Event()
        self._was_killed = False  # by this object
        self._num_killed = count_killed()
        self._process: Process | ForkedProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> ChildProcess:
        if self._process is None:
            await self.open()
        return self

    async def open(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            try:
                self._process = await self._start(theirs.fileno())
            except BaseException as error:
                self._socket.close()
                if not isinstance(error, OSError):
                    raise
                raise WorkerFailed(f"the worker {self._command[0]} cannot be started: {error}") from error
        talking = (self._forward_output(self._process), self._write(), self._read(self._process))
        self._tasks = [asyncio.create_task(part) for part in talking]

    async def _start(self, stdin: int) -> Process | ForkedProcess:
        """Raises OSError."""
        server = get_fork_server()
        if server is not None and self._command == DEFAULT_COMMAND:
            with suppress(ForkError):
                return await server.fork_piped(WORKER, loads=(*LOADS, WORKER), stdin=stdin)
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=stdin,
            stdout=PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C is the daemon's to handle
        )

    async def __aexit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        process = self._process
        assert process is not None  # noqa: S101 - entered
        try:
            if self.info.num_train:  # it was ready: it may have something to write
                async with asyncio.timeout(CLOSE_S):  # wait_for would swallow a cancellation on Python 3.11
                    await self._gone.wait()
        except TimeoutError:
            _log.warning("Worker %d did not leave within %g s and was killed", process.pid, CLOSE_S)
        finally:
            self._kill(process)
            await self._gone.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._socket.close()

    def load(self) -> None:
        """Has the worker import what every run needs, before its run is known."""
        self._tell({"call": "load"})

    async def start(self, config: WorkerConfig) -> TrainerInfo:
        """Sends the configuration and returns the trainer's info. Raises WorkerDied, and WorkerFailed if the worker
        refuses its configuration."""
        frame = config.encode()
        try:
            reply = await self._ask(Call(frame.header, frame.attachments))
        except FrameError as error:
            raise WorkerFailed(f"the worker cannot be told of its configuration: {error}") from error
        if "failed" in reply.header:
            raise WorkerFailed(f"the worker cannot be set up: {reply.header['failed']}")
        self.info = TrainerInfo(**reply.header["result"])
        return self.info

    async def request(self, call: Call, on_progress: OnProgress | None = None) -> Frame:
        """Sends a call and returns its answer. Raises WorkerDied."""
        try:
            reply = await self._ask(call, on_progress)
        except FrameError as error:
            kind = AnswerRefused if call.position is None else TrainingFailed
            raise kind(f"the worker cannot be asked: {error}") from error
        if call.position is None and "failed" in reply.header:
            raise AnswerRefused(reply.header["failed"])
        self.has_served = self.has_served or call.position is not None
        if "failed" in reply.header:
            kind = AggregateSpoiled if reply.header["spoiled"] else TrainingFailed
            raise kind(reply.header["failed"])
        if "abandoned" in reply.header:
            raise TrainingAbandoned("the training was broken off, its round being over")
        if "stopped" in reply.header:  # after a cancellation, which waits for no answer, or at closing
            raise WorkerDied("the worker was closed")
        return reply

    async def _ask(self, call: Call, on_progress: OnProgress | None = None) -> Frame:
        """Sends a call and waits for its answer. Raises WorkerDied, and FrameError for a call that cannot be
        encoded."""
        if self._gone.is_set():
            raise WorkerDied(self.reason)
        self._calls += 1
        number = self._calls
        self._tell({**call.header, "number": number}, call.attachments)
        reply: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Asked(call, reply, on_progress)
        try:
            return await reply
        except asyncio.CancelledError:
            self._tell({"call": "cancel", "number": number})
            raise
        finally:
            del self._pending[number]

    def abandon(self) -> bool:
        """Asks the worker to stop the call under way and keep what it has done. Returns whether there is a call that
        moves the client."""
        numbers = [number for number, waiting in self._pending.items() if waiting.call.position is not None]
        for number in numbers:
            self._tell({"call": "abandon", "number": number})
        return bool(numbers)

    async def wait_until_gone(self) -> None:
        await self._gone.wait()

    def _tell(self, header: Mapping[str, Any], attachments: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Raises FrameError."""
        self._outgoing.put_nowait(encode_frame(Frame(header, attachments)))

    async def _write(self) -> None:
        with suppress(OSError):  # the reader notices it
            while True:
                await post_pieces(self._socket, await self._outgoing.get())

    async def _read(self, process: Process | ForkedProcess) -> None:
        try:
            while (frame := await await_frame(self._socket)) is not None:
                self._on_frame(frame)
        except FrameError as error:
            _log.warning("Worker %d sent what is not a frame: %s", process.pid, error)
        finally:
            await self._bury(process)

    def _on_frame(self, frame: Frame) -> None:
        """Passes on the answer to a call that still waits for it, or its progress; ignores any other frame."""
        number = frame.header.get("number")
        waiting = self._pending.get(number) if type(number) is int else None
        if waiting is None or waiting.reply.done():
            return
        if "progress" not in frame.header:
            waiting.reply.set_result(frame)
        elif waiting.on_progress is not None and (progress := _read_progress(frame.header["progress"])) is not None:
            waiting.on_progress(progress)

    async def _bury(self, process: Process | ForkedProcess) -> None:
        """Waits for the end of a process whose stream has ended, and fails the calls that it has not answered."""
        try:
            async with asyncio.timeout(1):
                code = await process.wait()
        except TimeoutError:
            self._kill(process)
            code = await process.wait()
        await asyncio.wait(self._tasks[:1], timeout=1)  # its last output
        self.reason = f"exit status {code}{self._explain(code)}"
        self._gone.set()
        self._on_gone()
        for waiting in self._pending.values():
            if not waiting.reply.done():
                self.is_blamed = self.is_blamed or waiting.call.position is not None
                waiting.reply.set_exception(WorkerDied(f"the worker died: {self.reason}"))

    def _kill(self, process: Process | ForkedProcess) -> None:
        self._was_killed = True
        with suppress(ProcessLookupError):
            process.kill()

    def _explain(self, code: int) -> str:
        """Explains a death by SIGKILL that this object did not cause. Mostly it is the kernel's, which counts the
        processes that it ends for lack of memory."""
        if code != -signal.SIGKILL or self._was_killed:
            return ""
        counted = count_killed()
        if counted is not None and self._num_killed is not None and counted > self._num_killed:
            return f", killed by the kernel for want of memory; {_REMEDY}"
        return f", killed by somebody, or by the kernel for want of memory; then {_REMEDY}"

    async def _forward_output(self, process: Process | ForkedProcess) -> None:
        """Logs each line that the worker prints. A line that begins with a level, as in the worker's own log, is logged
        at it."""
        output = process.stdout
        assert output is not None  # noqa: S101 - a pipe was asked for
        rest = b""
        while chunk := await output.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._on_line(line)
            if len(rest) > 1 << 16:
                self._on_line(rest)
                rest = b""
        if rest:
            self._on_line(rest)

    def _on_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        level, _, message = text.partition(" ")
        number = logging.getLevelNamesMapping().get(level)
        self._tail.append(text)
        _log.log(number or logging.INFO, "%s", message if number else text)


def _read_progress(value: Any) -> Progress | None:
    """Returns the progress in a frame; None for a value that is none, as from a library that writes to the socket."""
    if not isinstance(value, dict) or value.keys() != {"step", "steps", "seconds"}:
        return None
    step, steps, seconds = value["step"], value["steps"], value["seconds"]
    if type(step) is not int or type(steps) is not int or not isinstance(seconds, float):
        return None
    return Progress(step, steps, seconds) if 1 <= step <= steps and 0 <= seconds < math.inf else None
