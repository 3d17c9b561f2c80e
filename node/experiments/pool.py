"""A pool of processes that each do one piece of work after another. One that dies takes nothing else along.

Each process is started afresh (`spawn`: torch does not survive a fork), computes on one thread, and is told what to
do over a pipe. It ends by itself when its parent is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from node.host.allocator import keep_freed_memory
from node.host.child import ROOT, claim_names, found_first

POLL_S = 0.2  # between two looks at whether to stop
STOP_S = 5.0  # for a process to end after SIGTERM
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Report = Callable[[Any], None]
Work = Callable[[Any, Report], Any]  # of a piece; tells how far it has come; a function that can be pickled by name


@dataclass(frozen=True, slots=True)
class Advanced:
    """Work on piece `index` has come further, as `Work` reported."""

    index: int
    news: Any


@dataclass(frozen=True, slots=True)
class Finished:
    """`Work` returned."""

    index: int
    outcome: Any


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended while it was at work on the piece."""

    index: int
    why: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Somebody else has done the piece."""

    index: int


Event = Advanced | Finished | Died | Elsewhere


class Pieces(Protocol):
    """The work there is, to be taken piece by piece."""

    def __len__(self) -> int:
        """At most so many will be taken."""

    def take(self) -> tuple[int, Any] | None:
        """The next piece and its index; None where there is none now."""

    def may_come(self) -> bool:
        """Whether there may be more later, though there is none now."""

    def list_news(self) -> Iterable[Elsewhere]:
        """The pieces that others have done since this was asked last."""


class Listed:
    """Pieces that are all there from the beginning."""

    def __init__(self, pieces: Sequence[Any]) -> None:
        self._len = len(pieces)
        self._left = iter(enumerate(pieces))

    def __len__(self) -> int:
        return self._len

    def take(self) -> tuple[int, Any] | None:
        return next(self._left, None)

    def may_come(self) -> bool:
        return False

    def list_news(self) -> Iterable[Elsewhere]:
        return ()


def work_through(
    pieces: Pieces,
    work: Work,
    jobs: int,
    should_stop: Callable[[], bool] = lambda: False,
    environments: Sequence[Mapping[str, str]] = ({},),
) -> Iterator[Event]:
    """The events while `jobs` processes do all of `pieces`, in order. Ends early once `should_stop()`, which is asked
    at least every POLL_S. Process i has the variables of `environments[i]`, over and over.

    However it ends, no process is left.
    """
    workers = [_Worker(work, variables) for variables in islice(cycle(environments), min(jobs, len(pieces)))]
    try:
        while not should_stop():
            for worker in workers:
                if worker.index is None:
                    worker.take(pieces.take())
            yield from pieces.list_news()
            busy = {worker.connection: worker for worker in workers if worker.index is not None}
            if not busy:
                if not pieces.may_come():
                    return
                time.sleep(POLL_S)
                continue
            for connection in wait(list(busy), POLL_S):
                worker = busy[connection]  # type: ignore[index]  # `wait` gives back what it was given
                event = worker.receive()
                yield event
                if isinstance(event, Died):
                    worker.start_again()
                if not isinstance(event, Advanced):
                    worker.index = None
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.close()


class _Worker:
    """One process and the piece it is at work on."""

    def __init__(self, work: Work, variables: Mapping[str, str]) -> None:
        self._work = work
        self._variables = variables
        self.index: int | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self._work), daemon=True)
        with found_first(), _ready_to_start(self._variables):
            self.process.start()
        theirs.close()

    def take(self, piece: tuple[int, Any] | None) -> None:
        self.index = None if piece is None else piece[0]
        if piece is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died: the next receive says so
                self.connection.send(piece[1])

    def receive(self) -> Event:
        assert self.index is not None  # noqa: S101 - only busy ones are listened to
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(STOP_S)
            return Died(self.index, _describe_end(self.process.exitcode))
        return Finished(self.index, content) if kind == "finished" else Advanced(self.index, content)

    def start_again(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self.connection.close()
        self.process.join(STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _serve(connection: Connection, work: Work) -> None:
    """The process: pieces in, events out, until the other end is closed, or whoever holds it is gone."""
    claim_names()
    sys.path.remove(ROOT)  # where `found_first` had it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    with contextlib.suppress(EOFError, OSError):
        while True:
            outcome = work(connection.recv(), lambda news: connection.send(("advanced", news)))
            connection.send(("finished", outcome))


def _end_with_parent() -> None:
    """Nobody reads the outcome of a piece whose asker was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - this is a child
    wait([parent.sentinel])
    os._exit(1)


def _describe_end(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"its process ended with exit code {exit_code}"


@contextlib.contextmanager
def _ready_to_start(variables: Mapping[str, str]) -> Iterator[None]:
    """What is started meanwhile has these variables, computes on one thread, and is deaf to Ctrl-C, which reaches the
    whole group: the one who asked for the work decides when it ends."""
    resource_tracker.ensure_running()  # it would be started with the first process, and unblock the signal on its way
    variables = {**dict.fromkeys(THREAD_VARIABLES, "1"), **variables}  # read once, when a library is loaded
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
