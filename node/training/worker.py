"""The daemon's handle on training: in a process of its own, so that torch is neither in the daemon nor in its way.

`WorkerProcess` starts `node.training.worker_child`, exchanges `node.training.frames` with it over a socket, and keeps
one alive: when a worker dies, for any reason, the call under way raises WorkerDied, a new worker goes on from the last
checkpoint, and the caller repeats the call. Calls run one at a time, in the order they were made. Only one prediction
at a time waits in that queue, so that training is never behind two. A score, which is not urgent, gives way to any
other call, and restarts after it. The messages, all JSON but for what is in brackets:

    to the worker      {call: "load"}, once and before all else, if at all
                       {call: "start", config} [initial_model]
                       {call: "train", number, round, num_iterations, beacon, me, offers, gone, files} [blobs]
                       {call: "apply", number, round, beacon, me, offers, gone, files} [aggregate, and blobs by digest]
                       {call: "pass_over", number, round}
                       {call: "predict", number, alone, kappa} [samples]
                       {call: "measure", number}    {call: "answers", number}
                       {call: "score", number, round} [aggregates by place]
                       {call: "tell_of", number, min_samples} [aggregate]
                       {call: "cancel", number}    {call: "abandon", number}
    from the worker    {number, saved, result} [payloads, or answers]  {number, saved, failed: why, spoiled}
                       of a score the result has losses; of a prediction run, applied_round and alone: how far that is
                       of a training the result has weight, metrics, went_back, data_change and files: the paths of
                       payloads too large to pass
                       {number, saved, stopped: true}      {number, saved, abandoned: true}
                       {number, progress: {step, steps, seconds}} before the answer to a training that takes long

A worker writes such a payload into `outgoing_dir`, under a new name each time, and the caller moves it away before its
next call: what is still there when a training begins is unused, and is deleted.

The worker exits at the end of the stream, and when the daemon dies.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ml.guard import OnRefused
from ml.measures.alone import TrainedAlone
from ml.measures.kinds import read_measures
from ml.specs.methods.evaluation import EVALUATION
from node.training.checkpoint import Position
from node.training.child_process import Call, ChildProcess
from node.training.exchange import AGGREGATE, Exchange
from node.training.frames import Frame
from node.training.progress import OnProgress
from node.training.trainer import (
    NOTHING_TAKEN,
    Measured,
    Metrics,
    OwnAnswers,
    Predicted,
    RunTask,
    Trained,
    TrainerInfo,
    TrainingFailed,
    WorkerDied,
    WorkerFailed,
)
from node.training.worker_config import DEFAULT_COMMAND, WorkerConfig

_log = logging.getLogger(__name__)

MAX_CRASHES = 8  # in a row, before the first answer to a call
BACKOFF_S = 0.1  # doubles with each crash after the first
MAX_BACKOFF_S = 10.0
MAX_UNSAVED = 2  # calls that may be in no file yet when the last is answered, with a checkpoint a round (`Checkpoints`)
TAIL_LINES = 20


class WorkerProcess:
    """Runs a trainer in a child process, and replaces the process when it dies. `deaths` counts the deaths.

    All calls may be repeated: training for a round again, with as many iterations, gives the same bytes, and applying
    it again changes nothing, nor do predicting and scoring. `command` is the program that `warm_up` starts, before
    there is a configuration to name one.
    """

    def __init__(
        self, make_config: Callable[[RunTask], WorkerConfig], command: tuple[str, ...] = DEFAULT_COMMAND
    ) -> None:
        self.deaths = 0
        self.last_death: str | None = None  # until another is ready
        self._make_config = make_config
        self._command = command
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._spare: ChildProcess | None = None  # warmed up, for the first run that begins
        self._config: WorkerConfig | None = None  # of the last run that was started
        self._turn = asyncio.Lock()  # callers get it in the order they came
        self._predicting = asyncio.Lock()
        self._scoring = asyncio.Lock()
        self._score: asyncio.Task[Frame] | None = None  # under way, or waiting
        self._ready: asyncio.Future[ChildProcess] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._unsaved: dict[Position, Call] = {}  # the last calls, in order, until a checkpoint has their effect

    def __repr__(self) -> str:
        return f"WorkerProcess(pid={self.pid}, deaths={self.deaths}, unsaved={len(self._unsaved)})"

    @property
    def pid(self) -> int | None:
        """Returns the process id of the worker that is ready now, if there is one."""
        child = self._get_ready_child()
        return None if child is None else child.pid

    async def start(self, task: RunTask) -> TrainerInfo:
        """Ends the worker of the run before, and starts one for this, unless it runs or is being started; calls
        meanwhile wait for it."""
        config, before = self._make_config(task), self._supervisor
        if before is not None and config == self._config and not before.done():
            return (await self._get_child()).info
        self._ready = asyncio.get_running_loop().create_future()
        if before is not None:
            await _end(before)
        self._config, self._unsaved = config, {}
        self._tail.clear()
        self._sweep()
        self._supervisor = asyncio.create_task(self._supervise(config), name="worker")
        return (await self._get_child()).info

    async def warm_up(self) -> None:
        if self._supervisor is None and self._spare is None:
            spare = ChildProcess(self._command, self._tail, self._on_gone)
            await spare.open()
            spare.load()
            self._spare = spare

    async def train(
        self,
        round_number: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        header = {"call": "train", "round": round_number, "num_iterations": num_iterations, **shared.to_header()}
        header["beacon"] = beacon.hex()
        reply = await self._request(Call(header, shared.to_attachments(), (round_number, False)), on_progress)
        result = reply.header["result"]
        files = {kind: Path(path) for kind, path in result["files"].items()}
        told = result["went_back"], result["data_change"]
        return Trained(result["weight"], reply.attachments, result["metrics"], files, *told)

    def abandon(self) -> bool:
        child = self._get_ready_child()
        return child is not None and child.abandon()

    async def apply(
        self,
        round_number: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Metrics:
        header = {"call": "apply", "round": round_number, **exchange.to_header()}
        attachments = exchange.to_attachments() | ({} if aggregate is None else {AGGREGATE: aggregate})
        reply = await self._request(Call(header, attachments, (round_number, True)))
        result = reply.header["result"]
        metrics: Metrics = result["metrics"]
        if on_refused is not None:
            for peer, why in result["refused"].items():
                on_refused(bytes.fromhex(peer), why)
        return metrics

    async def pass_over(self, round_number: int) -> Metrics:
        reply = await self._request(_make_pass_over(round_number))
        metrics: Metrics = reply.header["result"]["metrics"]
        return metrics

    async def measure(self) -> Measured:
        reply = await self._request(Call({"call": "measure"}, {}))
        result = reply.header["result"]
        measures, alone, before = result["measures"], result["alone"], result["before"]
        return Measured(
            None if measures is None else read_measures(measures),
            None if alone is None else TrainedAlone.from_mapping(alone),
            result["curves"],
            result["privacy"],
            None if before is None else read_measures(before),
            result["missing"],
        )

    async def list_answers(self) -> OwnAnswers:
        reply = await self._request(Call({"call": "answers"}, {}))
        result = reply.header["result"]
        return OwnAnswers(result["run"], result["round"], reply.attachments.get("answers"))

    async def predict(
        self,
        samples: bytes,
        *,
        alone: bool = False,
        kappa: float | None = None,
        kept: int | None = None,
        calibrated: bool = False,
    ) -> Predicted:
        header = {"call": "predict", "alone": alone, "kappa": kappa, "kept": kept, "calibrated": calibrated}
        async with self._predicting:
            reply = await self._request(Call(header, {"samples": samples}))
        result = reply.header["result"]
        told = None if result["alone"] is None else TrainedAlone.from_mapping(result["alone"])
        said = reply.attachments.get("alone"), reply.attachments.get("mixed")
        return Predicted(reply.attachments["answer"], result["applied_round"], result["run"], told, *said)

    async def score(self, round_number: int, aggregates: Sequence[bytes]) -> Sequence[float]:
        attachments = {str(place): aggregate for place, aggregate in enumerate(aggregates)}
        call = Call({"call": "score", "round": round_number}, attachments)
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

    async def tell_of(self, aggregate: bytes, min_samples: int) -> bytes:
        call = Call({"call": "tell_of", "min_samples": min_samples}, {AGGREGATE: aggregate})
        return (await self._request(call)).attachments[EVALUATION]

    async def close(self) -> None:
        """Ends the worker, which first writes its checkpoint. Calls under way raise WorkerDied, later ones
        WorkerFailed."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await _end(supervisor)
        if self._spare is not None:
            async with self._spare:
                self._spare = None
        self._set_failed(WorkerFailed("the worker was closed"))

    def _get_ready_child(self) -> ChildProcess | None:
        ready = self._ready
        if ready is None or not ready.done() or ready.cancelled() or ready.exception() is not None:
            return None
        return ready.result()

    async def _get_child(self) -> ChildProcess:
        if self._ready is None or self._supervisor is None:
            raise WorkerFailed("the worker was not started, or was closed")
        return await asyncio.shield(self._ready)

    async def _request(self, call: Call, on_progress: OnProgress | None = None) -> Frame:
        """Sends a call when its turn has come, and returns the answer."""
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

    def _remember(self, position: Position, call: Call, saved: tuple[Any, ...]) -> None:
        """Keeps the calls that the next worker has to repeat: of those whose effect is in no file, the last
        MAX_UNSAVED."""
        unsaved = {at: other for at, other in self._unsaved.items() if at > saved and at != position}
        self._unsaved = dict([*unsaved.items(), (position, call)][-MAX_UNSAVED:])

    def _sweep(self) -> None:
        """Deletes files that were written and never taken over, as by a worker that died."""
        assert self._config is not None  # noqa: S101 - started
        directory = self._config.outgoing_dir
        if directory.is_dir() and any(directory.iterdir()):
            _log.info("Deleted what an earlier training had left in %s", directory)
            shutil.rmtree(directory, ignore_errors=True)

    async def _supervise(self, config: WorkerConfig) -> None:
        """Keeps a worker alive until cancelled, or until MAX_CRASHES in a row."""
        crashes = 0
        reason = ""
        try:
            while crashes < MAX_CRASHES:
                if crashes:
                    await asyncio.sleep(min(BACKOFF_S * 2 ** (crashes - 1), MAX_BACKOFF_S))
                async with self._take_child(config) as child:
                    try:
                        await self._prepare(child, config)
                        self._set_ready(child)
                        await child.wait_until_gone()
                    except WorkerDied:
                        child.is_blamed = True
                self.last_death = reason = child.reason
                self.deaths += 1
                if child.has_served:
                    crashes = 0
                if child.is_blamed:
                    crashes += 1
                _log.warning("Worker %s died and was replaced: %s", child.pid, reason)
            raise WorkerFailed(f"the worker died {crashes} times in a row: {reason}{_show_tail(self._tail)}")
        except Exception as error:  # noqa: BLE001  # also unforeseen: raised to those who wait for the worker
            self._set_failed(error)

    def _take_child(self, config: WorkerConfig) -> ChildProcess:
        """Returns the child that was warmed up, or a new one."""
        spare, self._spare = self._spare, None
        return spare or ChildProcess(config.command, self._tail, self._on_gone)

    async def _prepare(self, child: ChildProcess, config: WorkerConfig) -> None:
        """Brings a new worker to the state of the last one: its checkpoint may lack the last calls."""
        info = await child.start(config)
        resumed = (info.trained_round, (info.checkpoint_round or 0) == info.trained_round)
        for position, call in self._unsaved.items():
            if position > resumed:
                try:
                    await child.request(call)
                except TrainingFailed as error:
                    _log.warning(
                        "What %s round %d was lost: %s",
                        "was taken in of" if position[1] else "was trained for",
                        position[0],
                        error,
                    )
                    if position[1]:
                        await child.request(_make_pass_over(position[0]))
                child.has_served = False

    def _set_ready(self, child: ChildProcess) -> None:
        self.last_death = None
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(child)

    def _on_gone(self) -> None:
        """Makes calls from now on wait for the next worker."""
        if self._ready is not None and self._ready.done():
            self._ready = asyncio.get_running_loop().create_future()

    def _set_failed(self, error: Exception) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody may be waiting for it


async def _end(supervisor: asyncio.Task[None]) -> None:
    """Ends the supervisor and the worker, which first writes its checkpoint."""
    supervisor.cancel()
    await asyncio.wait({supervisor})
    if not supervisor.cancelled():
        supervisor.result()


def _make_pass_over(round_number: int) -> Call:
    return Call({"call": "pass_over", "round": round_number}, {}, (round_number, True))


def _show_tail(tail: deque[str]) -> str:
    return "; it last wrote:\n  " + "\n  ".join(tail) if tail else ""
