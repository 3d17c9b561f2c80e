"""The daemon's handle on training: in a process of its own, so that torch is neither in the daemon nor in its way.

`WorkerProcess` starts `node.training.worker_child`, speaks `node.training.frames` with it over a socket, and keeps one
alive: when a worker dies, whoever killed it, the call under way raises WorkerDied, a new worker goes on from the last
checkpoint, and the caller asks again. Calls go one at a time, in the order they were made; of predictions only one at a
time stands in that line, so that training is never behind two. A score, for which nobody is in a hurry, gives way to
any other call, and begins anew behind it. What passes, all JSON but for what is in brackets:

    to the worker      {call: "start", config} [initial_model]
                       {call: "train", number, height, num_iterations, beacon, me, offers, gone, files} [blobs]
                       {call: "apply", number, height, beacon, me, offers, gone, files} [aggregate, and blobs by digest]
                       {call: "pass_over", number, height}
                       {call: "predict", number} [samples]
                       {call: "score", number, height} [aggregates by place]
                       {call: "cancel", number}    {call: "abandon", number}
    from the worker    {number, saved, result} [payloads, or answer]  {number, saved, failed: why, spoiled}
                       of a score the result has losses
                       of a training the result has weight, metrics, went_back and files: the paths of payloads too
                       large to pass
                       {number, saved, stopped: true}      {number, saved, abandoned: true}
                       {number, progress: {step, steps, seconds}} before the answer to a training that takes long

A worker writes such a payload into `outgoing_dir`, under a new name each time, and whoever called moves it away before
it calls again: what lies there when a training begins was made for nobody, and is deleted.

The end of the stream asks the worker to leave; so does the death of the daemon. What a worker prints is logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ml.aggregation import MAX_WEIGHT
from ml.guard import OnRefused
from ml.specs.base import MAX_ABS
from node.host.child import make_arguments
from node.training.checkpoint import Position
from node.training.exchange import AGGREGATE, Exchange
from node.training.frames import Frame, FrameError, await_frame, post_frame
from node.training.trainer import (
    NOTHING_TAKEN,
    AggregateSpoiled,
    AnswerRefused,
    Metrics,
    OnProgress,
    Predicted,
    Progress,
    Trained,
    TrainerInfo,
    TrainingAbandoned,
    TrainingFailed,
    WorkerDied,
    WorkerFailed,
)

_log = logging.getLogger(__name__)

MAX_CRASHES = 8  # in a row, before the first answer to a call
BACKOFF_S = 0.1  # doubles with each crash after the first
MAX_BACKOFF_S = 10.0
CLOSE_S = 3.0  # for a worker to end its step and write its checkpoint
MAX_UNSAVED = 2  # calls that no file may have yet when the last is answered, with a checkpoint a round (`Checkpoints`)
TAIL_LINES = 20
WORKER_ARGUMENTS = make_arguments("node.training.worker_child")  # modules of the daemon's own directory stay out


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All a worker needs to build its client. Mappings are genesis' and the node configuration's, as JSON has them.

    `engine` has the fields of `ml.training.loop.Engine`, `threads` is torch's own choice if None. `outgoing_dir`, on
    the store's filesystem and nobody else's, is for payloads too large to pass. `python` and `arguments` say which
    program is the worker.
    """

    method: Mapping[str, Any]
    model: Mapping[str, Any]
    classes: tuple[str, ...]
    input: Mapping[str, Any]
    data: Mapping[str, Any]
    seed: int
    initial_model: Path | bytes = field(repr=False)
    checkpoint_dir: Path
    outgoing_dir: Path
    device: str = "auto"
    threads: int | None = 1
    engine: Mapping[str, Any] = field(default_factory=dict)
    max_weight: int = MAX_WEIGHT
    max_abs: float = MAX_ABS
    rounds: int = 0
    num_members: int = 0
    checkpoint_every: int = 1
    user_models: bool = False
    max_loss_ratio: float | None = None
    niceness: int = 0
    python: str = sys.executable
    arguments: tuple[str, ...] = WORKER_ARGUMENTS

    def encode(self) -> Frame:
        """The call that starts a worker."""
        genesis = ("method", "model", "classes", "input", "max_weight", "max_abs", "rounds", "num_members")
        own = (
            "data",
            "seed",
            "device",
            "threads",
            "engine",
            "checkpoint_every",
            "user_models",
            "max_loss_ratio",
            "niceness",
        )
        config = {name: getattr(self, name) for name in (*genesis, *own)}
        config |= {"checkpoint_dir": str(self.checkpoint_dir), "outgoing_dir": str(self.outgoing_dir)}
        if isinstance(self.initial_model, bytes):
            return Frame({"call": "start", "config": config}, {"initial_model": self.initial_model})
        return Frame({"call": "start", "config": {**config, "initial_model": str(self.initial_model)}})


