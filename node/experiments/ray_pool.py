"""Work on the machines of a Ray cluster, with the events that a pool of processes has.

A piece is a Ray task, and Ray schedules it. Ray also detects lost machines; the piece of a lost or hanging machine is
submitted again here. So a piece may be done twice, but its outcome is yielded once. Each machine needs this version of
fednode, and data at the same paths.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from node.errors import ConfigError, NodeError
from node.experiments.pool import Advanced, Died, Event, Finished, Work

LOCAL = "ray"  # a cluster on this machine, or the one that RAY_ADDRESS names
POLL_S = 0.3
RETRIES = 2  # repeats of a piece whose machine was lost


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
        task = ray.remote(num_cpus=1, num_gpus=gpu_share, max_retries=0, max_calls=0)(_do)
        inbox = _start_inbox(ray)
        waiting = deque((index, 0) for index in range(len(pieces)))
        busy: dict[Any, tuple[int, int]] = {}  # the piece and its number of lost attempts, by the pending outcome
        machines: dict[int, str] = {}  # where a piece is being done
        while (waiting or busy) and not should_stop():
            while waiting and len(busy) < (jobs or len(pieces)):
                index, losses = waiting.popleft()
                busy[task.remote(work, pieces[index], index, inbox)] = index, losses
            ready, _ = ray.wait(list(busy), num_returns=len(busy), timeout=POLL_S)
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            for index, machine, news in _empty(ray, inbox):
                if machine in alive:
                    machines[index] = machine
                if news is not None:
                    yield Advanced(index, news)
            hung = [one for one, (index, _) in busy.items() if index in machines and machines[index] not in alive]
            for outcome in dict.fromkeys((*ready, *hung)):
                index, losses = busy.pop(outcome)
                machines.pop(index, None)
                event = _get(ray, index, outcome) if outcome in ready else "its machine was lost"
                if not isinstance(event, str):
                    yield event
                elif losses < RETRIES:
                    waiting.append((index, losses + 1))
                else:
                    yield Died(index, f"{event} ({1 + losses} times)")


def _get(ray: Any, index: int, outcome: Any) -> Event | str:
    """Returns the outcome of a piece as an event; or, where its process or its machine was lost, the reason."""
    try:
        return Finished(index, ray.get(outcome))
    except ray.exceptions.RayTaskError as error:
        return Died(index, str(error.cause))
    except ray.exceptions.RayError as error:
        return str(error).strip().partition("\n")[0]


def _do(work: Work, piece: Any, index: int, inbox: Any) -> Any:
    """Does a piece, as a Ray task on some machine."""
    machine = import_module("ray").get_runtime_context().get_node_id()
    inbox.add.remote(index, machine, None)
    return work(piece, lambda news: inbox.add.remote(index, machine, news))


class _Inbox:
    """The actor that receives from each task where it runs and how far it has come."""

    def __init__(self) -> None:
        self._news: list[tuple[int, str, Any]] = []

    def add(self, index: int, machine: str, news: Any) -> None:
        self._news.append((index, machine, news))

    def empty(self) -> list[tuple[int, str, Any]]:
        news, self._news = self._news, []
        return news


def _start_inbox(ray: Any) -> Any:
    """Starts the inbox on the caller's machine, if there is room; if that machine is lost it restarts elsewhere,
    empty."""
    near = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
        node_id=ray.get_runtime_context().get_node_id(), soft=True
    )
    return ray.remote(_Inbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=near).remote()


def _empty(ray: Any, inbox: Any) -> list[tuple[int, str, Any]]:
    try:
        news: list[tuple[int, str, Any]] = ray.get(inbox.empty.remote(), timeout=POLL_S)
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
