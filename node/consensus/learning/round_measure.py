"""The measure that this node signs of the round before, where the run selects its best round by such (`chain.select`).

It is told by three digits, and by no site with fewer val samples than its operator allows.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from chain.block import Measure
from chain.run import Run
from chain.select import AUC, ONE, Select
from ml.measures.val import ValMeasures

DIGITS = 3


class RoundMeasure:
    """One site's: the newest only. It tells nothing of fewer than `least_samples`, and nothing at all unless it
    `tells`: a site that hides its samples by noise of its own has none in what it measures."""

    def __init__(self, least_samples: int, *, tells: bool = True) -> None:
        self._least_samples = least_samples
        self.tells = tells
        self._noted = asyncio.Event()
        self._newest: tuple[int, int, Measure | None] | None = None  # with its run and round

    def note(self, run: Run, number: int, metrics: Mapping[str, float], max_weight: int) -> None:
        """The node has taken in this round of a run, and measured this."""
        if run.select is None:
            return
        measure = make_measure(run.select, metrics, max_weight, self._least_samples) if self.tells else None
        self._newest = run.number, number, measure
        self._noted.set()

    async def wait_for(self, run: Run, number: int) -> None:
        """Waits until this round is the newest that was taken in."""
        while not self.has(run, number):
            self._noted.clear()
            await self._noted.wait()

    def has(self, run: Run, number: int) -> bool:
        """Whether this round was taken in, whatever was measured."""
        return self._newest is not None and self._newest[:2] == (run.number, number)

    def get(self, run: Run, number: int) -> Measure | None:
        """The measure of a round; None where there is none to tell."""
        return self._newest[2] if self._newest is not None and self.has(run, number) else None

    def __repr__(self) -> str:
        return f"RoundMeasure({self._newest})"


def make_measure(
    select: Select, metrics: Mapping[str, float], max_weight: int, least_samples: int = 1
) -> Measure | None:
    """Makes the measure that a run selects by of what a client has measured; None where there is none to tell."""
    found = ValMeasures.from_metrics(metrics)
    if found is None or found.num_samples < least_samples:
        return None
    value = found.auc if select.by == AUC else found.loss
    if value is None or (written := write(value)) is None:
        return None
    return Measure(min(found.num_samples, max_weight), min(written, select.most))


def write(value: float) -> int | None:
    """Writes a measure as the chain has it, in millionths of three digits at most; None where it is no number."""
    if not math.isfinite(value) or value < 0:
        return None
    millionths = round(value * ONE)
    spare: int = 10 ** max(0, len(str(millionths)) - DIGITS)
    return (millionths + spare // 2) // spare * spare
