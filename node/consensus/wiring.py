"""Wiring: puts the parts of one node's rounds together, each with its own few collaborators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from chain.block import Id
from chain.difficulty import get_first_read
from chain.tip import Tip
from node.consensus.auditor import Auditor
from node.consensus.authenticator import Authenticator
from node.consensus.awaiting import Awaiting
from node.consensus.commit import Committer
from node.consensus.context import NodeContext
from node.consensus.contributor import Contributor
from node.consensus.crossing import Crossing
from node.consensus.current import CurrentRound
from node.consensus.evidence import EvidencePool
from node.consensus.gossip import Gossip, Position
from node.consensus.handler import PeerHandler
from node.consensus.inputs import RoundInputs
from node.consensus.member_clocks import MemberClocks
from node.consensus.mining import mine_block
from node.consensus.opening import RoundOpener
from node.consensus.participation import Participation
from node.consensus.record import Records
from node.consensus.round_tasks import RoundTasks
from node.consensus.service import RoundParts, RoundService
from node.consensus.serving import StoreServer
from node.consensus.signer import Signer
from node.consensus.stall import StallDetector, StallInput, StallWatch
from node.consensus.sync import Sync
from node.events import Events
from node.offload import Offload
from node.p2p.peers import Peers
from node.p2p.refusals import Reason
from node.payloads.aggregates import Aggregates
from node.payloads.checks import RoundPayloads
from node.payloads.fetcher import BlobFetcher
from node.payloads.on_demand import OnDemand
from node.payloads.partial_files import PartialFiles
from node.payloads.retention import Retention
from node.payloads.shared_sets import SharedSets
from node.payloads.transfers import Transfers
from node.training.learner import Learner
from node.training.local_work import BETA_ROUNDS, LocalWork


def make_round_service(context: NodeContext) -> RoundService:
    """One node's rounds, from the head of its store on. Raises StoreCorrupted, or NodeError for what the node has kept
    beside its store."""
    return RoundService(make_round_parts(context))


@dataclass(frozen=True, slots=True, eq=False)
class _Ground:
    """What all others stand on."""

    current: CurrentRound
    events: Events
    peers: Peers
    awaiting: Awaiting
    records: Records


@dataclass(frozen=True, slots=True, eq=False)
class _Payloads:
    """Three ways to pull blobs, so that none waits for another, and what is done with them."""

    transfers: Transfers
    blobs: BlobFetcher  # for the vote of the height in hand, abandoned with it
    demanded_blobs: BlobFetcher  # of single peers; votes wait for the other two threads
    late_blobs: BlobFetcher  # of blocks that are final
    aggregates: Aggregates
    late_aggregates: Aggregates
    on_demand: OnDemand
    shared_sets: SharedSets


@dataclass(frozen=True, slots=True, eq=False)
class _Ledger:
    """What is signed, committed, audited and caught up with."""

    signer: Signer
    committer: Committer
    auditor: Auditor
    sync: Sync


@dataclass(frozen=True, slots=True, eq=False)
class _Talk:
    """What is said to peers, and what they say."""

    clocks: MemberClocks
    gossip: Gossip
    evidence: EvidencePool
    authenticator: Authenticator
    handler: PeerHandler


def make_round_parts(c: NodeContext) -> RoundParts:
    """The parts, of one node each."""
    ground = _make_ground(c)
    current, peers, events = ground.current, ground.peers, ground.events
    local_work = _load_local_work(c, current.tip.height)
    payloads = _make_payloads(c, ground)
    ledger = _make_ledger(c, ground, payloads)

    def get_position() -> Position:
        machine = current.machine
        contributes = machine is not None and machine.contributes and learner.info is not None
        return Position(current.tip.height, current.tip.id, machine, contributes)

    talk = _make_talk(c, ground, payloads, ledger, get_position)
    learner = _make_learner(c, ground, payloads, ledger, talk)
    tasks = _make_tasks(c, ground, payloads, ledger, talk)

    def get_stall_input() -> StallInput:
        return StallInput(
            current.tip.height,
            current.machine,
            is_starting=learner.info is None and learner.failure is None,
            collect_s=tasks.get_collect_s(current.tip.height + 1),
            received_bytes=payloads.blobs.received_bytes,
            mine_s=_expect_mining_s(local_work, current.tip),
        )

    detector = StallDetector(c.genesis, c.me, peers, c.clock, get_stall_input)
    return RoundParts(
        genesis=c.genesis,
        spec=c.spec,
        clock=c.clock,
        clocks=talk.clocks,
        boundary=c.boundary,
        transport=c.transport,
        peers=peers,
        events=events,
        blobs=payloads.blobs,
        transfers=payloads.transfers,
        current=current,
        signer=ledger.signer,
        committer=ledger.committer,
        evidence=talk.evidence,
        awaiting=ground.awaiting,
        opener=_make_opener(c, ground, ledger.signer, talk.evidence),
        tasks=tasks,
        records=ground.records,
        local_work=local_work,
        gossip=talk.gossip,
        sync=ledger.sync,
        handler=talk.handler,
        learner=learner,
        stall=StallWatch(peers, detector, c.clock, events, c.genesis.waits.status_s),
        auditor=ledger.auditor,
    )


def _make_ground(c: NodeContext) -> _Ground:
    current, events = CurrentRound(_load_tip(c)), Events(c.clock)
    peers = Peers(c.genesis, c.me, c.observers, c.clock)
    records = Records(
        current.call, c.transport, peers, c.store, c.disk, clock=c.clock, events=events, boundary=c.boundary
    )
    return _Ground(current, events, peers, Awaiting(c.genesis, c.me, peers, events), records)


def _make_payloads(c: NodeContext, ground: _Ground) -> _Payloads:
    transfers = _make_transfers(c, ground.peers, ground.current.tip.height)
    partial_files = PartialFiles(c.store, c.bulk)

    def make_fetcher(disk: Offload) -> BlobFetcher:
        return BlobFetcher(c.transport, c.store, disk, partial_files, transfers, c.slowness, c.boundary)

    def make_aggregates(blobs: BlobFetcher) -> Aggregates:
        return Aggregates(c.genesis, c.spec, c.store, blobs, disk=c.disk, arithmetic=c.arithmetic, boundary=c.boundary)

    def is_alone() -> bool:
        return ground.peers.describe_stall() is not None

    blobs, demanded_blobs, late_blobs = make_fetcher(c.disk), make_fetcher(c.bulk), make_fetcher(c.disk)
    on_demand = OnDemand(
        c.spec,
        c.me,
        demanded_blobs,
        c.bulk,
        collect_s=c.genesis.waits.collect_s,
        keep_heights=c.genesis.keep_heights,
        is_alone=is_alone,
        get_patience=ground.awaiting.get_patience,
        on_loss=ground.awaiting.on_missing,
        boundary=c.boundary,
    )
    shared_sets = SharedSets(
        c.spec,
        c.me,
        c.store,
        late_blobs,
        c.disk,
        c.bulk,
        collect_s=c.genesis.waits.collect_s,
        is_alone=is_alone,
        on_loss=ground.awaiting.on_missing,
        boundary=c.boundary,
    )
    return _Payloads(
        transfers,
        blobs,
        demanded_blobs,
        late_blobs,
        make_aggregates(blobs),
        make_aggregates(late_blobs),
        on_demand,
        shared_sets,
    )


def _make_ledger(c: NodeContext, ground: _Ground, payloads: _Payloads) -> _Ledger:
    current, has_budget = ground.current, c.spec.hyperparameters.budget_s is not None
    committer = Committer(
        current,
        c.spec,
        c.store,
        c.disk,
        aggregates=payloads.aggregates,
        retention=Retention(c.store, c.genesis, c.spec, c.me),
        blobs=payloads.blobs,
        behind=(payloads.demanded_blobs, payloads.late_blobs),
        transfers=payloads.transfers,
        boundary=c.boundary,
    )
    auditor = Auditor(
        c.genesis,
        c.spec,
        payloads.late_blobs,
        payloads.late_aggregates,
        c.store,
        disk=c.disk,
        arithmetic=c.arithmetic,
        boundary=c.boundary,
    )
    return _Ledger(
        Signer(c.key, c.genesis, c.store, c.disk, c.bulk, notes_iterations=has_budget),
        committer,
        auditor,
        Sync(c.genesis, c.transport, ground.peers, lambda: current.tip, current.adopt, c.boundary),
    )


def _make_talk(
    c: NodeContext, ground: _Ground, payloads: _Payloads, ledger: _Ledger, get_position: Callable[[], Position]
) -> _Talk:
    current, peers, events = ground.current, ground.peers, ground.events
    clocks = MemberClocks(c.genesis, c.me, c.clock)
    gossip = Gossip(c.genesis, c.transport, peers, c.clock, get_position)
    evidence = EvidencePool(
        current,
        c.genesis,
        c.store,
        c.disk,
        peers=peers,
        gossip=gossip,
        records=ground.records,
        events=events,
        clock=c.clock,
        boundary=c.boundary,
    )
    authenticator = Authenticator(c.genesis, c.clock.monotonic)
    handler = PeerHandler(
        c.genesis,
        current,
        authenticator,
        evidence,
        StoreServer(c.store, c.disk, c.bulk, payloads.transfers),
        peers=peers,
        clocks=clocks,
        gossip=gossip,
        sync=ledger.sync,
        events=events,
        boundary=c.boundary,
    )
    return _Talk(clocks, gossip, evidence, authenticator, handler)


def _make_learner(c: NodeContext, ground: _Ground, payloads: _Payloads, ledger: _Ledger, talk: _Talk) -> Learner:
    inputs = RoundInputs(
        ground.current,
        c.me,
        c.spec,
        c.store,
        c.disk,
        aggregates=payloads.aggregates,
        on_demand=payloads.on_demand,
        shared_sets=payloads.shared_sets,
        records=ground.records,
        boundary=c.boundary,
    )
    contributor = Contributor(
        ground.current,
        ledger.signer,
        talk.authenticator,
        talk.gossip,
        ground.records,
        on_demand=payloads.on_demand,
        peers=ground.peers,
        events=ground.events,
    )
    return Learner(
        c.trainer, inputs.gather, contributor, prepare=inputs.prepare, recall=inputs.recall, boundary=c.boundary
    )


def _make_tasks(c: NodeContext, ground: _Ground, payloads: _Payloads, ledger: _Ledger, talk: _Talk) -> RoundTasks:
    def make_round_payloads(tip: Tip) -> RoundPayloads:
        parent = partial(payloads.aggregates.get_arrays, tip.block)
        return RoundPayloads(
            c.spec, height=tip.height + 1, parent=parent, blobs=payloads.blobs, arithmetic=c.arithmetic
        )

    sign = ledger.signer.sign_candidate
    return RoundTasks(
        ground.current,
        c.spec,
        collect_s=c.genesis.waits.collect_s,
        make_payloads=make_round_payloads,
        mine=partial(mine_block, miner=c.miner, me=c.me, sign=sign, clock=c.clock, random=c.random),
        blobs=payloads.blobs,
        gossip=talk.gossip,
        transfers=payloads.transfers,
        peers=ground.peers,
        events=ground.events,
        boundary=c.boundary,
    )


def _make_opener(c: NodeContext, ground: _Ground, signer: Signer, evidence: EvidencePool) -> RoundOpener:
    return RoundOpener(
        c.genesis,
        signer,
        c.store,
        c.disk,
        peers=ground.peers,
        awaiting=ground.awaiting,
        evidence=evidence,
        crossing=Crossing(c.genesis.waits.delta_s),
        participation=Participation(c.store.path),
        mines=c.mines,
    )


def _load_tip(c: NodeContext) -> Tip:
    head = c.store.head_height
    newest = c.store.blocks(get_first_read(head), head)
    return Tip.at(c.genesis, [stored.block for stored in newest])


def _load_local_work(c: NodeContext, head: int) -> LocalWork:
    """What the last rounds have shown, as they are written down."""
    records = c.store.rounds(max(1, head - BETA_ROUNDS + 1), head)
    return LocalWork.from_records(c.spec.hyperparameters.budget_s, (record for _, record in records))


def _make_transfers(c: NodeContext, peers: Peers, head: int) -> Transfers:
    """With names for the sets that members have shared already."""

    def on_wrong(peer: Id) -> None:
        peers.refuse(peer, Reason.BLOB)

    transfers = Transfers(c.clock, peers.get_name, on_wrong=on_wrong)
    for shared in c.store.blocks(1, min(head, c.spec.sharing_heights)):
        with c.boundary.around("record"):
            transfers.name(shared.block.contributions, c.spec.get_streamed(shared.block.height))
    return transfers


def _expect_mining_s(local_work: LocalWork, tip: Tip) -> float | None:
    """How long mining is expected to take on this tip; None while it was never measured."""
    mine_s = local_work.beta_s
    if mine_s is None or tip.height == 0:
        return mine_s
    before = min(header.difficulty for header in tip.headers[-BETA_ROUNDS:] if header.height > 0)
    return mine_s * max(1.0, tip.next_difficulty / before)  # at a retarget it becomes harder at once
