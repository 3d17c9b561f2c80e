"""Wiring: puts the parts of one node's rounds together, each with its own few collaborators."""

from __future__ import annotations

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


def make_round_parts(c: NodeContext) -> RoundParts:
    """The parts, of one node each."""
    collect_s = c.genesis.waits.collect_s
    current = CurrentRound(_load_tip(c))
    events = Events(c.clock)
    peers = Peers(c.genesis, c.me, c.observers, c.clock)
    clocks = MemberClocks(c.genesis, c.me, c.clock)
    awaiting = Awaiting(c.genesis, c.me, peers, events)
    local_work = _load_local_work(c, current.tip.height)
    records = Records(
        current.call, c.transport, peers, c.store, c.disk, clock=c.clock, events=events, boundary=c.boundary
    )

    # Payloads: three ways to pull blobs, so that none waits for another.
    transfers = _make_transfers(c, peers, current.tip.height)
    partial_files = PartialFiles(c.store, c.bulk)

    def make_fetcher(*, is_for_vote: bool = True) -> BlobFetcher:
        thread = c.disk if is_for_vote else c.bulk
        return BlobFetcher(c.transport, c.store, thread, partial_files, transfers, c.slowness, c.boundary)

    def make_aggregates(fetcher: BlobFetcher) -> Aggregates:
        return Aggregates(
            c.genesis, c.spec, c.store, fetcher, disk=c.disk, arithmetic=c.arithmetic, boundary=c.boundary
        )

    def make_payloads(tip: Tip) -> RoundPayloads:
        parent = partial(aggregates.get_arrays, tip.block)
        return RoundPayloads(c.spec, height=tip.height + 1, parent=parent, blobs=blobs, arithmetic=c.arithmetic)

    def is_alone() -> bool:
        return peers.describe_stall() is not None

    blobs, demanded_blobs = make_fetcher(), make_fetcher(is_for_vote=False)
    late_blobs = make_fetcher()  # not abandoned with the round
    aggregates = make_aggregates(blobs)
    on_demand = OnDemand(
        c.spec,
        c.me,
        demanded_blobs,
        c.bulk,
        collect_s=collect_s,
        keep_heights=c.genesis.keep_heights,
        is_alone=is_alone,
        get_patience=awaiting.get_patience,
        on_loss=awaiting.on_missing,
        boundary=c.boundary,
    )
    shared_sets = SharedSets(
        c.spec,
        c.me,
        c.store,
        late_blobs,
        c.disk,
        c.bulk,
        collect_s=collect_s,
        is_alone=is_alone,
        on_loss=awaiting.on_missing,
        boundary=c.boundary,
    )

    # The ledger: what is signed, committed, served and caught up with.
    signer = Signer(
        c.key, c.genesis, c.store, c.disk, c.bulk, notes_iterations=c.spec.hyperparameters.budget_s is not None
    )
    committer = Committer(
        current,
        c.spec,
        c.store,
        c.disk,
        aggregates=aggregates,
        retention=Retention(c.store, c.genesis, c.spec, c.me),
        blobs=blobs,
        behind=(demanded_blobs, late_blobs),
        transfers=transfers,
        boundary=c.boundary,
    )
    auditor = Auditor(
        c.genesis,
        c.spec,
        late_blobs,
        make_aggregates(late_blobs),
        c.store,
        disk=c.disk,
        arithmetic=c.arithmetic,
        boundary=c.boundary,
    )
    sync = Sync(
        c.genesis,
        c.transport,
        peers,
        get_tip=lambda: current.tip,
        adopt=current.adopt,
        boundary=c.boundary,
    )

    # Peers: what is said to them, and what they say.
    def get_position() -> Position:
        machine = current.machine
        contributes = machine is not None and machine.contributes and learner.info is not None
        return Position(current.tip.height, current.tip.id, machine, contributes)

    gossip = Gossip(c.genesis, c.transport, peers, c.clock, get_position)
    evidence = EvidencePool(
        current,
        c.genesis,
        c.store,
        c.disk,
        peers=peers,
        gossip=gossip,
        records=records,
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
        StoreServer(c.store, c.disk, c.bulk, transfers),
        peers=peers,
        clocks=clocks,
        gossip=gossip,
        sync=sync,
        events=events,
        boundary=c.boundary,
    )

    # Training.
    inputs = RoundInputs(
        current,
        c.me,
        c.spec,
        c.store,
        c.disk,
        aggregates=aggregates,
        on_demand=on_demand,
        shared_sets=shared_sets,
        records=records,
        boundary=c.boundary,
    )
    contributor = Contributor(
        current, signer, authenticator, gossip, records, on_demand=on_demand, peers=peers, events=events
    )
    learner = Learner(
        c.trainer, inputs.gather, contributor, prepare=inputs.prepare, recall=inputs.recall, boundary=c.boundary
    )

    # A round, from its opening on.
    tasks = RoundTasks(
        current,
        c.spec,
        collect_s=collect_s,
        make_payloads=make_payloads,
        mine=partial(mine_block, miner=c.miner, me=c.me, sign=signer.sign_candidate, clock=c.clock, random=c.random),
        blobs=blobs,
        gossip=gossip,
        transfers=transfers,
        peers=peers,
        events=events,
        boundary=c.boundary,
    )
    opener = RoundOpener(
        c.genesis,
        signer,
        c.store,
        c.disk,
        peers=peers,
        awaiting=awaiting,
        evidence=evidence,
        crossing=Crossing(c.genesis.waits.delta_s),
        participation=Participation(c.store.path),
        mines=c.mines,
    )

    def get_stall_input() -> StallInput:
        return StallInput(
            current.tip.height,
            current.machine,
            is_starting=learner.info is None and learner.failure is None,
            collect_s=tasks.get_collect_s(current.tip.height + 1),
            received_bytes=blobs.received_bytes,
            mine_s=_expect_mining_s(local_work, current.tip),
        )

    detector = StallDetector(c.genesis, c.me, peers, c.clock, get_stall_input)
    return RoundParts(
        genesis=c.genesis,
        spec=c.spec,
        clock=c.clock,
        clocks=clocks,
        boundary=c.boundary,
        transport=c.transport,
        peers=peers,
        events=events,
        blobs=blobs,
        transfers=transfers,
        current=current,
        signer=signer,
        committer=committer,
        evidence=evidence,
        awaiting=awaiting,
        opener=opener,
        tasks=tasks,
        records=records,
        local_work=local_work,
        gossip=gossip,
        sync=sync,
        handler=handler,
        learner=learner,
        stall=StallWatch(peers, detector, c.clock, events, c.genesis.waits.status_s),
        auditor=auditor,
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
