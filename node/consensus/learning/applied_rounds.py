"""Applied rounds: records how good the model is once it has taken in an aggregate, and what was not taken in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from chain.block import Id
from chain.run import Run
from ml.measures.collapse import find_signs
from ml.specs import MaskedSpec
from node.boundary import Boundary
from node.consensus.gossip_parts import GossipParts
from node.consensus.height.current import CurrentRound
from node.consensus.learning.contributor import Contributor
from node.consensus.learning.round_measure import RoundMeasure
from node.consensus.record.record import Records
from node.events import Events
from node.p2p.refusals import Reason
from node.payloads.on_demand import OnDemand
from node.runs.specs import RunRound, RunSpecs
from node.training.trainer import Measured, Metrics, Trained

log = logging.getLogger(__name__)


class AppliedRounds:
    """Handles the learner's reports, and passes what was trained to the `contributor`. `keep` stores a round's metrics
    and deletes models that are no longer kept, off the event loop since a large file takes its time."""

    def __init__(
        self,
        contributor: Contributor,
        current: CurrentRound,
        runs: RunSpecs,
        gossip: GossipParts,
        on_demand: OnDemand,
        records: Records,
        events: Events,
        *,
        measure: RoundMeasure,
        keep: Callable[[Run, int, Metrics, int], Awaitable[None]],
        boundary: Boundary,
    ) -> None:
        self._contributor = contributor
        self._current = current
        self._runs = runs
        self._peers = gossip.peers
        self._published = gossip.published
        self._on_demand = on_demand
        self._records = records
        self._events = events
        self._measure = measure
        self._keep = keep
        self._boundary = boundary

    async def on_trained(self, height: int, trained: Trained) -> None:
        await self._contributor.on_trained(height, trained)

    async def on_training_failed(self, height: int, reason: str) -> None:
        await self._contributor.on_training_failed(height, reason)

    def on_applied(self, height: int, metrics: Metrics) -> None:
        """Records that the worker has applied the aggregate of `height`."""
        self._records.on_applied(height, metrics)
        span = self._runs.calendar.get_span(height)
        self._measure.note(span.run, span.run.get_round(height), metrics, span.rules.limits.max_weight)
        if span.run.select is not None:
            self._current.call(self._contributor.close)
        selection = self._current.tip.selection
        best = selection.best if selection.run == span.run.number else 0
        self._current.call(partial(self._try_keeping, span.run, span.run.get_round(height), metrics, best))

    async def _try_keeping(self, run: Run, number: int, metrics: Metrics, best: int) -> None:
        with self._boundary.around("kept rounds"):
            await self._keep(run, number, metrics, best)

    def on_measured(self, height: int, measured: Measured) -> None:
        """Completes the record of a round, once the worker has measured the model after this aggregate. It may have
        trained since. Only training alone, without the others, may report later."""
        classes = tuple(self._runs.calendar.get_span(height).run.classes)
        alone = None if measured.alone is None else measured.alone.with_classes(classes)
        record = self._records.get(height)
        if record is None and alone is not None:
            self._records.renew_alone(height, alone)
        if record is not None:
            if measured.measures is not None:
                record.measures = replace(measured.measures, classes=classes)
            record.alone, record.privacy = alone, measured.privacy
            round_ = self._runs.find(height)
            if round_ is None or has_trained(round_):
                watch, place = self._records.learning, record.place
                losses = watch.list_losses(place, record.train, record.applied) if place is not None else ()
                missing = [classes[c] for c in measured.missing]
                record.signs = find_signs(record.measures, record.train, measured.before, losses, missing)
            self._records.curves = {"height": height, **measured.curves} if measured.curves else None
            self._published.publish(record)
        self._records.on_measured(height)

    def on_peer_refused(self, height: int, peer: Id, reason: str) -> None:
        """Records that what a peer offered was not taken, since it would have harmed this client."""
        number, name = self._runs.get_number(height), self._peers.get_name(peer)
        log.warning("round %d: what %s offered is not taken here, as it does harm: %s", number, name, reason)
        self._peers.refuse(peer, Reason.HARM)
        self._on_demand.leave_out(peer, height, reason)
        if (record := self._records.get(height)) is not None:
            record.gone[peer] = f"does harm here: {reason}"
        self._events.publish("rejected", height=height, author=peer.hex(), reason=reason)

    def on_spoiled(self, height: int, reason: str) -> None:
        """Records that the aggregate of this height is not in the client's model. If the next training has removed one
        that was applied, the next round's record says so."""
        number = self._runs.get_number(height)
        log.warning("round %d: its aggregate is spoiled, and this node goes on from its own model: %s", number, reason)
        if (record := self._records.get(height)) is not None and not record.is_applied:
            record.spoiled = reason
        self._events.publish("spoiled", height=height, reason=reason)


def has_trained(round_: RunRound) -> bool:
    """Says whether the model after a round comes from training, and not from statistics or first keys."""
    if isinstance(round_.spec, MaskedSpec):
        own = round_.spec.to_inner(round_.number)
        return own > 0 and round_.spec.inner.get_local_work(own) > 0
    return round_.spec.get_local_work(round_.number) > 0
