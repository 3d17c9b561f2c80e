"""The measures of this node's newest model on its own test samples, each with an interval.

A round's own record has the measures that follow from counts. The others take a bootstrap. It runs when somebody asks,
on a thread beside the rounds: one at a time, and again only after a while. The worker supplies its answers between its
calls; while it trains for long, the latest measures are shown again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from chain.calendar import Place
from ml.measures.evaluation import evaluate
from node.admin.asking import Terms
from node.admin.json_view import to_json
from node.admin.stored_chain import StoredChain
from node.clock import Clock
from node.errors import NodeUnreachable, NotFound
from node.ledger.measures_view import show_measures
from node.training.kept_answers import decode_answers
from node.training.trainer import Trainer, WorkerDied, WorkerFailed

WAIT_S = 10.0  # to wait for the worker
LEAST_AGE_S = 10.0  # younger measures are shown again, also those of an earlier round
MAX_WORK = 20_000_000  # most probabilities times resamples; beyond it there are fewer resamples
MOST_RESAMPLES, LEAST_RESAMPLES = 1000, 200


class OwnMeasures:
    """Measures the newest model of one node, whose `trainer` has its answers about the test samples."""

    def __init__(self, chain: StoredChain, trainer: Trainer, clock: Clock) -> None:
        self._chain = chain
        self._trainer = trainer
        self._clock = clock
        self._turn = asyncio.Lock()
        self._made: tuple[int, float, dict[str, Any]] = (-1, 0.0, {})  # the height, when, and the measures

    async def show(self) -> dict[str, Any]:
        """Returns the height, its run and round, and `measures`. Raises NotFound, and NodeUnreachable where the worker
        has no time."""
        async with self._turn:
            made, at_s, told = self._made
            if told and self._clock.monotonic() < at_s + LEAST_AGE_S:
                return told
            try:
                async with asyncio.timeout(WAIT_S):
                    answers = await self._trainer.list_answers()
            except (TimeoutError, WorkerDied) as error:
                if told:
                    return told
                raise NodeUnreachable("no intervals yet: the worker is training; ask again") from error
            except WorkerFailed as error:
                raise NotFound(f"no intervals: {error}") from error
            calendar = self._chain.runs.calendar
            run, height = calendar.get_run(answers.run), calendar.get_height(Place(answers.run, answers.round))
            if run is None or not height or answers.data is None:
                raise NotFound("no intervals yet: they are made once this node has measured a round, of not too many")
            if made != height:
                measures = await asyncio.to_thread(_measure, answers.data, Terms.read(run.to_terms()))
                told = {"height": height, "run": answers.run, "round": answers.round, "measures": measures}
            self._made = height, self._clock.monotonic(), told
            return told


def _measure(data: bytes, terms: Terms) -> dict[str, Any]:
    answers = decode_answers(data)
    resamples = max(LEAST_RESAMPLES, min(MOST_RESAMPLES, MAX_WORK // answers.said.size))
    measures, intervals = evaluate(*answers, terms.classes, resamples, kind=terms.task, scale=terms.scale)
    return to_json(show_measures(measures, intervals))
