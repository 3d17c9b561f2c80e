"""A pool of processes that each do one piece of work after another. One that dies affects no other.

Each process starts from nothing (`spawn`: torch does not survive a fork), computes on one thread, and receives its work
over a pipe. It ends by itself when its parent is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing.connection import Connection, wait
from typing import Any

from node.host.allocator import keep_freed_memory
from node.host.child import ROOT, claim_names, found_first

POLL_S = 0.2  # between two calls of should_stop
STOP_S = 5.0  # for a process to end after SIGTERM
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Report = Callable[[Any], None]
Work = Callable[[Any, Report], Any]  # on a piece; it reports its progress, and is pickled by name


@dataclass(frozen=True, slots=True)
class Advanced:
    """An event: `Work` reported progress on piece `index`."""

    index: int
    news: Any


@dataclass(frozen=True, slots=True)
class Finished:
    """An event: `Work` returned."""

    index: int
    outcome: Any


@dataclass(frozen=True, slots=True)
class Died:
    """An event: the process died while it worked on the piece."""

    index: int
    why: str


Event = Advanced | Finished | Died


def work_through(
    pieces: Sequence[Any],
    work: Work,
    jobs: int,
    should_stop: Callable[[], bool] = lambda: False,
    environments: Sequence[Mapping[str, str]] = ({},),
) -> Iterator[Event]:
    """Yields the events while `jobs` processes do all of `pieces`, in order. Ends early once `should_stop()` returns
    true, which is called at least every POLL_S. Process i has the variables of `environments[i]`; they repeat where
    there are more processes.

    All processes have ended when it ends, for whatever reason.
    """
    left = iter(enumerate(pieces))
    workers = [_Worker(work, variables) for variables in islice(cycle(environments), min(jobs, len(pieces)))]
    try:
        while not should_stop():
            for worker in workers:
                if worker.index is None and (piece := next(left, None)) is not None:
                    worker.begin(*piece)
            busy = {worker.connection: worker for worker in workers if worker.index is not None}
            if not busy:
                return
            for connection in wait(list(busy), POLL_S):
                event = busy[connection].receive()  # type: ignore[index]  # `wait` gives back what it was given
                if isinstance(event, Died) and should_stop():
                    return
                yield event
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.close()


class _Worker:
    """One process, and the index of the piece that it works on."""

    def __init__(self, work: Work, variables: Mapping[str, str]) -> None:
        self._work = work
        self._variables = variables
        self.index: int | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self._variables), daemon=True)
        with found_first():
            self.process.start()
        theirs.close()
        self._send(self._work)

    def begin(self, index: int, piece: Any) -> None:
        self.index = index
        self._send(piece)

    def _send(self, content: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died: the next receive notices
            self.connection.send(content)

    def receive(self) -> Event:
        assert self.index is not None  # noqa: S101 - only busy ones are listened to
        index = self.index
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(STOP_S)
            why = _describe_end(self.process.exitcode)
            self.close()
            self.index = None
            self._start()
            return Died(index, why)
        if kind == "advanced":
            return Advanced(index, content)
        self.index = None
        return Finished(index, content)

    def close(self) -> None:
        self.connection.close()
        self.process.join(STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _serve(connection: Connection, variables: Mapping[str, str]) -> None:
    """Runs in the process: receives work and pieces, sends events, until the other end is closed or the parent is gone.
    Ctrl-C reaches the whole process group and is ignored here: the parent decides when the work ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update({**dict.fromkeys(THREAD_VARIABLES, "1"), **variables})  # before `work` loads what reads them
    claim_names()
    sys.path.remove(ROOT)  # `found_first` put it there
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    with contextlib.suppress(EOFError, OSError):
        work = connection.recv()
        while True:
            outcome = work(connection.recv(), lambda news: connection.send(("advanced", news)))
            connection.send(("finished", outcome))


def _end_with_parent() -> None:
    """Has the kernel end this process with its parent: nobody would read the outcome."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - this is a child
    wait([parent.sentinel])
    os._exit(1)


def _describe_end(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"its process ended with exit code {exit_code}"
