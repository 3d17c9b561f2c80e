"""Records of rounds on this node: who took part, how long each phase took, and how the accuracy changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chain.block import Block, Certificate, EvidenceKind, Id
from chain.calendar import Place
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from ml.measures.alone import TrainedAlone
from ml.measures.collapse import Sign
from ml.measures.kinds import AnyMeasures
from node.boundary import Boundary
from node.clock import Clock
from node.consensus.height.actions import Objection
from node.consensus.height.current import Step
from node.consensus.height.machine import RoundMachine
from node.consensus.record.learning_watch import LearningWatch
from node.events import Events
from node.finite import to_finite
from node.offload import Offload
from node.p2p.peers import Peers
from node.p2p.refusals import Reason, Refusals
from node.p2p.transport.base import Transport

log = logging.getLogger(__name__)

# A candidate counts from when it was found acceptable here, not from its arrival.
PHASE_ENDS = {"train": "contributed", "exchange": "cutoff", "mine": "candidate", "vote": "final", "apply": "applied"}

# The steps of a round on one node, in the order in which they follow from each other, and what each of them is.
STEPS: Mapping[str, str] = {
    "taken_in": "the aggregate of the round before is in the model",
    "trained": "the local phase is over",
    "contributed": "the own contribution is durable, and on its way",
    "arrived": "the last contribution that the candidates wait for is here",
    "verified": "its payloads are here, and fit",
    "cutoff": "nobody is waited for any more",
    "aggregated": "the aggregate of the own candidate is computed",
    "block": "the first candidate is here, mined or received",
    "candidate": "a candidate is recomputed, and acceptable",
    "prevoted": "the own prevote is durable, and on its way",
    "precommitted": "q prevotes are here, and the own precommit is durable",
    "certified": "q precommits are here",
    "final": "block, certificate and aggregate are durable",
}


@dataclass(slots=True)
class RoundRecord:
    """Collects the facts of a round while it runs. Times are seconds on the node's monotonic clock. `bytes_before` and
    `bytes_after` are the bytes sent since the node started, by kind of message. `pulled_bytes` are those of blobs
    fetched from single peers, before training or after the block, None if the method fetches none; `gone` are the peers
    that did not send theirs, with the reason. `spoiled` says why the round's aggregate was not applied here,
    `went_back` why training began from this node's own model instead of the aggregate before, and `failure` why there
    was no training; all are None in a normal round. `clipped` is how many numbers of a masked sum's mean were outside
    of the run's `masked_radius`. `refusals_before` and `refusals_after` count what was refused since the node started,
    by peer; `left_out` says why members are not in the block, as far as this node can tell."""

    height: int
    began_s: float
    bytes_before: Mapping[str, int]
    refusals_before: Mapping[Id, Refusals] = field(default_factory=dict)
    refusals_after: Mapping[Id, Refusals] = field(default_factory=dict)
    bytes_after: Mapping[str, int] = field(default_factory=dict)
    train: Mapping[str, float] = field(default_factory=dict)
    applied: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[Id, str] = field(default_factory=dict)
    left_out: Mapping[Id, str] = field(default_factory=dict)
    objections: Sequence[tuple[Block, Objection]] = ()
    signed_twice: dict[Id, EvidenceKind] = field(default_factory=dict)
    gone: dict[Id, str] = field(default_factory=dict)
    pulled_bytes: int | None = None
    spoiled: str | None = None
    clipped: int | None = None
    went_back: str | None = None
    data_change: str | None = None  # how the site's data differ from those of the round before
    failure: str | None = None
    place: Place | None = None  # None if a change takes the height
    measures: AnyMeasures | None = None  # of the site's own test samples, after the aggregate was applied
    alone: TrainedAlone | None = None  # the measures of a model trained without the others
    privacy: Mapping[str, Any] | None = None  # the privacy that the site has spent, if the run hides its samples
    signs: Mapping[Sign, str] = field(default_factory=dict)  # that the model has not learned
    leaves_nothing: bool = False  # to apply: it holds inputs, and the next block has their sum
    block: Block | None = None
    certificate: Certificate | None = None
    _marks: dict[str, float] = field(default_factory=dict)

    def mark(self, what: str, at_s: float) -> None:
        """Notes the time of an event, the first time that it happens."""
        self._marks.setdefault(what, at_s)

    def mark_last(self, what: str, at_s: float) -> None:
        """Notes the time of an event that may happen several times; the last time counts."""
        self._marks[what] = at_s

    def on_final(self, block: Block, certificate: Certificate, at_s: float, machine: RoundMachine) -> None:
        self.mark("final", at_s)
        self.block, self.certificate, self.refused = block, certificate, dict(machine.refused)
        self.left_out = machine.collecting.explain_left_out(block)
        self.objections = [(machine.candidates[at], objection) for at, objection in machine.objections.items()]

    def on_signed_twice(self, author: Id, kind: EvidenceKind) -> None:
        self.signed_twice[author] = kind

    def on_applied(
        self,
        at_s: float,
        metrics: Mapping[str, float],
        bytes_after: Mapping[str, int],
        refusals_after: Mapping[Id, Refusals],
    ) -> None:
        self.mark("applied", at_s)
        self.applied, self.bytes_after, self.refusals_after = metrics, bytes_after, refusals_after

    @property
    def is_applied(self) -> bool:
        """Says whether the worker has applied the round's aggregate, or left it out."""
        return "applied" in self._marks

    def on_taken(self, pulled_bytes: int, gone: Mapping[Id, str]) -> None:
        self.pulled_bytes, self.gone = pulled_bytes, dict(gone)

    @property
    def beta_s(self) -> float | None:
        """Returns the seconds that mining took: from the cut-off of contributions until a candidate was acceptable.
        Returns None if this node saw only one of the two, as when it followed a certificate."""
        cutoff_s, candidate_s = self._marks.get("cutoff"), self._marks.get("candidate")
        return None if cutoff_s is None or candidate_s is None else max(0.0, candidate_s - cutoff_s)

    def compute_seconds(self) -> dict[str, float]:
        """Returns the seconds of each phase. Phases overlap; what happened during an earlier phase does not count for
        its own."""
        seconds: dict[str, float] = {}
        until_s = self.began_s
        for phase, mark in PHASE_ENDS.items():
            end_s = max(until_s, self._marks.get(mark, until_s))
            seconds[phase] = end_s - until_s
            until_s = end_s
        return seconds | {"wall": until_s - self.began_s}

    def __contains__(self, what: object) -> bool:
        """Says whether an event has happened."""
        return what in self._marks

    def _get_newest(self, name: str) -> float | None:
        return self.applied.get(name, self.train.get(name))

    def get_steps(self) -> dict[str, float]:
        """Returns the seconds from the round's beginning until each step that this node has seen, in the order of
        STEPS."""
        return {step: round(self._marks[step] - self.began_s, 6) for step in STEPS if step in self._marks}

    def to_mapping(self) -> dict[str, Any]:
        """Returns the record for JSON, with None for numbers that are not finite. Accuracy is the newest that this node
        knows: after applying, else after training."""
        block = self.block
        contributions = block.contributions if block is not None else ()
        return {
            "height": self.height,
            "run": self.place.run if self.place is not None else 0,
            "round": self.place.round if self.place is not None else self.height,
            "block": block.id.hex() if block is not None else None,
            "miner": encode_id(block.header.miner) if block is not None else None,
            "view": self.certificate.view if self.certificate is not None else None,
            "votes": len(self.certificate.signatures) if self.certificate is not None else 0,
            "contributors": [encode_id(contribution.author) for contribution in contributions],
            "payload_bytes": sum(ref.size for contribution in contributions for ref in contribution.payloads),
            "rejected": {encode_id(author): reason for author, reason in self.refused.items()},
            "left_out": {encode_id(author): reason for author, reason in self.left_out.items()},
            "candidates": [
                {"id": block.id.hex(), "miner": encode_id(block.header.miner), "reason": objection.why}
                for block, objection in self.objections
            ],
            "signed_twice": {encode_id(author): kind.name.lower() for author, kind in self.signed_twice.items()},
            "not_taken": [
                {"peer": encode_id(peer), "counts": {reason.value: count for reason, count in sorted(counts.items())}}
                for peer, after in self.refusals_after.items()
                if (counts := after - self.refusals_before.get(peer, Refusals()))
            ],
            "seconds": self.compute_seconds(),
            "steps": self.get_steps(),
            "bytes_sent": {kind: after - self.bytes_before.get(kind, 0) for kind, after in self.bytes_after.items()},
            "pulled_bytes": self.pulled_bytes,
            "gone": {encode_id(author): reason for author, reason in self.gone.items()},
            "spoiled": self.spoiled,
            "clipped": self.clipped,
            "went_back": self.went_back,
            "data_change": self.data_change,
            "failure": self.failure,
            "beta_s": self.beta_s,
            "train": to_finite(self.train),
            "apply": to_finite(self.applied),
            "accuracy": None if self.leaves_nothing else to_finite(self._get_newest("accuracy")),
            "local_accuracy": to_finite(self.train.get("accuracy")),
            "measures": None if self.measures is None else self.measures.to_mapping(),
            "alone": None if self.alone is None else self.alone.to_mapping(),
            "privacy": to_finite(self.privacy),
            "signs": dict(self.signs),
        }


