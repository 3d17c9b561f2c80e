"""The base of all sinks. No sink can delay or end a node.

Each sink has a thread of its own, behind a bounded queue: what does not fit is dropped and logged once. The thread ends
with the process, whatever it waits for.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any, Protocol

log = logging.getLogger(__name__)

Point = Mapping[str, Any]  # one round, see `node.telemetry.sinks.point`

KEPT = 256  # points that wait for a slow sink
CLOSE_S = 1.0


class SinkFailed(Exception):
    """Raised when a point could not be written; the next one may be."""


class Sink(Protocol):
    """Writes points. All of it runs on one thread, and may block."""

    def write(self, point: Point) -> None:
        """Writes a point. Raises SinkFailed."""
        ...

    def close(self) -> None:
        """Closes what is open. Raises SinkFailed."""
        ...


class SinkThread:
    """Passes points to a sink, one after the other, on a thread."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self._sink = sink
        self._points: queue.Queue[Point | None] = queue.Queue(KEPT)
        self._is_failing = False
        self._is_full = False
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return (
            f"SinkThread({self.name}, waiting={self._points.qsize()}, failing={self._is_failing}, full={self._is_full})"
        )

    def put(self, point: Point) -> None:
        """Queues a point, or drops it if the queue is full; returns at once."""
        try:
            self._points.put_nowait(point)
            self._is_full = self._is_full and self._points.qsize() > 1
        except queue.Full:
            if not self._is_full:
                log.warning("the sink %s was too slow; rounds were left out", self.name)
            self._is_full = True

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Waits until the queued points are written, at most `timeout_s`."""
        try:
            self._points.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (point := self._points.get()) is not None:
            try:
                self._sink.write(point)
            except SinkFailed as error:
                if not self._is_failing:
                    log.warning("the sink %s failed: %s", self.name, error)
                self._is_failing = True
            else:
                if self._is_failing:
                    log.info("the sink %s recovered", self.name)
                self._is_failing = False
        try:
            self._sink.close()
        except SinkFailed as error:
            log.warning("the sink %s could not be closed: %s", self.name, error)
