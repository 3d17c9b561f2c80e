"""Reports of a local phase that is under way: how far it is, from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

PROGRESS_S = 0.5  # between two reports of a local phase under way


@dataclass(frozen=True, slots=True)
class Progress:
    """Says how far a local phase is: `step` of `steps`, `seconds` after the first began."""

    step: int
    steps: int
    seconds: float


OnProgress = Callable[[Progress], None]


class ProgressMeter:
    """Reports some of the steps: at most one in PROGRESS_S, the first so long after it was made. Between two reports a
    step only reads the clock."""

    def __init__(self, report: OnProgress) -> None:
        self._report = report
        self._began_s = time.perf_counter()
        self._due_s = self._began_s + PROGRESS_S

    def on_step(self, step: int, steps: int) -> None:
        now_s = time.perf_counter()
        if now_s >= self._due_s:
            self._due_s = now_s + PROGRESS_S
            self._report(Progress(step, steps, now_s - self._began_s))
