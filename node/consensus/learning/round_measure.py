"""The measure of the round before that this node signs, if the run selects its best round by such measures
(`chain.select`).

It has three digits. A site with fewer val samples than its operator requires sends none.
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
    """Holds the newest measure of one site. There is none with fewer than `least_samples` samples, and none unless it
    `tells`: a site that hides its samples by noise of its own has no noise in what it measures."""

    def __init__(self, least_samples: int, *, tells: bool = True) -> None:
        self._least_samples = least_samples
        self.tells = tells
        self._noted = asyncio.Event()
        self._newest: tuple[int, int, Measure | None] | None = None  # with its run and round

    def note(self, run: Run, number: int, metrics: Mapping[str, float], max_weight: int) -> None:
        """Notes the measures after the node has taken in this round of a run."""
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
        """Says whether this round was taken in, whatever was measured."""
        return self._newest is not None and self._newest[:2] == (run.number, number)

    def get(self, run: Run, number: int) -> Measure | None:
        """Returns the measure of a round; None if there is none to send."""
        return self._newest[2] if self._newest is not None and self.has(run, number) else None

    def __repr__(self) -> str:
        return f"RoundMeasure({self._newest})"


def make_measure(
    select: Select, metrics: Mapping[str, float], max_weight: int, least_samples: int = 1
) -> Measure | None:
    """Returns the measure by which a run selects, from what a client has measured; None if there is none to send."""
    found = ValMeasures.from_metrics(metrics)
    if found is None or found.num_samples < least_samples:
        return None
    value = found.auc if select.by == AUC else found.loss
    if value is None or (written := write(value)) is None:
        return None
    return Measure(min(found.num_samples, max_weight), min(written, select.most))


def write(value: float) -> int | None:
    """Returns a measure as the chain has it, in millionths of three digits at most; None if it is not a number."""
    if not math.isfinite(value) or value < 0:
        return None
    millionths = round(value * ONE)
    spare: int = 10 ** max(0, len(str(millionths)) - DIGITS)
    return (millionths + spare // 2) // spare * spare
