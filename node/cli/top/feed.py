"""The feed of `fednode top`: asks a node again and again, follows its events, and comes back when the node does.

It works in threads of its own, so that keys are heard while a node is slow. What it knows is one frozen snapshot, which
readers take as it is.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from node.admin.client import AdminClient
from node.admin.place import validate_socket
from node.cli.chain import describe_event
from node.cli.top.snapshot import Event, Snapshot, read_answers
from node.errors import NodeError, PermissionRefused

if TYPE_CHECKING:
    from node.admin.address import AdminAddress

KEPT_EVENTS = 500
RETRY_S = 1.0
LEAST_S = 0.4  # between two questions, however much happens
ALL = "0-0"  # the cursor before every event that is kept


class Feed:
    """Of the node at `place`, asked every `interval_s` and when something has happened there. `on_news` is called from
    other threads. Use it as a context manager."""

    def __init__(self, place: AdminAddress, interval_s: float, on_news: Callable[[], None]) -> None:
        self._place = place
        self._interval_s = interval_s
        self._on_news = on_news
        self._snapshot = Snapshot()
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._cursor = ALL
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._due = threading.Event()
        self._node: AdminClient | None = None
        self._thread = ThreadPoolExecutor(1, "feed")
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        self._running = self._thread.submit(self._run)
        self._running.add_done_callback(lambda _: self._on_news())
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._due.set()
        if (node := self._node) is not None:
            node.close()  # which ends what is asked
        self._thread.shutdown()

    @property
    def snapshot(self) -> Snapshot:
        """The newest. Raises PermissionRefused where this caller may not ask: waiting would not mend it."""
        if self._running is not None and self._running.done():
            self._running.result()  # what has ended it
        return self._snapshot

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if isinstance(self._place, Path):
                    validate_socket(self._place)
                with AdminClient(self._place) as self._node:
                    threading.Thread(target=self._follow, args=(self._node,), name="events", daemon=True).start()
                    self._ask(self._node)
            except PermissionRefused:
                raise
            except NodeError as error:
                self._update(away=str(error))
            except ValueError:  # gRPC's, of a channel that was closed meanwhile
                if not self._closing.is_set():
                    raise
            self._closing.wait(RETRY_S)

    def _ask(self, node: AdminClient) -> None:
        """Until it is closed. Raises NodeError when no answer comes."""
        while not self._closing.is_set():
            self._due.clear()
            answers = read_answers(node, self._snapshot.answers)
            self._update(answers=answers, away=None, read_s=time.monotonic())
            self._closing.wait(LEAST_S)
            self._due.wait(max(0.0, self._interval_s - LEAST_S))

    def _follow(self, node: AdminClient) -> None:
        """Until the connection ends; whoever asks says why."""
        with suppress(NodeError, ValueError):
            for event in node.watch((), self._cursor):
                self._cursor = event.cursor
                if event.missed:
                    self._events.append(Event("", f"{event.missed} events before this one are no longer kept"))
                text = describe_event(event.time, event.kind, json.loads(event.data))
                self._events.append(Event(event.kind, text))
                self._update(events=tuple(self._events))
                self._due.set()

    def _update(self, **news: object) -> None:
        with self._lock:
            self._snapshot = replace(self._snapshot, **news)  # type: ignore[arg-type]  # by name
        self._on_news()
