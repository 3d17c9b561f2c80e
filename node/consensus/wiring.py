"""Wiring: makes the rooms of one node's rounds, and the parts between them."""

from __future__ import annotations

from functools import partial

from chain.selection import read_selection
from chain.tip import Tip, get_first_read
from node.consensus.commit import Committer
from node.consensus.context import NodeContext, RoundContext
from node.consensus.executor import ActionExecutor
from node.consensus.gossip.gossip import Position
from node.consensus.gossip.serving import StoreServer
from node.consensus.gossip.sync import Sync
from node.consensus.gossip_parts import make_gossip
from node.consensus.governance_parts import make_governance
from node.consensus.handler import PeerHandler
from node.consensus.height.current import CurrentRound
from node.consensus.height.participation import Participation
from node.consensus.learning_parts import LearningParts, make_learning
from node.consensus.mining.mining import mine_block
from node.consensus.opening import RoundOpener
from node.consensus.payload_wiring import Payloads, make_payloads
from node.consensus.record.learning_watch import LearningWatch
from node.consensus.record.record import Records
from node.consensus.record.stall import StallDetector, StallInput, StallWatch
from node.consensus.reporter import RoundReporter
from node.consensus.round_tasks import RoundTasks
from node.consensus.service import RoundParts, RoundService
from node.consensus.signing.signer import Signer
from node.events import Events
from node.p2p.peers import Peers
from node.payloads.retention import Retention
from node.training.local_work import BETA_ROUNDS, LocalWork


def make_round_service(context: NodeContext) -> RoundService:
    """Makes the service for one node's rounds, from the head of its store on. Raises StoreCorrupted, or NodeError for
    the node's files beside its store."""
    return RoundService(make_round_parts(context))


def make_round_parts(c: NodeContext) -> RoundParts:
    """Makes the parts of one node. A part reaches one that is made after it through a function."""
    context = _make_context(c)
    current, peers, events, signer = context.current, context.peers, context.events, context.signer

    def get_position() -> Position:
        machine = current.machine
        contributes = machine is not None and machine.contributes and learning.learner.info is not None
        return Position(current.tip, machine, contributes, governance.proposals)

    gossip = make_gossip(context, get_position, find_payload=lambda digest: payloads.pushed.find(digest))
    payloads = make_payloads(c, current, peers, gossip.awaiting)
    governance = make_governance(context, gossip, payloads.late_blobs, prepare=lambda: learning.scheduler.prepare())
    learning = make_learning(context, gossip, payloads, governance.own_membership)
    tasks = RoundTasks(
        current,
        c.runs,
        payloads,
        governance.initial_models,
        mine=partial(mine_block, miner=c.miner, me=c.me, sign=signer.sign_candidate, clock=c.clock, random=c.random),
        send_untrained=learning.contributor.send_untrained,
        gossip=gossip.gossip,
        peers=peers,
        events=events,
        boundary=c.boundary,
    )
    return RoundParts(
        context,
        gossip,
        payloads,
        governance,
        learning,
        committer=Committer(
            current,
            c.runs,
            c.store,
            c.disk,
            payloads,
            retention=Retention(c.store, c.runs, c.me),
            followers=(governance.admissions, gossip.awaiting, governance.own_membership),
            boundary=c.boundary,
        ),
        opener=RoundOpener(
            signer,
            c.store,
            c.disk,
            gossip,
            governance,
            learning.masking,
            Participation(c.store.path),
            mines=c.mines,
        ),
        tasks=tasks,
        executor=ActionExecutor(
            current,
            signer,
            tasks,
            payloads.waiting,
            gossip=gossip.gossip,
            evidence=gossip.evidence,
            boundary=c.boundary,
        ),
        handler=PeerHandler(
            current,
            gossip,
            governance.proposals,
            payloads.pushed,
            StoreServer(c.store, c.disk, c.bulk, payloads.transfers, payloads.relayed, payloads.waiting),
            events,
            c.boundary,
        ),
        reporter=RoundReporter(
            c.me,
            c.clock,
            gossip=gossip.gossip,
            records=context.records,
            peers=peers,
            events=events,
            boundary=c.boundary,
        ),
        stall=_make_stall(context, gossip.sync, payloads, learning, tasks),
    )


def _make_context(c: NodeContext) -> RoundContext:
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
    signer = Signer(c.key, c.genesis, c.store, c.disk, c.bulk, spare=c.spare, checkpoint=c.checkpoint)
    return RoundContext(c, current, peers, events, signer, records)


def _load_tip(c: NodeContext) -> Tip:
    head = c.store.head_height
    newest = c.store.blocks(get_first_read(head), head)
    state, judged_by = c.store.get_state(head), c.store.get_state(max(0, head - 1))
    selection = read_selection(c.store.get_state, c.store.read_blocks, head)
    return Tip.at(state, [stored.block for stored in newest], judged_by, selection)


def _make_stall(
    context: RoundContext, sync: Sync, payloads: Payloads, learning: LearningParts, tasks: RoundTasks
) -> StallWatch:
    c, current, learner = context.node, context.current, learning.learner

    def get_stall_input() -> StallInput:
        return StallInput(
            current.tip.height,
            current.tip.state,
            current.machine,
            is_starting=learner.info is None and learner.failure is None,
            collect_s=tasks.get_collect_s(current.tip.height + 1),
            received_bytes=payloads.blobs.received_bytes,
            mine_s=_expect_mining_s(learning.local_work, current.tip),
        )

    detector = StallDetector(c.me, context.peers, c.clock, get_stall_input)
    return StallWatch(
        context.peers, detector, c.clock, context.events, context.get_status_s, sync.explain_no_checkpoint
    )


def _expect_mining_s(local_work: LocalWork, tip: Tip) -> float | None:
    """Returns the seconds that mining is expected to take on this tip; None if it was never measured."""
    mine_s = local_work.beta_s
    if mine_s is None or tip.height == 0:
        return mine_s
    before = min(header.difficulty for header in tip.headers[-BETA_ROUNDS:] if header.height > 0)
    return mine_s * max(1.0, tip.next_difficulty / before)  # at a retarget mining gets harder at once
