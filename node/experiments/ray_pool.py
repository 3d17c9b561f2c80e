"""Work on the machines of a Ray cluster, with the events that a pool of processes has.

A worker is an actor that does one piece after another; there are as many as the living machines have room for. Ray
detects lost machines, and the piece of a lost or hanging one is submitted again here. So a piece may be done twice,
but its outcome is yielded once. Each machine needs this version of fednode, and data at the same paths.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from node.errors import ConfigError, NodeError
from node.experiments.pool import Advanced, Died, Event, Finished, Work

LOCAL = "ray"  # a cluster on this machine, or the one that RAY_ADDRESS names
POLL_S = 0.3
LOOK_S = 2.0  # between two lists of the machines
RETRIES = 2  # repeats of a piece whose worker was lost


def work_through_ray(
    pieces: Sequence[Any],
    work: Work,
    address: str,
    *,
    jobs: int | None = None,
    gpu_share: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Yields the events while the cluster at `address` does all of `pieces`, at most `jobs` at a time, each with a core
    and `gpu_share` of a GPU. Ends early once `should_stop()` returns true.

    Raises ConfigError where Ray is not installed, NodeError where there is no such cluster.
    """
    ray = _import_ray()
    with _connected(ray, address):
        crew = _Crew(ray, pieces, work, jobs, gpu_share)
        try:
            while not should_stop():
                crew.set_to_work()
                if crew.is_done:
                    return
                yield from crew.listen()
        finally:
            crew.dismiss()


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """Holds a piece and its actor, which does it or waits for room. `where` resolves to the id of its machine."""

    worker: Any
    where: Any
    index: int
    piece: Any
    tries: int


