"""Wiring: puts the parts of one node's rounds together, each with its own few collaborators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from chain.proposals import Proposals
from chain.selection import read_selection
from chain.tip import Tip, get_first_read
from node.consensus.admissions import Admissions
from node.consensus.auditor import Auditor
from node.consensus.authenticator import Authenticator
from node.consensus.awaiting import Awaiting
from node.consensus.commit import Committer
from node.consensus.consent import Consent
from node.consensus.context import NodeContext
from node.consensus.contributor import Contributor
from node.consensus.convictions import Convictions
from node.consensus.crossing import Crossing
from node.consensus.current import CurrentRound
from node.consensus.end_evaluation import EndEvaluation
from node.consensus.evidence import EvidencePool
from node.consensus.executor import ActionExecutor
from node.consensus.gossip import Gossip, Position
from node.consensus.handler import PeerHandler
from node.consensus.hints import AddressHints
from node.consensus.initial_models import InitialModels
from node.consensus.inputs import BlockInputs
from node.consensus.learning_watch import LearningWatch
from node.consensus.masking import Masking, make_masking
from node.consensus.member_clocks import MemberClocks
from node.consensus.mining import mine_block
from node.consensus.neighbours import Neighbours
from node.consensus.opening import RoundOpener
from node.consensus.participation import Participation
from node.consensus.payload_wiring import Payloads, make_payloads
from node.consensus.proposals import ProposalBook, load_proposals
from node.consensus.published import PublishedRounds
from node.consensus.readiness import StandsReady
from node.consensus.record import Records
from node.consensus.recount import Recount
from node.consensus.reporter import RoundReporter
from node.consensus.round_measure import RoundMeasure
from node.consensus.round_tasks import RoundTasks
from node.consensus.scheduler import TrainingScheduler
from node.consensus.second_histories import SecondHistories
from node.consensus.service import RoundParts, RoundService
from node.consensus.serving import StoreServer
from node.consensus.sightings import Sightings
from node.consensus.signer import Signer
from node.consensus.silence import SilenceWatch
from node.consensus.spreading import Spreading
from node.consensus.stall import StallDetector, StallInput, StallWatch
from node.consensus.standing import Standing
from node.consensus.sync import Sync
from node.events import Events
from node.p2p.address_book import AddressBook
from node.p2p.delays import Delays
from node.p2p.peers import Peers
from node.payloads.checks import RoundPayloads
from node.payloads.retention import Retention
from node.runs.specs import RunRound
from node.training.checkpoint import CHECKPOINTS
from node.training.kept_rounds import KeptRounds
from node.training.learner import Learner
from node.training.local_work import BETA_ROUNDS, LocalWork
from node.training.observer_trainer import ObserverTrainer
from node.training.privacy_ledger import PRIVACY_FILE
from node.training.trainer import TrainerInfo


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
    delays: Delays
    awaiting: Awaiting
    records: Records
    proposals: Proposals
    standing: Standing
    admissions: Admissions


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
    reporter: RoundReporter
    evidence: EvidencePool
    authenticator: Authenticator
    consent: Consent
    proposals: ProposalBook
    hints: AddressHints
    published: PublishedRounds
    handler: PeerHandler
    initial_models: InitialModels
    neighbours: Neighbours


def make_round_parts(c: NodeContext) -> RoundParts:
    """The parts, of one node each."""
    ground = _make_ground(c)
    current, peers, events, proposals = ground.current, ground.peers, ground.events, ground.proposals
    local_work = _load_local_work(c, current.tip.height)
    payloads = make_payloads(c, current, ground.peers, ground.awaiting)
    ledger = _make_ledger(c, ground, payloads)

    def get_position() -> Position:
        machine = current.machine
        contributes = machine is not None and machine.contributes and learner.info is not None
        return Position(current.tip, machine, contributes, proposals)

    talk = _make_talk(c, ground, payloads, ledger, get_position)
    masking = make_masking(
        c.me,
        c.genesis.chain_id,
        c.store,
        c.runs,
        payloads.aggregates,
        disk=c.disk,
        bulk=c.bulk,
    )
    contributor = _make_contributor(c, ground, payloads, ledger, talk, masking)
    recount = _make_recount(c, lambda: learner.info, local_work)
    learner = Learner(c.trainer, _make_inputs(c, ground, payloads, recount), contributor, c.boundary)
    tasks = _make_tasks(c, ground, payloads, ledger, talk, contributor)

    executor = ActionExecutor(
        current,
        ledger.signer,
        tasks,
        payloads.waiting,
        gossip=talk.gossip,
        evidence=talk.evidence,
        boundary=c.boundary,
    )

    def get_stall_input() -> StallInput:
        return StallInput(
            current.tip.height,
            current.tip.state,
            current.machine,
            is_starting=learner.info is None and learner.failure is None,
            collect_s=tasks.get_collect_s(current.tip.height + 1),
            received_bytes=payloads.blobs.received_bytes,
            mine_s=_expect_mining_s(local_work, current.tip),
        )

    def get_status_s() -> float:
        return current.tip.state.rules.waits.status_s

    scheduler = TrainingScheduler(
        current,
        c.runs,
        learner,
        local_work,
        ground.records,
        c.store,
        me=c.me,
        needs_seat=not isinstance(c.trainer, ObserverTrainer),
    )
    detector = StallDetector(c.me, peers, c.clock, get_stall_input)
    return RoundParts(
        clock=c.clock,
        clocks=talk.clocks,
        boundary=c.boundary,
        transport=c.transport,
        peers=peers,
        events=events,
        payloads=payloads,
        current=current,
        signer=ledger.signer,
        committer=ledger.committer,
        awaiting=ground.awaiting,
        proposals=talk.proposals,
        opener=_make_opener(c, ground, ledger.signer, talk, masking),
        tasks=tasks,
        executor=executor,
        records=ground.records,
        reporter=talk.reporter,
        local_work=local_work,
        gossip=talk.gossip,
        sync=ledger.sync,
        evidence=talk.evidence,
        authenticator=talk.authenticator,
        handler=talk.handler,
        hints=talk.hints,
        published=talk.published,
        neighbours=talk.neighbours,
        learner=learner,
        scheduler=scheduler,
        contributor=contributor,
        stall=StallWatch(peers, detector, c.clock, events, get_status_s, ledger.sync.describe_way),
        silence=SilenceWatch(current, peers, c.clock, events, get_status_s, talk.gossip.on_step),
        auditor=ledger.auditor,
        stands_ready=StandsReady(
            current, talk.proposals, ledger.signer, c.transport, peers, ledger.sync, scheduler.prepare
        ),
        convictions=Convictions(current, talk.evidence, talk.proposals, ledger.signer, c.store, c.disk),
        sightings=Sightings(peers, c.store, c.disk, c.clock),
        recount=recount,
    )


def _make_recount(c: NodeContext, get_info: Callable[[], TrainerInfo | None], local_work: LocalWork) -> Recount:
    def get_samples() -> int | None:
        info = get_info()
        return None if info is None else info.num_train

    return Recount(
        c.store.path / PRIVACY_FILE,
        c.genesis.chain_id,
        [key.id for key in (c.key, c.spare) if key is not None],
        c.runs,
        c.store,
        c.disk,
        own=c.own_noise,
        get_samples=get_samples,
        get_iterations=lambda: local_work.choose().num_iterations,
    )


def _make_ground(c: NodeContext) -> _Ground:
    current, events = CurrentRound(_load_tip(c)), Events(c.clock)
    peers = Peers(current.tip.state, c.me, c.clock, c.mesh_max)
    records = Records(
        current.call,
        c.transport,
        peers,
        c.store,
        c.disk,
        clock=c.clock,
        events=events,
        boundary=c.boundary,
        learning=LearningWatch.load(c.store, current.tip.height),
    )
    awaiting = Awaiting(current.tip.state, c.me, peers, events)
    proposals = load_proposals(current, c.store)
    standing = Standing(c.me, current.tip.state, proposals, c.store, events)
    admissions = Admissions(current, proposals, c.me, c.store, peers=peers, transport=c.transport)
    delays = Delays(c.transport.round_trips, peers.count_liars)
    return _Ground(current, events, peers, delays, awaiting, records, proposals, standing, admissions)


def _make_ledger(c: NodeContext, ground: _Ground, payloads: Payloads) -> _Ledger:
    current = ground.current
    committer = Committer(
        current,
        c.runs,
        c.store,
        c.disk,
        aggregates=payloads.aggregates,
        retention=Retention(c.store, c.runs, c.me),
        blobs=payloads.blobs,
        waiting=payloads.waiting,
        behind=(payloads.demanded_blobs, payloads.late_blobs, payloads.relayed_blobs),
        followers=(ground.admissions, ground.awaiting, ground.standing),
        transfers=payloads.transfers,
        boundary=c.boundary,
    )
    auditor = Auditor(
        c.runs,
        payloads.late_blobs,
        payloads.late_aggregates,
        c.store,
        disk=c.disk,
        arithmetic=c.arithmetic,
        boundary=c.boundary,
    )
    signer = Signer(c.key, c.genesis, c.store, c.disk, c.bulk, spare=c.spare, checkpoint=c.checkpoint)
    second = SecondHistories(c.store, c.disk, ground.events)
    sync = Sync(
        c.transport,
        ground.peers,
        lambda: current.tip,
        current.adopt,
        c.boundary,
        checkpoint=c.checkpoint,
        second=second,
    )
    return _Ledger(signer, committer, auditor, sync)


def _make_talk(
    c: NodeContext, ground: _Ground, payloads: Payloads, ledger: _Ledger, get_position: Callable[[], Position]
) -> _Talk:
    current, peers, events = ground.current, ground.peers, ground.events
    clocks = MemberClocks(current, c.me, c.clock)
    neighbours = Neighbours(current, peers, c.transport, c.clock)
    spreading = Spreading(c.transport, lambda: neighbours.eager)
    gossip = Gossip(c.transport, peers, c.clock, get_position, spreading, payloads.pushed.find, ground.delays)
    evidence = EvidencePool(
        current,
        c.store,
        c.disk,
        peers=peers,
        gossip=gossip,
        records=ground.records,
        events=events,
        clock=c.clock,
        boundary=c.boundary,
    )
    consent = Consent(ledger.signer, c.store, c.disk, events, asks=c.asks_to_train, approves_genesis=c.approves_genesis)
    initial_models = InitialModels(
        current, c.store, payloads.late_blobs, c.arithmetic, c.boundary, lambda: proposals.follow_up()
    )
    proposals = ProposalBook(
        current,
        ground.proposals,
        ledger.signer,
        c.store,
        c.disk,
        consent=consent,
        admissions=ground.admissions,
        gossip=gossip,
        peers=peers,
        events=events,
        clock=c.clock,
        boundary=c.boundary,
        is_ready=initial_models.is_ready,
    )
    hints = AddressHints(
        c.book or AddressBook.load(c.store.path, {}),
        ledger.signer,
        c.transport,
        chain_id=c.genesis.chain_id,
        advertise=c.advertise,
        peers=peers,
        clock=c.clock,
        disk=c.disk,
    )
    published = PublishedRounds(
        current,
        ledger.signer,
        c.transport,
        c.store,
        c.disk,
        chain_id=c.genesis.chain_id,
        calendar=c.runs.calendar,
        peers=peers,
        clock=c.clock,
        publish_from=c.publish_from,
    )
    published.load()
    authenticator = Authenticator(current.tip.state, c.clock.monotonic)
    handler = PeerHandler(
        current,
        authenticator,
        evidence,
        StoreServer(c.store, c.disk, c.bulk, payloads.transfers, payloads.relayed, payloads.waiting),
        proposals,
        hints,
        published,
        payloads.pushed,
        peers=peers,
        clocks=clocks,
        gossip=gossip,
        sync=ledger.sync,
        events=events,
        boundary=c.boundary,
    )
    reporter = RoundReporter(
        c.me, c.clock, gossip=gossip, records=ground.records, peers=peers, events=events, boundary=c.boundary
    )
    return _Talk(
        clocks,
        gossip,
        reporter,
        evidence,
        authenticator,
        consent,
        proposals,
        hints,
        published,
        handler,
        initial_models,
        neighbours,
    )


def _make_inputs(c: NodeContext, ground: _Ground, payloads: Payloads, recount: Recount) -> BlockInputs:
    return BlockInputs(
        ground.current,
        c.me,
        c.runs,
        c.store,
        c.disk,
        blobs=payloads.late_blobs,
        aggregates=payloads.aggregates,
        on_demand=payloads.on_demand,
        shared_sets=payloads.shared_sets,
        records=ground.records,
        recount=recount,
        get_name=ground.peers.get_name,
        boundary=c.boundary,
    )


def _make_contributor(
    c: NodeContext, ground: _Ground, payloads: Payloads, ledger: _Ledger, talk: _Talk, masking: Masking
) -> Contributor:
    measure = RoundMeasure(c.measure_from, tells=not c.own_noise)
    return Contributor(
        ground.current,
        c.runs,
        c.clock,
        ledger.signer,
        talk.authenticator,
        talk.gossip,
        ground.records,
        talk.published,
        measure,
        EndEvaluation(c, payloads.aggregates, measure),
        KeptRounds(c.store.path / CHECKPOINTS, c.keep_models),
        on_demand=payloads.on_demand,
        pushed=payloads.pushed,
        peers=ground.peers,
        events=ground.events,
        standing=ground.standing,
        masking=masking,
        boundary=c.boundary,
        offload=c.arithmetic,
    )


def _make_tasks(
    c: NodeContext, ground: _Ground, payloads: Payloads, ledger: _Ledger, talk: _Talk, contributor: Contributor
) -> RoundTasks:
    def make_round_payloads(tip: Tip, round_: RunRound) -> RoundPayloads:
        parent = partial(payloads.aggregates.get_arrays, tip.block)
        return RoundPayloads(
            round_.spec,
            round_number=round_.number,
            parent=parent,
            blobs=payloads.blobs,
            arithmetic=c.arithmetic,
            pushed=payloads.pushed,
        )

    sign = ledger.signer.sign_candidate
    return RoundTasks(
        ground.current,
        c.runs,
        make_payloads=make_round_payloads,
        initial_models=talk.initial_models,
        mine=partial(mine_block, miner=c.miner, me=c.me, sign=sign, clock=c.clock, random=c.random),
        send_untrained=contributor.send_untrained,
        blobs=payloads.blobs,
        gossip=talk.gossip,
        transfers=payloads.transfers,
        peers=ground.peers,
        events=ground.events,
        boundary=c.boundary,
    )


def _make_opener(c: NodeContext, ground: _Ground, signer: Signer, talk: _Talk, masking: Masking) -> RoundOpener:
    return RoundOpener(
        signer,
        c.store,
        c.disk,
        peers=ground.peers,
        delays=ground.delays,
        awaiting=ground.awaiting,
        evidence=talk.evidence,
        proposals=talk.proposals,
        crossing=Crossing(),
        participation=Participation(c.store.path),
        consent=talk.consent,
        standing=ground.standing,
        masking=masking,
        mines=c.mines,
    )


def _load_tip(c: NodeContext) -> Tip:
    head = c.store.head_height
    newest = c.store.blocks(get_first_read(head), head)
    state, judged_by = c.store.get_state(head), c.store.get_state(max(0, head - 1))
    selection = read_selection(c.store.get_state, c.store.read_blocks, head)
    return Tip.at(state, [stored.block for stored in newest], judged_by, selection)


def _load_local_work(c: NodeContext, head: int) -> LocalWork:
    """What the last rounds have shown, as they are written down."""
    records = c.store.rounds(max(1, head - BETA_ROUNDS + 1), head)
    spec = c.runs.find_newest(head)
    budget_s = None if spec is None else spec.hyperparameters.budget_s
    return LocalWork.from_records(budget_s, (record for _, record in records))


def _expect_mining_s(local_work: LocalWork, tip: Tip) -> float | None:
    """How long mining is expected to take on this tip; None while it was never measured."""
    mine_s = local_work.beta_s
    if mine_s is None or tip.height == 0:
        return mine_s
    before = min(header.difficulty for header in tip.headers[-BETA_ROUNDS:] if header.height > 0)
    return mine_s * max(1.0, tip.next_difficulty / before)  # at a retarget it becomes harder at once
