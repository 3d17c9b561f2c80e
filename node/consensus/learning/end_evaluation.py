"""The evaluation at the end of a run with selection: this site's measures of the best round's model.

The calendar sets the height, and nobody proposes it. A site that hides its samples by noise of its own, has too few
test samples, or cannot get the model sends a payload without measures, so that the others need not wait for it.
"""

from __future__ import annotations

import asyncio
import logging

from chain.calendar import Place
from chain.tip import Tip
from ml.payload import encode_arrays
from ml.specs.closing import ClosingEvaluationSpec
from ml.specs.methods.evaluation import EVALUATION
from ml.specs.told import tell_nothing
from node.consensus.context import NodeContext
from node.consensus.learning.round_measure import RoundMeasure
from node.payloads.aggregates import Aggregates
from node.runs.specs import RunRound
from node.training.trainer import AnswerRefused, Trained, WorkerDied, WorkerFailed

log = logging.getLogger(__name__)

ATTEMPTS = 2  # a worker that dies is tried once more


class EndEvaluation:
    """Measures for one site, if it has at least as many test samples as `measure_from` of its node and the run
    require."""

    def __init__(self, c: NodeContext, aggregates: Aggregates, measure: RoundMeasure) -> None:
        self._runs = c.runs
        self._store = c.store
        self._disk = c.disk
        self._trainer = c.trainer
        self._measure_from = c.measure_from
        self._aggregates = aggregates
        self.measure = measure

    async def make(self, tip: Tip, round_: RunRound) -> Trained:
        """Makes the contribution to the height after `tip`, once this site's worker has taken in the last round."""
        if not isinstance(round_.spec, ClosingEvaluationSpec):
            return Trained(1, {}, {})  # the run has no whole model in common
        told = await self._tell(tip, round_, round_.spec) if self.measure.tells else None
        if told is None:
            task = round_.spec.task
            told = encode_arrays(tell_nothing(task.kind, task.num_classes))
        return Trained(1, {EVALUATION: told}, {})

    async def _tell(self, tip: Tip, round_: RunRound, spec: ClosingEvaluationSpec) -> bytes | None:
        run = round_.run
        number = tip.selection.get_evaluated(run)
        await self.measure.wait_for(run, run.last_round)
        model = await self._find_model(Place(run.number, number), round_.collect_s / 2)
        if model is None:
            log.warning("the model of round %d is not here, and this site tells nothing of it", number)
            return None
        for _ in range(ATTEMPTS):
            try:
                return await self._trainer.tell_of(model, max(spec.hyperparameters.min_samples, self._measure_from))
            except WorkerDied as error:
                log.warning("the worker died over the model of round %d: %s", number, error)
            except (AnswerRefused, WorkerFailed) as error:
                log.warning("the model of round %d could not be measured: %s", number, error)
                return None
        return None

    async def _find_model(self, place: Place, wait_s: float) -> bytes | None:
        """Returns the aggregate of a round that is held here or fetched from a peer within `wait_s`; None if there is
        none."""
        height = self._runs.calendar.get_height(place)
        stored = None if height is None else await self._disk.run(self._store.get_block, height)
        if stored is None:
            return None
        try:
            async with asyncio.timeout(wait_s):
                return await self._aggregates.get(stored.block)
        except TimeoutError:
            return None
