"""The Prometheus metrics of a running node: the one place that reads the node's state and follows its events for them.

Gauges and most counters are read from the node on request; what passes by, such as how long phases took, is counted at
its event. Nothing else in the node knows of this module. Counters start with the process.
"""

from __future__ import annotations

import asyncio
import math
import platform
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from chain.block import EvidenceKind, Id
from chain.genesis import PROTOCOL_VERSION, Genesis
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from ml.measures.collapse import NOT_LEARNED, QUIET, Sign
from node.boundary import Boundary
from node.consensus.height.actions import Absence
from node.consensus.mining.miner import Miner
from node.consensus.record.record import PHASE_ENDS
from node.consensus.service import RoundService
from node.events import NodeEvent
from node.finite import to_finite
from node.p2p.admission import Role
from node.p2p.bans import Bans
from node.p2p.peers import Peer
from node.p2p.refusals import Reason, Refusals
from node.p2p.transport.base import Transport
from node.telemetry.measured import SHORT_CHARS, collect_measures, collect_published
from node.version import get_version

LAG_S = 0.25  # between two measurements of how late the event loop is
SETTLED_EVERY = 10  # block ids at heights divisible by this are shown, so that nodes can be compared
SETTLED_KEPT = 4
MAX_OBJECTED = 1024  # candidates remembered, so that none is counted twice
NEWEST_ROUNDS = 100  # how far below the head measurements from before a restart may be

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
Rows = Iterable[tuple[Sequence[str], float]]
_ABSENCES = {absence.value: absence for absence in Absence}


