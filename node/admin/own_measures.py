"""The measures of this node's newest model on its own test samples, with an interval of each.

A round's own record has those that follow from counts. The others take a bootstrap, which is made when somebody asks,
on a thread beside the rounds: one at a time, and a new one after a while at the soonest.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ml.measures.evaluation import evaluate
from node.admin.asking import Terms
from node.admin.json_view import to_json
from node.admin.stored_chain import StoredChain
from node.clock import Clock
from node.consensus.record import Records
from node.errors import NotFound
from node.ledger.measures_view import show_measures
from node.training.kept_answers import decode_answers

LEAST_AGE_S = 10.0  # before that the same are told again, of a round that may be an earlier one
MAX_WORK = 20_000_000  # probabilities times resamples, beyond which there are fewer resamples
MOST_RESAMPLES, LEAST_RESAMPLES = 1000, 200


class OwnMeasures:
    """Those of one node. `records` has the newest answers."""

    def __init__(self, chain: StoredChain, records: Records, clock: Clock) -> None:
        self._chain = chain
        self._records = records
        self._clock = clock
        self._turn = asyncio.Lock()
        self._made: tuple[int, float, dict[str, Any]] = (-1, 0.0, {})  # the height, when, and what

    async def show(self) -> dict[str, Any]:
        """The height, its run and round, and `measures`. Raises NotFound."""
        async with self._turn:
            if self._records.answers is None:
                raise NotFound("no intervals yet: they are made once this node has measured a round, of not too many")
            height, data = self._records.answers
            made, at_s, told = self._made
            if made == height or (told and self._clock.monotonic() < at_s + LEAST_AGE_S):
                return told
            span = self._chain.runs.calendar.get_span(height)
            terms = Terms.read(span.run.to_terms())
            measures = await asyncio.to_thread(_measure, data, terms)
            told = {
                "height": height,
                "run": span.run.number,
                "round": span.run.get_round(height),
                "measures": measures,
            }
            self._made = height, self._clock.monotonic(), told
            return told


def _measure(data: bytes, terms: Terms) -> dict[str, Any]:
    answers = decode_answers(data)
    resamples = max(LEAST_RESAMPLES, min(MOST_RESAMPLES, MAX_WORK // answers.said.size))
    measures, intervals = evaluate(*answers, terms.classes, resamples, kind=terms.task, scale=terms.scale)
    return to_json(show_measures(measures, intervals))
