"""Work on the machines of a Ray cluster, with the events that a pool of processes has.

Each piece is a task. Ray does one that was lost with its machine again on another; so a piece may be done twice, and
its outcome comes once. Each machine needs this version of fednode, and data at the same paths.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from node.errors import ConfigError, NodeError
from node.experiments.pool import Advanced, Died, Event, Finished, Pieces, Work

LOCAL = "ray"  # a cluster of this machine's own, or the one that RAY_ADDRESS names
POLL_S = 0.3
RETRIES = 5  # of a piece whose machine was lost


def work_through_ray(
    pieces: Pieces,
    work: Work,
    address: str,
    *,
    jobs: int | None = None,
    gpu_share: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """The events while the cluster at `address` does all of `pieces`, at most `jobs` at a time, each with a core and
    `gpu_share` of a GPU. Ends early once `should_stop()`.

    Raises ConfigError without Ray, NodeError where there is no such cluster.
    """
    ray = _import_ray()
    with _connected(ray, address):
        inbox = _start_inbox(ray)
        task = ray.remote(_do).options(num_cpus=1, num_gpus=gpu_share, max_retries=RETRIES)
        running: dict[Any, int] = {}
        try:
            while not should_stop():
                while (jobs is None or len(running) < jobs) and (taken := pieces.take()) is not None:
                    index, piece = taken
                    running[task.remote(work, piece, index, inbox)] = index
                yield from pieces.list_news()
                if not running and not pieces.may_come():
                    return
                ready, _ = ray.wait(list(running), num_returns=max(len(running), 1), timeout=POLL_S)
                for index, news in _empty(ray, inbox):
                    yield Advanced(index, news)
                for done in ready:
                    yield _get_event(ray, done, running.pop(done))
        finally:
            for left in running:
                ray.cancel(left, force=True)


def _do(work: Work, piece: Any, index: int, inbox: Any) -> Any:
    """The task, on some machine."""
    return work(piece, lambda news: inbox.add.remote(index, news))


class _Inbox:
    """The actor that tasks tell how far they have come."""

    def __init__(self) -> None:
        self._news: list[tuple[int, Any]] = []

    def add(self, index: int, news: Any) -> None:
        self._news.append((index, news))

    def empty(self) -> list[tuple[int, Any]]:
        news, self._news = self._news, []
        return news


def _start_inbox(ray: Any) -> Any:
    """Where the caller is, if there is room; should its machine be lost, elsewhere, and what it knew is forgotten."""
    near = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
        node_id=ray.get_runtime_context().get_node_id(), soft=True
    )
    return ray.remote(_Inbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=near).remote()


def _empty(ray: Any, inbox: Any) -> list[tuple[int, Any]]:
    try:
        news: list[tuple[int, Any]] = ray.get(inbox.empty.remote(), timeout=POLL_S)
    except ray.exceptions.RayError:  # it is being started again, or slow
        return []
    return news


def _get_event(ray: Any, done: Any, index: int) -> Event:
    try:
        return Finished(index, ray.get(done))
    except ray.exceptions.RayTaskError as error:
        return Died(index, str(error.cause))
    except ray.exceptions.RayError as error:
        return Died(index, f"Ray gave it up: {str(error).strip().partition(chr(10))[0]}")


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read as it is imported: nothing is told to anybody
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise ConfigError("--on ray needs Ray: pip install 'fednode[ray]'") from error


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Until then a part of the cluster, whose logs stay where they are."""
    options: dict[str, Any] = {} if address == LOCAL else {"address": address}
    if address == LOCAL and "RAY_ADDRESS" not in os.environ:
        options = {"include_dashboard": False}
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise NodeError(f"--on {address}: no Ray cluster there: {str(error).partition(chr(10))[0]}") from error
    try:
        yield
    finally:
        ray.shutdown()