class CallTimes:
    """The first metric in a node's `registry`, `fednode_rpc_seconds`: how long calls took that others made to this
    node."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # no time beside each counter
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "fednode_rpc_seconds",
            "Seconds of a call that a peer or an operator made to this node, by method and gRPC code.",
            ("method", "code"),
            buckets=_SECONDS[:13],
            registry=self.registry,
        )

    def observe(self, method: str, code: str, seconds: float) -> None:
        self._seconds.labels(method, code).observe(seconds)


class NodeMetrics(Collector):
    """Keeps the metrics of one node, beside its `calls`."""

    def __init__(
        self,
        calls: CallTimes,
        service: RoundService,
        genesis: Genesis,
        store: SqliteStore,
        *,
        me: Id,
        name: str,
        miner: Miner,
        transport: Transport,
        bans: Bans,
        boundary: Boundary,
    ) -> None:
        """Reads the store, so it must be made before the store's thread has work."""
        self._registry = registry = calls.registry
        self._service = service
        self._genesis = genesis
        self._me = me
        self._name = name
        self._miner = miner
        self._transport = transport
        self._bans = bans
        self._boundary = boundary
        head = service.tip.height
        newest = [record for record in store.newest_rounds(head, 1) if record["height"] > head - NEWEST_ROUNDS]
        self._record: Mapping[str, Any] | None = next(iter(newest), None)
        self._block_ms = service.tip.header.time_ms if head else None  # block 0 was not mined
        self._settled: deque[tuple[int, str]] = deque(maxlen=SETTLED_KEPT)
        for height in range(head // SETTLED_EVERY * SETTLED_EVERY, -1, -SETTLED_EVERY)[:SETTLED_KEPT]:
            for stored in store.blocks(height, height):
                self._settled.appendleft((height, stored.block.id.hex()))
        self._objected: deque[str] = deque(maxlen=MAX_OBJECTED)
        self._blocks = Tally({"finalised": 0, "rejected": 0})
        self._contributions = Tally({("accepted", ""): 0})
        self._evidence = Tally({kind.name.lower(): 0 for kind in EvidenceKind})
        self._divergences = 0
        self._samples = 0
        self._spoiled = 0
        self._intervals = self._make_histogram(
            "fednode_block_interval_seconds", "Seconds between a finalised block and its parent, by the miners' clocks."
        )
        self._solves = self._make_histogram(
            "fednode_pow_solve_seconds",
            "Seconds from when a round's contributions were settled until an acceptable candidate was here.",
        )
        self._phases = Histogram(
            "fednode_round_phase_seconds",
            "Seconds of a round's phases on this node, one after the other.",
            ("phase",),
            buckets=_SECONDS,
            registry=registry,
        )
        for phase in PHASE_ENDS:
            self._phases.labels(phase)
        self._lags = Histogram(
            "fednode_event_loop_lag_seconds",
            "How many seconds late the event loop came back to a task that had slept.",
            buckets=_LAGS,
            registry=registry,
        )
        registry.register(self)

    def _make_histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self._registry)

    def encode(self, accept: str) -> tuple[bytes, str]:
        """Returns all metrics as Prometheus reads them, and the content type, for an `Accept` header."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    async def run(self) -> None:
        """Measures how late the event loop is, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_S
            await asyncio.sleep(LAG_S)
            self._lags.observe(max(0.0, loop.time() - due_s))

    # ---- counted at events

    def on_event(self, event: NodeEvent) -> None:
        data = event.data
        match event.kind:
            case "block":
                self._on_block(data)
            case "rejected" if "block" in data:
                self._object(data["block"])
            case "evidence":
                self._evidence[data["slot"]] += 1
            case "divergence":
                self._divergences += 1
            case "training":
                self._on_record(data)
            case "spoiled":
                self._spoiled += 1

    def _on_block(self, data: Mapping[str, Any]) -> None:
        self._blocks["finalised"] += 1
        self._contributions["accepted", ""] += data["contributions"]
        if self._block_ms is not None:
            self._intervals.observe(max(0, data["time_ms"] - self._block_ms) / 1000)
        self._block_ms = data["time_ms"]
        if data["height"] % SETTLED_EVERY == 0:
            self._settled.append((data["height"], data["id"]))

    def _object(self, block_id: str) -> None:
        if block_id not in self._objected:
            self._objected.append(block_id)
            self._blocks["rejected"] += 1

    def _on_record(self, record: Mapping[str, Any]) -> None:
        self._record = record
        for candidate in record["candidates"]:
            self._object(candidate["id"])
        for why in record["left_out"].values():
            self._contributions[_describe_absence(why)] += 1
        for phase in PHASE_ENDS:
            self._phases.labels(phase).observe(record["seconds"][phase])
        if record["beta_s"] is not None:
            self._solves.observe(record["beta_s"])
        self._samples += int(record["train"].get("samples", 0))

    # ---- read on request

    def collect(self) -> Iterable[Metric]:
        service, tip, machine = self._service, self._service.tip, self._service.machine
        yield _gauge("fednode_chain_height", "Height of the newest finalised block.", tip.height)
        yield _counters(
            "fednode_chain_blocks",
            "Blocks that became final here, and candidates that this node objected to.",
            ("result",),
            (((result,), count) for result, count in self._blocks.items()),
        )
        yield CounterMetricFamily(
            "fednode_pow_hashes", "Hashes that this node's miners have tried.", value=self._miner.hashes
        )
        height = tip.height if machine is None else machine.height
        yield _gauge("fednode_round", "The round in hand; the last one when the set rounds are over.", height)
        yield from self._collect_training()
        yield from self._collect_peers()
        yield from self._collect_traffic()
        yield _counters(
            "fednode_evidence",
            "Proofs that a member signed two objects for one slot.",
            ("kind",),
            (((kind,), count) for kind, count in self._evidence.items()),
        )
        yield CounterMetricFamily(
            "fednode_second_histories",
            "Blocks with a certificate that peers have shown at heights where another one is final here.",
            value=self._divergences,
        )
        yield _gauge("fednode_stalled", "1 while no quorum is in sight.", service.stall is not None)
        yield _gauge(
            "fednode_paused", "1 while the operator has this node contribute nothing.", service.participation.is_paused
        )
        yield _gauge("fednode_rounds_done", "1 once the rounds that genesis sets are over.", service.is_done)
        yield from self._collect_facts()

    def _collect_learning(self, record: Mapping[str, Any]) -> Iterable[Metric]:
        """Yields the measures of the newest round's model, and those that others published about theirs."""
        yield from collect_measures(record)
        yield collect_published(self._service.published.list_newest(), self._service.peers)
        signs = GaugeMetricFamily(
            "fednode_not_learning", "1 while a sign lasts that the model of this site does not learn.", labels=("sign",)
        )
        others = GaugeMetricFamily(
            "fednode_model_sign", "1 while another sign against the model of this site lasts.", labels=("sign",)
        )
        for sign in Sign:
            if sign not in QUIET:
                family = signs if sign in NOT_LEARNED else others
                family.add_metric((sign.value,), sign.value in self._service.records.learning.lasting)
        yield from (signs, others)

    def _collect_training(self) -> Iterable[Metric]:
        yield _counters(
            "fednode_contributions",
            "Contributions of members to finalised blocks, and those that a block is without, with the reason.",
            ("result", "reason"),
            self._contributions.items(),
        )
        record = self._record or {}
        loss = record.get("train", {}).get("loss")
        yield _gauge("fednode_train_loss", "Mean loss over the steps of the newest local phase.", loss)
        accuracy, learner = record.get("accuracy"), self._service.learner
        if learner.applied > record.get("height", 0):  # caught up: it has no record of that round
            accuracy = to_finite(learner.metrics.get("accuracy", accuracy))
        accuracies = (("test", accuracy), ("test_local", record.get("local_accuracy")))
        yield _gauges(
            "fednode_eval_accuracy",
            "Accuracy on the node's test samples: `test` after the newest round was applied, `test_local` after "
            "training and before the exchange.",
            ("split",),
            (((split,), value) for split, value in accuracies if value is not None),
        )
        yield from self._collect_learning(record)
        yield _gauge(
            "fednode_privacy_epsilon",
            "What this site has told of any of its samples, over all runs: epsilon of differential privacy.",
            _get_epsilon(record.get("privacy") or {}),
        )
        yield CounterMetricFamily(
            "fednode_spoiled_aggregates",
            "Aggregates that left this node without a finite loss, or that its training diverged from.",
            value=self._spoiled,
        )
        yield _gauge(
            "fednode_on_own_model",
            "1 while the newest aggregate is not in this node's model, since it is spoiled.",
            learner.spoiled is not None,
        )
        yield _gauge(
            "fednode_training_failed",
            "1 while there is no training here for the round in hand, as when it diverges.",
            (learner.trouble or learner.failure) is not None,
        )
        yield CounterMetricFamily(
            "fednode_train_samples", "Training samples gone over, each as often as it came.", value=self._samples
        )

    def _collect_peers(self) -> Iterable[Metric]:
        """Yields the state of the peers."""
        states = Tally(dict.fromkeys(("connected", "through", "silent", "missing", "refused", "observer", "guest"), 0))
        states.update(state for peer in self._service.peers if (state := self._get_state(peer)) is not None)
        yield _gauges(
            "fednode_peers",
            "Other members, each in one state: connected, through (others are connected with it), silent (connected, "
            "and not heard of), missing or refused; and observers and guests that are connected.",
            ("state",),
            (((state,), count) for state, count in states.items()),
        )
        members = [((_shorten(peer.id), peer.name), peer) for peer in self._service.peers if peer.is_member]
        yield _gauges(
            "fednode_peer_in_sight",
            "1 for another member that was heard of, by this node or one that it is connected with, 0 for others.",
            ("peer", "name"),
            ((labels, self._get_state(peer) in ("connected", "through")) for labels, peer in members),
        )
        yield _gauges(
            "fednode_peer_credit",
            "Waits for another member's contribution that it has not used up, 2 at most; below 1 it is not awaited.",
            ("peer", "name"),
            ((labels, self._service.credits.get_waits(peer.id)) for labels, peer in members),
        )
        get_name, skews_s = self._service.peers.get_name, self._service.clocks.get_skews_s()
        yield _gauges(
            "fednode_clock_ahead_seconds",
            "How far the clock of a member, this one among them, is ahead of the median of those heard of.",
            ("peer", "name"),
            (((_shorten(member), get_name(member)), skew_s) for member, skew_s in skews_s.items()),
        )

    def _collect_traffic(self) -> Iterable[Metric]:
        """Yields the traffic with peers, and counts what was refused of it."""
        traffic = CounterMetricFamily(
            "fednode_peer_bytes", "Bytes exchanged with each peer.", labels=("peer", "direction")
        )
        for key, counters in self._transport.counters().items():
            short = _shorten(key)
            traffic.add_metric((short, "sent"), counters.bytes_sent)
            traffic.add_metric((short, "received"), counters.bytes_received)
        yield traffic
        totals = sum(self._service.get_refusals().values(), Refusals())
        yield _counters(
            "fednode_messages_rejected",
            "What was not taken of peers, or signed by them.",
            ("reason",),
            (((reason.value,), totals[reason]) for reason in Reason),
        )
        yield _counters(
            "fednode_unforeseen_failures",
            "Errors that nobody foresaw in work that a peer's bytes had caused, by what was being done.",
            ("what",),
            (((what,), count) for what, count in sorted(self._boundary.failures.items())),
        )

    def _get_state(self, peer: Peer) -> str | None:
        if not peer.is_member:
            if not peer.connected:
                return None
            return "observer" if peer.role & Role.OBSERVER else "guest"
        if self._bans.is_banned(peer.id):
            return "refused"
        if not peer.connected:
            return "through" if self._service.peers.is_reached(peer.id) else "missing"
        return "connected" if self._service.peers.is_alive(peer.id) else "silent"

    def _collect_facts(self) -> Iterable[Metric]:
        own = ((get_version(), str(PROTOCOL_VERSION), platform.python_version()), 1)
        yield _gauges("fednode_build_info", "What this node runs; always 1.", ("version", "protocol", "python"), [own])
        genesis, chain = self._genesis, self._genesis.chain_id.hex()[:SHORT_CHARS]
        yield _gauges(
            "fednode_node_info",
            "Who this node is; always 1.",
            ("id", "name", "chain", "chain_name", "method"),
            [((_shorten(self._me), self._name, chain, genesis.chain_name, genesis.run.method["name"]), 1)],
        )
        yield _gauges(
            "fednode_chain_settled_info",
            f"Ids of the newest finalised blocks at heights divisible by {SETTLED_EVERY}; always 1. No two nodes of a "
            "chain may differ.",
            ("chain", "height", "block"),
            (((chain, str(height), block_id[: 2 * SHORT_CHARS]), 1) for height, block_id in self._settled),
        )


def _gauges(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return _fill(GaugeMetricFamily(name, text, labels=labels), rows)


def _counters(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return _fill(CounterMetricFamily(name, text, labels=labels), rows)


def _fill(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Metric:
    """Adds the values, each with its labels."""
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """Makes a gauge; without a value only its name is shown."""
    return GaugeMetricFamily(name, text, value=value)


def _get_epsilon(privacy: Mapping[str, Any]) -> float | None:
    """Returns epsilon of a record: infinite where some noise can be guessed and the site has not left that out of
    account."""
    if privacy.get("guessable") and not privacy.get("set_aside"):
        return math.inf
    epsilon: float | None = privacy.get("epsilon")
    return epsilon


def _shorten(peer: Id) -> str:
    return encode_id(peer)[:SHORT_CHARS]


def _describe_absence(why: str) -> tuple[str, str]:
    """Returns the result and the reason of a member's absence from a block, as labels of which there are few."""
    absence = _ABSENCES.get(why)
    if absence is None:
        return "rejected", "payload"  # any other error text has this label
    return "rejected" if absence is Absence.SIGNED_TWICE else "left_out", absence.name.lower()
