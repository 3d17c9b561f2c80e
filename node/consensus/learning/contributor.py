"""Contributor: signs and sends what the worker has learned.

A contribution's blobs are stored first, then the contribution, then it is sent. If training fails or the disk is full,
the round goes on without this node's contribution. If a change took the height that a contribution was for, it is
signed again for the next height, without new training.
"""

from __future__ import annotations

import logging
from functools import partial

from chain.block import Contribution
from chain.errors import StoreFull
from chain.tip import Tip
from node.consensus.gossip_parts import GossipParts
from node.consensus.governance.own_membership import OwnMembership
from node.consensus.height.actions import ContributionSeen, TrainingFailed
from node.consensus.height.current import CurrentRound
from node.consensus.learning.end_evaluation import EndEvaluation
from node.consensus.learning.masking import Masking
from node.consensus.learning.masks import MaskingRefused, is_masked, is_opening
from node.consensus.record.record import Records
from node.consensus.signing.signer import Signer
from node.events import Events
from node.payloads.checks import PayloadRefused, check_refs
from node.payloads.pushed import PushedPayloads, choose_pushed
from node.runs.specs import RunRound, RunSpecs
from node.training.trainer import Trained

log = logging.getLogger(__name__)


class Contributor:
    """Contributes for one node. `evaluation` makes what it sends if a run is evaluated, when nothing is trained."""

    def __init__(
        self,
        current: CurrentRound,
        runs: RunSpecs,
        signer: Signer,
        gossip: GossipParts,
        pushed: PushedPayloads,
        records: Records,
        events: Events,
        *,
        own_membership: OwnMembership,
        masking: Masking,
        evaluation: EndEvaluation,
    ) -> None:
        self._current = current
        self._runs = runs
        self._signer = signer
        self._authenticator = gossip.authenticator
        self._gossip = gossip.gossip
        self._pushed = pushed
        self._records = records
        self._events = events
        self._standing = own_membership
        self._masking = masking
        self._evaluation = evaluation
        self._measure = evaluation.measure

    async def on_trained(self, height: int, trained: Trained) -> None:
        """Stores the blobs of the worker's local phase, then signs and sends the contribution."""
        tip, record = self._current.tip, self._records.current
        if record is None or tip.height + 1 != height:
            return
        self._records.mark("trained")
        if self._standing.is_leaving:
            await self.on_training_failed(height, "this node is leaving")
            return
        record.train, record.went_back, record.failure = dict(trained.metrics), trained.went_back, None
        record.data_change = trained.data_change
        try:
            adopted = await self._signer.adopt_files(trained)
        except StoreFull as error:
            number = self._runs.get_number(height)
            log.error("round %d goes on without this node's contribution, the disk is full: %s", number, error)
            await self.on_training_failed(height, f"the disk is full: {error}")
            return
        round_ = self._runs.find(height)
        if round_ is not None and is_masked(round_):
            machine = self._current.machine
            if machine is not None and self._signer.id in machine.contributions:
                return  # a second input of one height would reveal the difference of two trainings
            try:
                trained = await self._masking.mask(tip, round_, trained)
            except MaskingRefused as error:
                await self.on_training_failed(height, f"its input cannot be hidden: {error}")
                return
        has_budget = round_ is not None and round_.spec.hyperparameters.budget_s is not None
        streamed = () if round_ is None else round_.spec.get_streamed(round_.number)
        run = tip.state.run
        measure = self._measure.get(run, run.get_round(height) - 1)
        contribution = await self._signer.sign_contribution(
            tip, trained, adopted, streamed=streamed, notes_iterations=has_budget, measure=measure
        )
        if contribution is None or self._current.tip is not tip:
            return
        self._send(contribution, round_, trained)

    def _send(self, contribution: Contribution, round_: RunRound | None, trained: Trained) -> None:
        """Sends a contribution with its small payloads."""
        height = contribution.height
        self._authenticator.add_own(contribution)
        pushed = tuple(choose_pushed(round_.spec, round_.number, contribution, trained.payloads)) if round_ else ()
        for data in pushed:
            self._pushed.keep(height, data)
        self._gossip.push_contribution(contribution, pushed)
        self._current.post(height, ContributionSeen(contribution))

    async def send_untrained(self, tip: Tip, round_: RunRound) -> None:
        """Sends a contribution that needs no training. In a run of masked sums it has a key for the next round and the
        seeds that this member opens, or says that it has no part in the sum. At the end of a run that evaluates, it has
        this site's measures of the best round's model."""
        machine = self._current.machine
        if machine is not None and self._signer.id in machine.contributions:
            return
        maker = self._evaluation.make if round_.run.is_evaluating(round_.height) else self._masking.open
        made = await maker(tip, round_)
        contribution = await self._signer.sign_contribution(tip, made)
        if contribution is not None and self._current.tip is tip:
            self._send(contribution, round_, made)

    async def close(self) -> None:
        """Sends this node's measures of the last round at the first height that closes a run with selection, once it
        has taken that round in."""
        tip, machine, run = self._current.tip, self._current.machine, self._current.tip.state.run
        height = tip.height + 1
        if not run.is_closing(height) or run.is_evaluating(height):
            return
        if machine is None or not machine.contributes or self._standing.is_leaving:
            return
        if self._signer.id in machine.contributions or not self._measure.has(run, run.last_round):
            return
        told = Trained(1, {}, {})
        contribution = await self._signer.sign_contribution(tip, told, measure=self._measure.get(run, run.last_round))
        if contribution is not None and self._current.tip is tip:
            self._send(contribution, self._runs.find(height), told)

    async def renew(self) -> bool:
        """Signs again, for the height after a change, what this node contributed to the same round for the height that
        the change took. Returns whether there was such a contribution."""
        tip = self._current.tip
        round_ = self._runs.find(tip.height + 1)
        if tip.block.change is None or round_ is None or (is_masked(round_) and not is_opening(round_)):
            return False  # an input is masked for one height only: it is trained again
        renewed = await self._signer.renew_contribution(
            tip, self._runs.list_lost_heights(round_), partial(_fits, round_)
        )
        if renewed is not None:
            self._authenticator.add_own(renewed)
            self._gossip.push_contribution(renewed)
            self._current.post(tip.height + 1, ContributionSeen(renewed))
        return renewed is not None

    async def on_training_failed(self, height: int, reason: str) -> None:
        """Notes that the round at `height` goes on without this node's contribution."""
        if (record := self._records.current) is not None and record.height == height:
            record.failure = reason
        me = self._signer.id.hex()
        self._events.publish("rejected", height=height, author=me, reason=f"training failed: {reason}")
        self._current.post(height, TrainingFailed())


def _fits(round_: RunRound, contribution: Contribution) -> bool:
    """Says whether the rules in force would still accept a contribution."""
    try:
        check_refs(round_.spec, round_.number, contribution)
    except PayloadRefused:
        return False
    return all(ref.size <= round_.rules.limits.payload_bytes for ref in contribution.payloads)
