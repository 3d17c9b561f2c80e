"""Curves for TensorBoard, in `tensorboard/` in the data directory: `tensorboard --logdir DATA/tensorboard`. Written by
tensorboardX, as it needs no torch, which the daemon does not load."""

from __future__ import annotations

import time
from pathlib import Path

from tensorboardX import SummaryWriter

from node.telemetry.sinks.base import Point, SinkFailed
from node.telemetry.sinks.point import get_time_s, list_scalars

FLUSH_S = 10


class TensorBoardSink:
    """Writes points for TensorBoard. Each start of a node writes a file of its own in the directory; TensorBoard reads
    them as one run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None

    def write(self, point: Point) -> None:
        try:
            if self._writer is None:
                self._writer = SummaryWriter(
                    str(self._directory),
                    flush_secs=FLUSH_S,
                    filename_suffix=f".{time.time_ns()}",  # a restart within the same second has a file of its own, too
                )
            for name, value in list_scalars(point):
                self._writer.add_scalar(name, value, point["round"], walltime=get_time_s(point))
            self._writer.flush()
        except OSError as error:
            raise SinkFailed(f"{self._directory}: {error.strerror}") from error

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