def show_measure(value: float | None) -> str:
    """Returns three digits, or a dash for a value that was not measured."""
    return "-" if value is None else f"{value:.3f}"


class Records:
    """Keeps the record of the round in hand, and those of committed rounds that are not stored yet. A record is stored
    once the worker has applied and measured its round; `call` queues that."""

    def __init__(
        self,
        call: Callable[[Step], None],
        transport: Transport,
        peers: Peers,
        store: SqliteStore,
        disk: Offload,
        *,
        clock: Clock,
        events: Events,
        boundary: Boundary,
        learning: LearningWatch,
    ) -> None:
        self.current: RoundRecord | None = None
        self.curves: dict[str, Any] | None = None  # of the newest measured round, with its height; never stored
        self.learning = learning
        self._call = call
        self._transport = transport
        self._peers = peers
        self._store = store
        self._disk = disk
        self._clock = clock
        self._events = events
        self._boundary = boundary
        self._committed: dict[int, RoundRecord] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def get(self, height: int) -> RoundRecord | None:
        """Returns the record of a round that is committed, but not applied and measured yet."""
        return self._committed.get(height)

    def begin(self, height: int, place: Place | None = None, *, goes_on: bool = False) -> None:
        """Begins the record of a round. If it `goes_on`, the results of training carry over from the record before:
        after a change it is the same round, and a height that opens seeds belongs to the training before it."""
        before = self.current
        self.current = RoundRecord(height, self._clock.monotonic(), self._count_bytes_sent(), self.get_refusals())
        self.current.place = place
        if goes_on and before is not None and before.height == height - 1:
            self.current.train, self.current.went_back = before.train, before.went_back
            self.current.data_change = before.data_change

    def mark(self, step: str) -> None:
        """Notes that a step of the round in hand ends now."""
        if self.current is not None:
            self.current.mark(step, self._clock.monotonic())

    def end(self) -> None:
        """Notes that no round is in hand."""
        self.current = None

    def keep(self, record: RoundRecord) -> None:
        """Keeps the record of a committed round. Those are dropped that the worker will not apply any more."""
        self._committed = {at: kept for at, kept in self._committed.items() if at >= record.height - 2}
        self._committed[record.height] = record

    def get_refusals(self) -> dict[Id, Refusals]:
        """Returns the counts of what was refused since the node started, of each peer that has any."""
        counters, failed = self._transport.counters(), self._boundary.by_peer
        found = {
            peer.id: peer.refusals
            + (counters[peer.id].refusals if peer.id in counters else Refusals())
            + Refusals({Reason.FAILED: failed[peer.id]})
            for peer in self._peers
        }
        return {peer: refusals for peer, refusals in found.items() if refusals}

    def _count_bytes_sent(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for counters in self._transport.counters().values():
            for kind, traffic in counters.kinds.items():
                counts[kind] = counts.get(kind, 0) + traffic.bytes_sent
        return counts

    def on_applied(self, height: int, metrics: Mapping[str, float]) -> None:
        """Notes that the worker has applied the aggregate of `height`, which ends the round."""
        with self._boundary.around("record"):
            record = self._committed.get(height)
            if record is None:
                return
            now_s, sent, refusals = self._clock.monotonic(), self._count_bytes_sent(), self.get_refusals()
            record.on_applied(now_s, dict(metrics), sent, refusals)
            if self.current is not None and self.current.height == height + 1:
                self.current.bytes_before = sent  # bytes sent until now count for the round before
                self.current.refusals_before = refusals
                self.current.mark("taken_in", now_s)

    def on_passed(self, height: int) -> None:
        """Completes the record of a height whose block leaves nothing to apply."""
        with self._boundary.around("record"):
            record = self._committed.get(height)
            if record is not None:
                record.leaves_nothing = True
                record.bytes_after, record.refusals_after = self._count_bytes_sent(), self.get_refusals()
                self._on_measured(height)

    def on_measured(self, height: int) -> None:
        """Completes the record of `height`, so that it is stored."""
        with self._boundary.around("record"):
            self._on_measured(height)

    def _on_measured(self, height: int) -> None:
        record = self._committed.pop(height, None)
        if record is None:
            return
        told = record.to_mapping()
        score = "R2" if "r2" in told["apply"] else "accuracy"
        log.info(
            "round %d  %s %s  loss %s  %.2f s, of which training %.2f",
            told["round"],
            score,
            show_measure(told["apply"]["r2"] if score == "R2" else told["accuracy"]),
            show_measure(told["train"].get("loss")),
            told["seconds"]["wall"],
            told["seconds"]["train"],
        )
        self.learning.observe(told)
        self._call(partial(self._write, height, told))

    async def _write(self, height: int, record: Mapping[str, Any]) -> None:
        with self._boundary.around("record"):
            await self._disk.run(self._store.put_round, height, record)
            self._events.publish("training", **record)

    def renew_alone(self, height: int, alone: TrainedAlone) -> None:
        """Adds later results of training alone to a round whose record is stored."""
        self._call(partial(self._renew, height, alone.to_mapping()))

    async def _renew(self, height: int, alone: Mapping[str, Any]) -> None:
        with self._boundary.around("record"):
            if (record := await self._disk.run(self._store.get_round, height)) is not None:
                await self._disk.run(self._store.put_round, height, {**record, "alone": alone})

    def __repr__(self) -> str:
        current = None if self.current is None else self.current.height
        return f"<Records of round {current}, and {len(self)} not written yet>"