class _Crew:
    """Holds the workers of one sweep, and the pieces that are left."""

    def __init__(self, ray: Any, pieces: Sequence[Any], work: Work, jobs: int | None, gpu_share: float) -> None:
        self._ray = ray
        self._left = deque((index, piece, 0) for index, piece in enumerate(pieces))  # with their lost attempts
        self._work = work
        self._jobs = jobs
        self._gpu_share = gpu_share
        self._busy: dict[Any, _Job] = {}  # by the pending outcome
        self._idle: list[tuple[Any, Any]] = []
        self._inbox = _start_inbox(ray)
        self._alive: dict[str, int] = {}  # the number of workers that each machine has room for
        self._looked_s = -LOOK_S
        self._is_one_gone = False  # of the machines, since the busy workers were last checked

    @property
    def is_done(self) -> bool:
        return not self._busy and not self._left

    def set_to_work(self) -> None:
        """Starts as many pieces as there is room for, or one if there is no room, for which a cluster may grow."""
        self._look()
        room = max(1, sum(self._alive.values()))
        while self._left and len(self._busy) < min(room, self._jobs or room):
            index, piece, tries = self._left.popleft()
            worker, where = self._idle.pop() if self._idle else self._hire()
            outcome = worker.do.remote(self._work, piece, index, self._inbox)
            self._busy[outcome] = _Job(worker, where, index, piece, tries)
        while self._idle:  # its room may be needed
            self._kill(self._idle.pop()[0])

    def listen(self) -> Iterator[Event]:
        """Yields the events of the next moment."""
        if not self._busy:
            time.sleep(POLL_S)
            return
        ready, _ = self._ray.wait(list(self._busy), num_returns=len(self._busy), timeout=POLL_S)
        for index, news in _empty(self._ray, self._inbox):
            yield Advanced(index, news)
        for outcome in ready:
            yield from self._take(outcome)
        for outcome, job in list(self._busy.items()) if self._is_one_gone else ():
            if (machine := self._find_machine(job)) is not None and machine not in self._alive:
                del self._busy[outcome]
                yield from self._lose(job, "its machine was lost")
        self._is_one_gone = False

    def dismiss(self) -> None:
        for worker in (*(worker for worker, _ in self._idle), *(job.worker for job in self._busy.values())):
            self._kill(worker)

    def _take(self, outcome: Any) -> Iterator[Event]:
        job, errors = self._busy.pop(outcome), self._ray.exceptions
        try:
            yield Finished(job.index, self._ray.get(outcome))
        except errors.RayTaskError as error:
            yield Died(job.index, str(error.cause))
        except errors.RayError as error:
            yield from self._lose(job, str(error).strip().partition("\n")[0])
            return
        self._idle.append((job.worker, job.where))

    def _lose(self, job: _Job, why: str) -> Iterator[Event]:
        """Puts the piece back, unless it has lost too many workers: then it has died."""
        self._kill(job.worker)
        if job.tries >= RETRIES:
            yield Died(job.index, f"{why} ({1 + job.tries} times)")
        else:
            self._left.appendleft((job.index, job.piece, job.tries + 1))

    def _look(self) -> None:
        """Lists the living machines, and drops idle workers of others."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        before = self._alive.keys()
        self._alive = {node["NodeID"]: self._count_room(node["Resources"]) for node in nodes}
        self._is_one_gone |= not before <= self._alive.keys()
        self._idle = [(worker, where) for worker, where in self._idle if self._read(where) in self._alive]

    def _count_room(self, resources: dict[str, float]) -> int:
        cores = int(resources.get("CPU", 0))
        return min(cores, int(resources.get("GPU", 0) / self._gpu_share + 1e-6)) if self._gpu_share else cores

    def _hire(self) -> tuple[Any, Any]:
        worker = self._ray.remote(_Worker).options(num_cpus=1, num_gpus=self._gpu_share, max_restarts=0).remote()
        return worker, worker.find_machine.remote()

    def _find_machine(self, job: _Job) -> str | None:
        """Returns the id of the machine; None while the worker has not started."""
        ready, _ = self._ray.wait([job.where], timeout=0)
        return self._read(job.where) if ready else None

    def _read(self, where: Any) -> str | None:
        try:
            machine: str = self._ray.get(where, timeout=POLL_S)
        except self._ray.exceptions.RayError:
            return None
        return machine

    def _kill(self, worker: Any) -> None:
        with suppress(self._ray.exceptions.RayError, ValueError):  # it may be gone, or its machine
            self._ray.kill(worker)


class _Worker:
    """The actor that does pieces on some machine."""

    def find_machine(self) -> str:
        ray = import_module("ray")
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id

    def do(self, work: Work, piece: Any, index: int, inbox: Any) -> Any:
        return work(piece, lambda news: inbox.add.remote(index, news))


class _Inbox:
    """The actor that receives from each worker how far it has come."""

    def __init__(self) -> None:
        self._news: list[tuple[int, Any]] = []

    def add(self, index: int, news: Any) -> None:
        self._news.append((index, news))

    def empty(self) -> list[tuple[int, Any]]:
        news, self._news = self._news, []
        return news


def _start_inbox(ray: Any) -> Any:
    """Starts the inbox on the caller's machine, if there is room; if that machine is lost it restarts elsewhere,
    empty."""
    near = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
        node_id=ray.get_runtime_context().get_node_id(), soft=True
    )
    return ray.remote(_Inbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=near).remote()


def _empty(ray: Any, inbox: Any) -> list[tuple[int, Any]]:
    try:
        news: list[tuple[int, Any]] = ray.get(inbox.empty.remote(), timeout=POLL_S)
    except ray.exceptions.RayError:  # it is restarting, or slow
        return []
    return news


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read on import: it turns usage reports off
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise ConfigError("--on ray needs Ray: pip install 'fednode[ray]'") from error


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Connects this process to the cluster until the context is left; the workers' logs stay on their machines."""
    options: dict[str, Any] = {"address": address}
    if address == LOCAL:  # never a cluster that merely runs on this machine or once did
        named = os.environ.get("RAY_ADDRESS")
        options = {"address": named} if named else {"address": "local", "include_dashboard": False}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
        for number, handler in handlers.items():  # Ray replaces them by its own, with which SIGTERM ends the process
            signal.signal(number, handler)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise NodeError(f"--on {address}: no Ray cluster there: {str(error).partition(chr(10))[0]}") from error
    try:
        yield
    finally:
        ray.shutdown()
