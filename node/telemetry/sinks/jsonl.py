"""`metrics.jsonl`: a line for each round, appended across restarts. The oldest lines are dropped once there are
many."""

from __future__ import annotations

import json
import os
from pathlib import Path

from node.telemetry.sinks.base import Point, SinkFailed

METRICS = "metrics.jsonl"
MAX_BYTES = 16 << 20  # then the file is renamed to `metrics.jsonl.1`, in place of an earlier one


class JsonlSink:
    """Writes `metrics.jsonl`. The file is opened for each line, so that it may be moved away or deleted meanwhile."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def write(self, point: Point) -> None:
        line = json.dumps(point, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            if self._get_size() + len(line) > self._max_bytes:
                os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
            with self._path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    if file.read(1) != b"\n":  # the disk was full, or the node was killed in the middle of a line
                        line = b"\n" + line
                file.write(line)
        except OSError as error:
            raise SinkFailed(f"{self._path}: {error.strerror}") from error

    def _get_size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        """Does nothing, as nothing is open."""