@dataclass(frozen=True, slots=True)
class _Call:
    """`position` is where the call takes the client's state, None if nowhere: then it says nothing of the worker's
    health, is not repeated, and is nothing that could be abandoned."""

    header: Mapping[str, Any]
    attachments: Mapping[str, bytes]
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call that waits for its answer."""

    call: _Call
    reply: asyncio.Future[Frame]
    on_progress: OnProgress | None


class WorkerProcess:
    """A trainer in a child process that is replaced when it dies. `deaths` counts how often that was needed.

    All calls may be repeated: training for a height again, with as many iterations, gives the same bytes, and applying
    it again changes nothing, as predicting and scoring do.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.deaths = 0
        self._config = config
        self._turn = asyncio.Lock()  # who waits for it gets it in the order they came
        self._predicting = asyncio.Lock()
        self._scoring = asyncio.Lock()
        self._score: asyncio.Task[Frame] | None = None  # in hand, or in line
        self._ready: asyncio.Future[_Child] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._unsaved: dict[Position, _Call] = {}  # the last calls, in their order, until a checkpoint has their effect

    def __repr__(self) -> str:
        return f"WorkerProcess(pid={self.pid}, deaths={self.deaths}, unsaved={len(self._unsaved)})"

    @property
    def pid(self) -> int | None:
        """The worker that is ready now, if there is one."""
        child = self._get_ready_child()
        return None if child is None else child.pid

    async def start(self) -> TrainerInfo:
        if self._supervisor is None:
            self._sweep()
            self._ready = asyncio.get_running_loop().create_future()
            self._supervisor = asyncio.create_task(self._supervise(), name="worker")
        return (await self._get_child()).info

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        header = {"call": "train", "height": height, "num_iterations": num_iterations, **shared.to_header()}
        header["beacon"] = beacon.hex()
        reply = await self._request(_Call(header, shared.to_attachments(), (height, False)), on_progress)
        result = reply.header["result"]
        files = {kind: Path(path) for kind, path in result["files"].items()}
        return Trained(result["weight"], reply.attachments, result["metrics"], files, result["went_back"])

    def abandon(self) -> bool:
        child = self._get_ready_child()
        return child is not None and child.abandon()

    async def apply(
        self,
        height: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Metrics:
        header = {"call": "apply", "height": height, **exchange.to_header()}
        attachments = exchange.to_attachments() | ({} if aggregate is None else {AGGREGATE: aggregate})
        reply = await self._request(_Call(header, attachments, (height, True)))
        result = reply.header["result"]
        metrics: Metrics = result["metrics"]
        if on_refused is not None:
            for peer, why in result["refused"].items():
                on_refused(bytes.fromhex(peer), why)
        return metrics

    async def pass_over(self, height: int) -> Metrics:
        reply = await self._request(_make_pass_over(height))
        metrics: Metrics = reply.header["result"]["metrics"]
        return metrics

    async def predict(self, samples: bytes) -> Predicted:
        async with self._predicting:
            reply = await self._request(_Call({"call": "predict"}, {"samples": samples}))
        return Predicted(reply.attachments["answer"], reply.header["result"]["applied_height"])

    async def score(self, height: int, aggregates: Sequence[bytes]) -> Sequence[float]:
        attachments = {str(place): aggregate for place, aggregate in enumerate(aggregates)}
        call = _Call({"call": "score", "height": height}, attachments)
        async with self._scoring:
            while True:
                self._score = score = asyncio.create_task(self._request(call))
                try:
                    await asyncio.wait({score})
                finally:
                    self._score = None
                    if score.cancel():
                        await asyncio.wait({score})
                if not score.cancelled():
                    losses: list[float] = score.result().header["result"]["losses"]
                    return losses

    async def close(self) -> None:
        """Ends the worker, which first writes its checkpoint. Calls under way raise WorkerDied, later ones
        WorkerFailed."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait({supervisor})
            if not supervisor.cancelled():
                supervisor.result()
        self._set_failed(WorkerFailed("the worker was closed"))

    def _get_ready_child(self) -> _Child | None:
        ready = self._ready
        if ready is None or not ready.done() or ready.cancelled() or ready.exception() is not None:
            return None
        return ready.result()

    async def _get_child(self) -> _Child:
        if self._ready is None or self._supervisor is None:
            raise WorkerFailed("the worker was not started, or was closed")
        return await asyncio.shield(self._ready)

    async def _request(self, call: _Call, on_progress: OnProgress | None = None) -> Frame:
        """The answer to a call, when its turn has come."""
        if self._score is not None and call.header["call"] != "score":
            self._score.cancel()
        async with self._turn:
            child = await self._get_child()
            if call.header["call"] == "train":
                self._sweep()
            reply = await child.request(call, on_progress)
            if (position := call.position) is not None:
                self._remember(position, call, tuple(reply.header["saved"] or ()))
            return reply

    def _remember(self, position: Position, call: _Call, saved: tuple[Any, ...]) -> None:
        """Keeps what the next worker has to repeat: of the calls whose effect is in no file, the last MAX_UNSAVED."""
        unsaved = {at: other for at, other in self._unsaved.items() if at > saved and at != position}
        self._unsaved = dict([*unsaved.items(), (position, call)][-MAX_UNSAVED:])

    def _sweep(self) -> None:
        """Deletes what was written and never asked for again, as by a worker that died half-way."""
        directory = self._config.outgoing_dir
        if directory.is_dir() and any(directory.iterdir()):
            _log.info("Deleted what an earlier training had left in %s", directory)
            shutil.rmtree(directory, ignore_errors=True)

    async def _supervise(self) -> None:
        """Keeps a worker alive until cancelled or hopeless."""
        crashes = 0
        reason = ""
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            while crashes < MAX_CRASHES:
                if crashes:
                    await asyncio.sleep(min(BACKOFF_S * 2 ** (crashes - 1), MAX_BACKOFF_S))
                async with _Child(self._config, tail, self._on_gone) as child:
                    try:
                        await self._prepare(child)
                        self._set_ready(child)
                        await child.wait_until_gone()
                    except WorkerDied:
                        child.is_blamed = True
                reason = child.reason
                self.deaths += 1
                if child.has_served:
                    crashes = 0
                if child.is_blamed:
                    crashes += 1
                _log.warning("Worker %s died and was replaced: %s", child.pid, reason)
            raise WorkerFailed(f"the worker died {crashes} times in a row: {reason}{_show_tail(tail)}")
        except WorkerFailed as error:
            self._set_failed(error)

    async def _prepare(self, child: _Child) -> None:
        """Brings a new worker to where the last one was: its checkpoint may lack what was done last."""
        info = await child.start(self._config)
        resumed = (info.trained_height, (info.checkpoint_height or 0) == info.trained_height)
        for position, call in self._unsaved.items():
            if position > resumed:
                try:
                    await child.request(call)
                except TrainingFailed as error:
                    _log.warning(
                        "What %s height %d was lost: %s",
                        "was taken in of" if position[1] else "was trained for",
                        position[0],
                        error,
                    )
                    if position[1]:
                        await child.request(_make_pass_over(position[0]))
                child.has_served = False

    def _set_ready(self, child: _Child) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(child)

    def _on_gone(self) -> None:
        """From now on calls wait for the next worker."""
        if self._ready is not None and self._ready.done():
            self._ready = asyncio.get_running_loop().create_future()

    def _set_failed(self, error: WorkerFailed) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody may be waiting for it


def _make_pass_over(height: int) -> _Call:
    return _Call({"call": "pass_over", "height": height}, {}, (height, True))


def _show_tail(tail: deque[str]) -> str:
    return "; it last wrote:\n  " + "\n  ".join(tail) if tail else ""


def _read_progress(value: Any) -> Progress | None:
    """None for what cannot be one, as from a library that writes where it should not."""
    if not isinstance(value, dict) or value.keys() != {"step", "steps", "seconds"}:
        return None
    step, steps, seconds = value["step"], value["steps"], value["seconds"]
    if type(step) is not int or type(steps) is not int or not isinstance(seconds, float):
        return None
    return Progress(step, steps, seconds) if 1 <= step <= steps and 0 <= seconds < math.inf else None


class _Child:
    """One worker process, from its start to its end, and the calls it has not answered yet."""

    def __init__(self, config: WorkerConfig, tail: deque[str], on_gone: Callable[[], None]) -> None:
        self.info = TrainerInfo(0, 0, "", 0, 0)
        self.reason = "it was ended"
        self.has_served = False  # answered a call that moves the client
        self.is_blamed = False  # died before it was ready, or during such a call
        self._command = (config.python, *config.arguments)
        self._tail = tail
        self._on_gone = on_gone
        self._calls = 0
        self._pending: dict[int, _Asked] = {}
        self._outgoing: asyncio.Queue[Frame] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._process: Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> _Child:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=theirs.fileno(),
                    stdout=PIPE,
                    stderr=subprocess.STDOUT,
                    process_group=0,  # Ctrl-C is the daemon's to handle
                )
            except BaseException as error:
                self._socket.close()
                if not isinstance(error, OSError):
                    raise
                raise WorkerFailed(f"the worker {self._command[0]} cannot be started: {error}") from error
        talking = (self._forward_output(self._process), self._write(), self._read(self._process))
        self._tasks = [asyncio.create_task(part) for part in talking]
        return self

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
            with suppress(ProcessLookupError):
                process.kill()
            await self._gone.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._socket.close()

    async def start(self, config: WorkerConfig) -> TrainerInfo:
        """Raises WorkerDied, and WorkerFailed if the worker refuses its configuration."""
        frame = config.encode()
        reply = await self._ask(_Call(frame.header, frame.attachments))
        if "failed" in reply.header:
            raise WorkerFailed(f"the worker cannot be set up: {reply.header['failed']}")
        self.info = TrainerInfo(**reply.header["result"])
        return self.info

    async def request(self, call: _Call, on_progress: OnProgress | None = None) -> Frame:
        """The answer to a call. Raises WorkerDied."""
        reply = await self._ask(call, on_progress)
        if call.position is None and "failed" in reply.header:
            raise AnswerRefused(reply.header["failed"])
        self.has_served = self.has_served or call.position is not None
        if "failed" in reply.header:
            kind = AggregateSpoiled if reply.header["spoiled"] else TrainingFailed
            raise kind(reply.header["failed"])
        if "abandoned" in reply.header:
            raise TrainingAbandoned("the training was broken off, its round being over")
        if (
            "stopped" in reply.header
        ):  # asked for by a cancellation, which waits for no answer, or because it is closing
            raise WorkerDied("the worker was closed")
        return reply

    async def _ask(self, call: _Call, on_progress: OnProgress | None = None) -> Frame:
        if self._gone.is_set():
            raise WorkerDied(self.reason)
        self._calls += 1
        number = self._calls
        reply: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Asked(call, reply, on_progress)
        self._outgoing.put_nowait(Frame({**call.header, "number": number}, call.attachments))
        try:
            return await reply
        except asyncio.CancelledError:
            self._outgoing.put_nowait(Frame({"call": "cancel", "number": number}))
            raise
        finally:
            del self._pending[number]

    def abandon(self) -> bool:
        """Asks the worker to break the call in hand off and keep what it has done. Whether there is one that does
        anything: what waits for its turn behind a prediction is not in hand."""
        numbers = [number for number, waiting in self._pending.items() if waiting.call.position is not None]
        for number in numbers:
            self._outgoing.put_nowait(Frame({"call": "abandon", "number": number}))
        return bool(numbers)

    async def wait_until_gone(self) -> None:
        await self._gone.wait()

    async def _write(self) -> None:
        with suppress(OSError):  # the reader will hear of it
            while True:
                await post_frame(self._socket, await self._outgoing.get())

    async def _read(self, process: Process) -> None:
        try:
            while (frame := await await_frame(self._socket)) is not None:
                self._on_frame(frame)
        except FrameError as error:
            _log.warning("Worker %d sent what is not a frame: %s", process.pid, error)
        finally:
            await self._bury(process)

    def _on_frame(self, frame: Frame) -> None:
        """The answer to a call that still waits for it, or how far that call is; anything else says nothing here."""
        number = frame.header.get("number")
        waiting = self._pending.get(number) if type(number) is int else None
        if waiting is None or waiting.reply.done():
            return
        if "progress" not in frame.header:
            waiting.reply.set_result(frame)
        elif waiting.on_progress is not None and (progress := _read_progress(frame.header["progress"])) is not None:
            waiting.on_progress(progress)

    async def _bury(self, process: Process) -> None:
        """Waits for the end of a process that has stopped talking, and fails what it has not answered."""
        try:
            async with asyncio.timeout(1):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        await asyncio.wait(self._tasks[:1], timeout=1)  # its last words
        self.reason = f"exit status {code}"
        self._gone.set()
        self._on_gone()
        for waiting in self._pending.values():
            if not waiting.reply.done():
                self.is_blamed = self.is_blamed or waiting.call.position is not None
                waiting.reply.set_exception(WorkerDied(f"the worker died: {self.reason}"))

    async def _forward_output(self, process: Process) -> None:
        """Logs each line; one that begins with a level, as the worker's own log does, at that level."""
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
