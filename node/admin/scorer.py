"""Scores the contributions of a round when somebody asks, without delaying the rounds.

The effect of a contribution is a difference of two losses on this node's own test samples: the loss with the round's
aggregate, less the loss with an aggregate that lacks this contribution. Above 0 it did harm. Both are evaluated by the
model as it is now, in one call of the worker for each contribution, the farthest first; training does not wait for it
(`node.training.worker`).

One round is scored at a time, on a thread of its own. Known scores are kept, in memory and with the round's record, so
that a second request costs nothing and continues where time ran out.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence

from chain.block import Id
from ml.errors import AggregationError
from ml.payload import Arrays
from ml.specs import AuthorPayloads, compute_aggregate
from node.admin.stored_chain import StoredChain
from node.boundary import UNFORESEEN, Boundary
from node.errors import InvalidRequest
from node.ledger.audit import Inputs
from node.ledger.scores import Scores, measure
from node.offload import run_on_thread
from node.pb import admin_pb2 as pb
from node.runs.specs import RunRound
from node.training.learner import Learner
from node.training.trainer import AnswerRefused, Trainer, WorkerDied, WorkerFailed

MAX_WAIT_S = 3600.0
KEPT_ROUNDS = 64  # in memory
NO_ROUND = "this height is a change, or of a method that this release does not know"


class Scorer:
    """Scores rounds for one node, whose `learner` knows whether there is a worker."""

    def __init__(self, chain: StoredChain, me: Id, trainer: Trainer, learner: Learner, boundary: Boundary) -> None:
        self._chain = chain
        self._me = me
        self._trainer = trainer
        self._learner = learner
        self._boundary = boundary
        self._scoring = asyncio.Lock()
        self._known: OrderedDict[int, Scores] = OrderedDict()

    async def add_scores(self, shown: pb.Round, within_s: float) -> None:
        """Adds to a round the scores that are known after `within_s`. Raises InvalidRequest and StoreCorrupted."""
        if not 0 < within_s <= MAX_WAIT_S:  # also false for NaN
            raise InvalidRequest(
                f"scores_within_s: expected more than 0 and at most {MAX_WAIT_S:g} seconds, got {within_s:g}"
            )
        scores, late = self._recall(shown), None
        try:
            async with asyncio.timeout(within_s), self._scoring:
                if not scores.is_done:
                    await self._work_out(scores, shown.height)
        except TimeoutError:
            late = f"not worked out within {within_s:g} s; ask again for the rest"
        scores.show(shown, late)

    def _recall(self, shown: pb.Round) -> Scores:
        """Returns the round's scores, the same object to all who ask for them."""
        if shown.height not in self._known:
            self._known[shown.height] = Scores.from_round(shown)
        self._known.move_to_end(shown.height)
        while len(self._known) > KEPT_ROUNDS:
            self._known.popitem(last=False)
        return self._known[shown.height]

    async def _work_out(self, scores: Scores, height: int) -> None:
        chain = self._chain
        block = await chain.get_block(height)
        before = scores.to_record()
        try:
            with self._boundary.around("scores") as crossing:
                round_ = chain.runs.find(height)
                if round_ is None:
                    scores.refuse(NO_ROUND)
                    return
                inputs = await run_on_thread(
                    measure, scores, chain.genesis, round_, chain.store, block, chain.make_call()
                )
                if inputs is not None:
                    await self._weigh(scores, round_, inputs)
            if crossing.failure is not None:
                scores.refuse(UNFORESEEN)
        finally:
            if scores.to_record() != before:
                await chain.disk.run(self._keep, height, scores)

    def _keep(self, height: int, scores: Scores) -> None:
        """Stores the scores in this node's record of the round, if it has one. Runs on the disk's thread."""
        record = self._chain.store.get_round(height)
        if record is not None:
            self._chain.store.put_round(height, record | {"scores": scores.to_record()})

    async def _weigh(self, scores: Scores, round_: RunRound, inputs: Inputs) -> None:
        """Computes the effects, one after the other."""
        scores.no_effect = self._describe_lack(round_)
        if scores.no_effect is not None:
            return
        contributions, parent = [*inputs.contributions], inputs.parent
        whole = await run_on_thread(_combine, round_, contributions, parent)
        mended = []
        for i in sorted(range(len(contributions)), key=lambda i: -get_rank(scores.scores[i])):
            score, others = scores.scores[i], contributions[:i] + contributions[i + 1 :]
            if score.HasField("effect"):
                continue
            try:
                rest = await run_on_thread(_combine, round_, others, parent)
                with_it, without_it = await self._trainer.score(round_.number, [whole, rest])
            except AggregationError as error:
                scores.no_effect = f"without {score.name} there is no aggregate: {error}"
            except AnswerRefused as error:
                scores.no_effect = str(error)
            except (WorkerDied, WorkerFailed) as error:
                scores.no_effect = str(error)
                return
            else:
                if math.isfinite(effect := with_it - without_it):
                    score.effect = effect
                else:
                    mended += [score.name] if math.isfinite(without_it) else []
                    told = f", and would without {' or '.join(sorted(mended))}" if mended else ""
                    scores.no_effect = f"the aggregate leaves this node no finite loss{told}"
        scores.is_done = True

    def _describe_lack(self, round_: RunRound) -> str | None:
        """Returns why no effect can be evaluated, for lack of a worker or of test samples; None if it can."""
        if self._chain.get_state().index_of(self._me) is None:
            return "this node observes, and has no test samples"
        if self._learner.failure is not None:
            return f"this node has no worker any more: {self._learner.failure}"
        if self._learner.info is None:
            return "the worker is not ready yet; ask again"
        if self._learner.run_number != round_.run.number:
            return f"the worker is in run {self._learner.run_number} by now"
        return None if self._learner.info.num_test else "this node has no test samples"


def _combine(round_: RunRound, contributions: Sequence[AuthorPayloads], parent: Arrays | None) -> bytes:
    """Computes the aggregate of these contributions. Raises AggregationError."""
    return compute_aggregate(round_.spec, round_.number, contributions, parent) or b""


def get_rank(score: pb.Score) -> float:
    """Returns the distance of a contribution, infinite if it has none, to sort by."""
    return score.distance if score.HasField("distance") else math.inf
