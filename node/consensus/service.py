"""Carries out what `RoundMachine` decides: the one place where blocks are committed and votes are signed.

Everything that happens to a height goes through one queue and one task, so the machine sees one event at a time and
what it decides is done, and durable, before the next. Slow work (blobs, aggregates, mining, training) runs beside it
and reports back through the queue; work for a height that is over is cancelled with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from chain import codec, validation
from chain.block import ZERO, Block, Contribution, Digest, Evidence, Id, PayloadRef, Phase, Vote
from chain.difficulty import get_first_read
from chain.errors import SlotTaken, StoreFull, ValidationError
from chain.store.interface import IMPORTED
from chain.store.signed_slots import get_block_digests
from chain.tip import Tip
from ml import payload
from node.boundary import UNFORESEEN
from node.consensus import actions as round_events
from node.consensus import machine as rounds
from node.consensus.auditor import MAX_WAITING, Auditor, Halted
from node.consensus.context import NodeContext
from node.consensus.credit import Credits, VainWait
from node.consensus.crossing import Crossing
from node.consensus.gossip import Gossip, Position
from node.consensus.handler import PeerHandler
from node.consensus.member_clocks import MemberClocks
from node.consensus.mining import mine_block
from node.consensus.participation import Participation
from node.consensus.record import RoundRecord, show_measure
from node.consensus.restored import RESTORED, Restored
from node.consensus.stall import StallDetector, StallInput, StallWatch
from node.consensus.sync import ChainsDiverge, FinalBlock, Sync
from node.events import Events
from node.p2p.peers import Peers
from node.p2p.refusals import Reason, Refusals, get_reason
from node.payloads.aggregates import Aggregates
from node.payloads.checks import Aggregate, PayloadRefused, RoundPayloads
from node.payloads.fetcher import BlobFetcher
from node.payloads.on_demand import OnDemand, get_kinds
from node.payloads.partial_files import PartialFiles
from node.payloads.pulled import MissingAuthor, Pulled
from node.payloads.retention import Retention
from node.payloads.shared_sets import SharedSets
from node.payloads.transfers import Transfers
from node.training.exchange import Exchange
from node.training.learner import Learner, Metrics, RoundInput, Target
from node.training.local_work import BETA_ROUNDS, LocalWork
from node.training.trainer import Trained

log = logging.getLogger(__name__)

IMPORT_BATCH = 64  # heights read at once of what was imported
RECALLED_HEIGHTS = 64  # below the head, in which an older aggregate is looked for
AGAIN_S = 1.0  # between two attempts at what failed for an error that nobody foresaw
DIVERGENCE = "divergence"  # the meta value that holds both blocks once two were certified at one height
ITERATIONS = "iterations"  # the meta value that holds what the newest contribution signed here was trained with


@dataclass(slots=True)
class _Round:
    """The height in hand and the work under way for it."""

    machine: rounds.RoundMachine
    payloads: RoundPayloads
    record: RoundRecord
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    mining: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        for timer in self.timers:
            timer.cancel()
        for task in self.tasks:
            task.cancel()


@dataclass(frozen=True, slots=True)
class _Before:
    """What this node signed for a height in an earlier life, the blocks it was locked on, and all it has to resend.

    `num_iterations` is what its contribution was trained with, where that was chosen by measurements.
    """

    started: round_events.Started = field(default_factory=round_events.Started)
    locked: tuple[Block, ...] = ()
    own: tuple[Contribution | Block | Vote, ...] = ()
    num_iterations: int | None = None


def _get_source(event: round_events.Event) -> Id | None:
    """Whose bytes an event is about; None where it is about nobody's."""
    match event:
        case (
            round_events.ContributionSeen(contribution)
            | round_events.PayloadsVerified(contribution)
            | round_events.PayloadsRefused(contribution)
        ):
            return contribution.author
        case (
            round_events.CandidateSeen(block)
            | round_events.CandidateValidated(block)
            | round_events.CandidateRefused(block)
        ):
            return block.header.miner
        case round_events.VoteSeen(vote):
            return vote.voter
        case round_events.MemberAlive(member) | round_events.MemberAbstains(member) | round_events.Accused(member):
            return member
    return None


async def _raise(error: BaseException) -> None:
    """What went wrong in a task of its own ends the service, where it is heard."""
    raise error


class RoundService:
    """One node's rounds, from the store's head on. It is the transport's handler; `run` goes on until cancelled."""

    def __init__(self, context: NodeContext) -> None:
        self._c = context
        self._genesis = context.genesis
        self._me = context.me
        self._is_member = context.genesis.index_of(self._me) is not None
        head = context.store.head().block
        newest = context.store.blocks(get_first_read(head.height), head.height)
        self._tip = Tip.at(context.genesis, [stored.block for stored in newest])
        self._queue: asyncio.Queue[Callable[[], Coroutine[Any, Any, None]]] = asyncio.Queue()
        self._round: _Round | None = None
        self._signed_height = context.store.get_signed_height()  # in an earlier life
        self._accused: dict[Id, int] = {}  # author -> height of the newest evidence
        self._records: dict[int, RoundRecord] = {}  # committed, but not yet applied
        records = context.store.rounds(max(1, head.height - BETA_ROUNDS + 1), head.height)
        self.local_work = LocalWork.from_records(
            context.spec.hyperparameters.budget_s, (record for _, record in records)
        )
        self._lacks_time = False  # the time that genesis sets is too short for one iteration
        self.num_iterations = context.spec.get_local_work(head.height + 1)  # E of the round in hand
        self.participation = Participation(context.store.path)
        self.restored = Restored(context.store.get_meta(RESTORED))
        self.mines = context.mines  # from the next round on
        self.events = Events(context.clock)
        self.peers = Peers(context.genesis, self._me, context.observers, context.clock)
        self.crossing = Crossing(context.genesis.waits.delta_s)
        self.clocks = MemberClocks(context.genesis, self._me, context.clock)
        self.credits = Credits(member for member in context.genesis.member_ids if member != self._me)
        self.gossip = Gossip(context.genesis, context.transport, self.peers, context.clock, self._get_position)
        self.transfers = Transfers(
            context.clock, context.get_name, on_wrong=lambda peer: self.peers.refuse(peer, Reason.BLOB)
        )
        for shared in context.store.blocks(1, min(head.height, context.spec.sharing_heights)):
            with context.boundary.around("record"):
                self.transfers.name(shared.block.contributions, context.spec.get_streamed(shared.block.height))
        partials = PartialFiles(context.store, context.bulk)
        self.blobs = BlobFetcher(
            context.transport,
            context.store,
            context.disk,
            partials,
            self.transfers,
            context.slowness,
            context.boundary,
        )
        self._aggregates = self._make_aggregates(self.blobs)
        self._retention = Retention(context.store, context.genesis, context.spec, self._me)
        demanded_blobs = BlobFetcher(  # votes wait for the other two threads
            context.transport,
            context.store,
            context.bulk,
            partials,
            self.transfers,
            context.slowness,
            context.boundary,
        )
        self._on_demand = OnDemand(
            context.spec,
            self._me,
            demanded_blobs,
            context.bulk,
            collect_s=context.genesis.waits.collect_s,
            keep_heights=context.genesis.keep_heights,
            is_alone=lambda: self.peers.describe_stall() is not None,
            get_patience=self.credits.get_patience,
            on_loss=self._on_loss,
            boundary=context.boundary,
        )
        self.learner = Learner(
            context.trainer,
            self._gather,
            self,
            prepare=self._prepare,
            recall=self._recall,
            boundary=context.boundary,
        )
        quiet = StallDetector(context.genesis, self._me, self.peers, context.clock, self._get_work)
        self._stall = StallWatch(self.peers, quiet, context.clock, self.events, context.genesis.waits.status_s)
        self._sync = Sync(
            context.genesis, context.transport, self.peers, lambda: self._tip, self._adopt, context.boundary
        )
        late_blobs = BlobFetcher(  # not abandoned with the round
            context.transport,
            context.store,
            context.disk,
            partials,
            self.transfers,
            context.slowness,
            context.boundary,
        )
        self._just_named = get_block_digests(head)  # by the blocks that were appended last
        self._behind = (demanded_blobs, late_blobs)  # what they pull is of blocks that are final
        self._auditor = Auditor(
            context.genesis,
            context.spec,
            late_blobs,
            self._make_aggregates(late_blobs),
            context.arithmetic,
            context.boundary,
        )
        self._shared_sets = SharedSets(
            context.spec,
            self._me,
            context.store,
            late_blobs,
            context.disk,
            context.bulk,
            collect_s=context.genesis.waits.collect_s,
            is_alone=lambda: self.peers.describe_stall() is not None,
            on_loss=self._on_loss,
            boundary=context.boundary,
        )
        self.handler = PeerHandler(
            context,
            self,
            peers=self.peers,
            clocks=self.clocks,
            gossip=self.gossip,
            sync=self._sync,
            events=self.events,
            transfers=self.transfers,
        )
        for stored in context.store.get_evidence(first=max(0, head.height - context.genesis.evidence_heights)):
            self._accused[stored.author] = max(stored.height, self._accused.get(stored.author, 0))
            self.gossip.keep_evidence(stored.evidence)

    def _make_aggregates(self, blobs: BlobFetcher) -> Aggregates:
        c = self._c
        return Aggregates(c.genesis, c.spec, c.store, blobs, disk=c.disk, arithmetic=c.arithmetic, boundary=c.boundary)

    # ---- for status and admin

    @property
    def tip(self) -> Tip:
        return self._tip

    @property
    def machine(self) -> rounds.RoundMachine | None:
        return self._round.machine if self._round is not None else None

    @property
    def stall(self) -> str | None:
        """Why no height can be finalised now, or is not though it could be; None while all is well."""
        return self._stall.reason

    @property
    def is_done(self) -> bool:
        """Whether the set rounds are over: the node keeps serving and contributes no more."""
        return self._genesis.rounds != 0 and self._tip.height >= self._genesis.rounds

    def describe_not_awaited(self) -> dict[Id, str]:
        """Whose contribution this node does not wait for in the round in hand, and why."""
        machine = self.machine
        if machine is None:
            return {}
        others = (member for member in self._genesis.member_ids if member != self._me and member not in machine.awaited)
        return {member: self.credits.explain(member) or machine.explain_not_awaited(member) for member in others}

    def get_refusals(self) -> dict[Id, Refusals]:
        """What was not taken since the node started, of each peer of which there is such."""
        counters, failed = self._c.transport.counters(), self._c.boundary.by_peer
        found = {
            peer.id: peer.refusals
            + (counters[peer.id].refusals if peer.id in counters else Refusals())
            + Refusals({Reason.FAILED: failed[peer.id]})
            for peer in self.peers
        }
        return {peer: refusals for peer, refusals in found.items() if refusals}

    def _get_position(self) -> Position:
        machine = self.machine
        contributes = machine is not None and machine.contributes and self.learner.info is not None
        return Position(self._tip.height, self._tip.id, machine, contributes)

    def _get_work(self) -> StallInput:
        height, learner = self._tip.height, self.learner
        is_starting = learner.info is None and learner.failure is None
        mine_s = self.local_work.beta_s
        if mine_s is not None and height > 0:  # at a retarget it becomes harder at once
            before = min(header.difficulty for header in self._tip.headers[-BETA_ROUNDS:] if header.height > 0)
            mine_s *= max(1.0, self._tip.next_difficulty / before)
        return StallInput(
            height,
            self.machine,
            is_starting=is_starting,
            collect_s=self._get_collect_s(height + 1),
            received_bytes=self.blobs.received_bytes,
            mine_s=mine_s,
        )

    # ---- running

    async def run(self) -> None:
        """Everything of this node that waits. Raises Halted, or what the store raises when it can go no further."""
        divergence = await self._c.disk.run(self._c.store.get_meta, DIVERGENCE)
        if divergence is not None:
            raise Halted(
                f"two blocks were certified at height {divergence['height']}; nothing is signed on top of that"
            )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._c.transport.run(self.handler), name="transport")
                group.create_task(self.learner.run(), name="learner")
                group.create_task(self._keep("status", self.gossip.run), name="gossip")
                group.create_task(self._run_sync(), name="sync")
                group.create_task(self._keep("stall", self._stall.run), name="stall")
                group.create_task(self._auditor.run(), name="auditor")
                group.create_task(self._audit_imported(), name="imported")
                group.create_task(self._decide(), name="rounds")
        finally:
            for blobs in self._behind:
                blobs.abandon()

    async def _keep(self, what: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What speaks of others' objects, and decides nothing, begins anew after an error that nobody foresaw."""
        while True:
            with self._c.boundary.around(what):
                await run()
            await asyncio.sleep(AGAIN_S)

    async def _decide(self) -> None:
        try:
            await self._begin()
            while True:
                step = await self._queue.get()
                await step()
        finally:
            if self._round is not None:
                self._round.cancel()
            self.blobs.abandon()

    async def _run_sync(self) -> None:
        try:
            await self._sync.run()
        except ChainsDiverge as error:
            await self._c.disk.run(
                self._c.store.put_meta,
                DIVERGENCE,
                {
                    "height": error.ours.height,
                    "ours": codec.encode_block(error.ours).hex(),
                    "theirs": codec.encode_block(error.theirs).hex(),
                    "their_certificate": codec.encode_certificate(error.certificate).hex(),
                },
            )
            raise Halted(str(error)) from error

    async def _audit_imported(self) -> None:
        """What was imported while this node was stopped is recomputed like what it catches up with."""
        store, run = self._c.store, self._c.disk.run
        noted = await run(store.get_meta, IMPORTED)
        if noted is None:
            return
        last = min(noted["last"], self._tip.height)
        for first in range(max(noted["first"], last - MAX_WAITING + 1), last + 1, IMPORT_BATCH):
            stored = await run(self._read_blocks, first - 1, min(first + IMPORT_BATCH - 1, last))
            for parent, block in pairwise(stored):
                self._auditor.add(block, parent)
        await self._auditor.wait_until_idle()
        await run(store.put_meta, IMPORTED, None)

    def _read_blocks(self, first: int, last: int) -> list[Block]:
        """Runs on the disk's thread."""
        return [stored.block for stored in self._c.store.blocks(first, last)]

    # ---- a height begins

    async def _begin(self) -> None:
        """Take up the height after the head, with whatever of it is durable here already."""
        if self._round is not None:
            self.local_work.add(self._measure_alpha(self._round.record), self._round.record.beta_s)
            self.crossing.add(self._round.machine.apart_s)
            self._round.cancel()
        self.blobs.abandon()
        height = self._tip.height + 1
        self.handler.on_height(height)
        if self.is_done:
            self._round = None
            self.gossip.on_height()
            self.learner.set_target(Target(self._tip.block, trains=False))
            return
        is_caught_up = self.peers.describe_stall() is None and not self._sync.is_behind
        if self.restored.on_tip(self._tip.height, is_caught_up=is_caught_up):
            await self._c.disk.run(self._c.store.put_meta, RESTORED, self.restored.to_meta())
            log.warning("%s", self.restored.describe() or "put back from a backup, and signs again: two heights passed")
        may_be_lost = height <= self._c.store.silent_until or self.restored.is_silent_at(height)  # what was signed here
        speaks = self._is_member and not may_be_lost
        parent_authors = {contribution.author for contribution in self._tip.block.contributions}
        machine = rounds.RoundMachine(
            self._genesis,
            me=self._me if speaks else None,
            height=height,
            parent_ms=self._tip.header.time_ms,
            awaited=parent_authors if self._tip.height else self._genesis.member_ids,
            overdrawn=self.credits.get_overdrawn(),
            accused=self._get_accused(height),
            mine=self.mines,
            contributes=self.participation.contributes_to(height),
            collect_s=self._get_collect_s(height),
            crossing_s=self.crossing.wait_s,
        )
        payloads = RoundPayloads(
            self._c.spec,
            height=height,
            parent=partial(self._aggregates.get_arrays, self._tip.block),
            blobs=self.blobs,
            arithmetic=self._c.arithmetic,
        )
        now_s = self._c.clock.monotonic()
        self._round = _Round(
            machine, payloads, RoundRecord(height, now_s, self._count_bytes_sent(), self.get_refusals())
        )
        before = _Before()
        if height <= self._signed_height:
            before = await self._c.disk.run(self._load_before, height)
        self.gossip.on_height()
        await self._handle(before.started)
        for block in before.locked:
            self.post(height, round_events.CandidateSeen(block))
        for thing in before.own:
            self._push(thing)
        self.handler.release()
        chosen = before.num_iterations or self._choose_iterations()
        self.num_iterations = chosen or self._c.spec.get_local_work(height)
        has_contributed = before.started.contribution is not None
        is_over = has_contributed and height <= self._c.spec.sharing_heights  # it leaves nothing but what is signed
        self.learner.set_target(
            Target(
                self._tip.block,
                trains=machine.contributes and not is_over,
                has_contributed=has_contributed,
                num_iterations=chosen,
            )
        )
        self._publish_phase()

    async def resume(self) -> None:
        """Has the round in hand contributed to, if it is not already: while all pause there is none after it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(partial(self._resume, done))
        await done

    async def _resume(self, done: asyncio.Future[None]) -> None:
        machine = self.machine
        if machine is not None and machine.abstains and self.participation.contributes_to(machine.height):
            await self._handle(round_events.Resumed())
            chosen = self._choose_iterations()
            self.num_iterations = chosen or self._c.spec.get_local_work(machine.height)
            self.learner.set_target(Target(self._tip.block, trains=True, num_iterations=chosen))
            self.gossip.on_step()
        if not done.done():
            done.set_result(None)

    def _measure_alpha(self, record: RoundRecord) -> float | None:
        """Seconds of a local iteration in the round that ends, also if it ended before this node's training did."""
        progress = self.learner.progress
        if "alpha_s" in record.train or progress is None:
            return record.train.get("alpha_s")
        return progress.seconds / progress.step * progress.steps / self.num_iterations

    def _choose_iterations(self) -> int | None:
        """E by what was measured so far, None for the method's own number. Says it once when the time is too short."""
        choice = self.local_work.choose()
        if (choice.problem is not None) != self._lacks_time:
            self._lacks_time = choice.problem is not None
            if choice.problem is not None:
                log.warning("method.budget_s: %s; a round trains one", choice.problem)
            else:
                log.info("method.budget_s: local iterations fit into it again")
        return choice.num_iterations

    def _load_before(self, height: int) -> _Before:
        """Runs on the disk's thread: it touches nothing but the store."""
        store = self._c.store
        contribution, candidate = store.get_contribution(height), store.get_candidate(height)
        votes = store.get_votes(height)
        locked, justification = store.get_justification(height)
        own = [thing for thing in (contribution, candidate, *justification, *votes) if thing is not None]
        trained = store.get_meta(ITERATIONS) if contribution is not None else None
        num_iterations = trained["iterations"] if trained is not None and trained["height"] == height else None
        started = round_events.Started(contribution, candidate, votes, justification)
        return _Before(started, locked, tuple(own), num_iterations)

    def _get_collect_s(self, height: int) -> float:
        """For how long contributions of this height, and what they commit to, are waited for."""
        return self._c.spec.get_collect_s(height, self._genesis.waits.collect_s)

    def _get_accused(self, height: int) -> set[Id]:
        oldest = height - self._genesis.evidence_heights
        return {author for author, at in self._accused.items() if at >= oldest}

    def _push(self, thing: Contribution | Block | Vote) -> None:
        match thing:
            case Contribution():
                self.gossip.push_contribution(thing)
            case Block():
                self.gossip.push_block(thing)
            case Vote():
                self.gossip.push_vote(thing)

    # ---- events in, actions out

    def post(self, height: int, event: round_events.Event) -> None:
        """Hands an event to the round at `height`, if that is still the one in hand when its turn comes."""
        self._queue.put_nowait(partial(self._handle_at, height, event))

    async def _handle_at(self, height: int, event: round_events.Event) -> None:
        if self._round is not None and height == self._round.machine.height:
            await self._handle(event)

    async def _handle(self, event: round_events.Event) -> None:
        current = self._round
        if current is None:
            return
        phase = current.machine.phase
        actions: Sequence[round_events.Action] = ()
        is_own = isinstance(event, round_events.Started)  # of what is durable here: in doubt nothing is signed
        with self._c.boundary.around("event", _get_source(event), passing=(Exception,) if is_own else ()):
            actions = current.machine.on(event, self._get_now())
        with self._c.boundary.around("record"):
            self._note(event)
        if current.machine.phase is not phase:
            self._publish_phase()
        for action in actions:
            if self._round is not current:
                break  # an earlier action has finalised the height
            await self._perform(current, action)
        if actions:
            self.gossip.on_step()

    def _get_now(self) -> round_events.Now:
        return round_events.Now(self._c.clock.monotonic(), self.clocks.now_ms())

    def _note(self, event: round_events.Event) -> None:
        """Remember since when things are held, and when the round's phases ended."""
        assert self._round is not None  # noqa: S101 - only called while a round is in hand
        record, now_s = self._round.record, self._c.clock.monotonic()
        match event:
            case round_events.ContributionSeen(contribution):
                self.gossip.on_held(contribution)
                if contribution.author == self._me:
                    record.mark("contributed", now_s)
            case round_events.CandidateSeen(block) | round_events.Mined(block):
                self.gossip.on_held(block.id)
            case round_events.VoteSeen(vote):
                self.gossip.on_held(vote.slot)
            case round_events.CandidateValidated(block) | round_events.CandidateRefused(block):
                objection = self._round.machine.objections.get(block.id)
                if objection is not None and objection.kind is not None:
                    self.peers.refuse(block.header.miner, objection.kind)
            case _:
                pass
        if self._round.machine.is_cut_off:
            record.mark("cutoff", now_s)
        if self._round.machine.is_satisfied:
            record.mark("candidate", now_s)

    def _publish_phase(self) -> None:
        machine = self.machine
        if machine is not None:
            self.events.publish("round", height=machine.height, phase=machine.phase.value, view=machine.view)

    async def _perform(self, current: _Round, action: round_events.Action) -> None:
        match action:
            case round_events.FetchPayloads(contribution):
                self._spawn(current, self._fetch_payloads(current, contribution))
            case round_events.ComputeAggregate(contributions):
                self._spawn(current, self._compute_aggregate(current, contributions))
            case round_events.Mine(contributions, aggregate):
                current.mining = self._spawn(current, self._mine(self._tip, contributions, aggregate))
            case round_events.StopMining():
                if current.mining is not None:
                    current.mining.cancel()
            case round_events.CheckCandidate(block):
                self._spawn(current, self._check_candidate(current, block))
            case round_events.CastVote():
                await self._cast(action)
            case round_events.FetchBlock():
                with self._c.boundary.around("status"):
                    self.gossip.send_status()  # whoever sees that we lack it pushes it
            case round_events.StartTimer(timer, after_s):
                fired = round_events.TimerFired(timer)
                loop = asyncio.get_running_loop()
                current.timers = [handle for handle in current.timers if handle.when() >= loop.time()]  # still to fire
                current.timers.append(loop.call_later(after_s, self.post, current.machine.height, fired))
            case round_events.Accuse(evidence, author):
                await self._accuse(evidence, author, current.machine.height)
            case round_events.Finalise():
                await self._finalise(current, action)
            case round_events.Halt(reason):
                raise Halted(reason)

    def _spawn(self, current: _Round, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        current.tasks.add(task)
        task.add_done_callback(lambda done: self._on_task_done(current, done))
        return task

    def _on_task_done(self, current: _Round, task: asyncio.Task[None]) -> None:
        current.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._queue.put_nowait(partial(_raise, error))

    # ---- slow work of a height

    async def _fetch_payloads(self, current: _Round, contribution: Contribution) -> None:
        with self._c.boundary.around("payloads", contribution.author) as crossing:
            await self._try_fetch_payloads(current, contribution)
        if crossing.failure is not None:
            self.post(current.machine.height, round_events.PayloadsRefused(contribution, UNFORESEEN))

    async def _try_fetch_payloads(self, current: _Round, contribution: Contribution) -> None:
        height = current.machine.height
        self.transfers.name([contribution], self._c.spec.get_streamed(height))
        try:
            await current.payloads.ensure(contribution)
        except PayloadRefused as error:
            log.warning("contribution of %s refused: %s", self._c.get_name(contribution.author), error)
            self.peers.refuse(contribution.author, Reason.PAYLOAD)
            self.events.publish("rejected", height=height, author=contribution.author.hex(), reason=str(error))
            self.post(height, round_events.PayloadsRefused(contribution, str(error)))
        else:
            self.post(height, round_events.PayloadsVerified(contribution))

    async def _compute_aggregate(self, current: _Round, contributions: tuple[Contribution, ...]) -> None:
        """For a candidate of this node. Where that fails, whose fault it is nobody can say: it is tried again for as
        long as the round lasts."""
        height, has_failed = current.machine.height, False
        while True:
            with self._c.boundary.around("own aggregate"):
                aggregate = await current.payloads.aggregate(contributions)
                self.post(height, round_events.AggregateComputed(aggregate.digest))
                return
            if not has_failed:
                log.warning("round %d goes on without a candidate of this node: %s", height, UNFORESEEN)
            has_failed = True
            await asyncio.sleep(AGAIN_S)

    async def _mine(self, tip: Tip, contributions: tuple[Contribution, ...], aggregate: Digest) -> None:
        block = await mine_block(
            self._c.miner,
            self._c.key,
            tip,
            contributions,
            aggregate=aggregate,
            clock=self._c.clock,
            random=self._c.random,
        )
        try:
            await self._c.disk.run(self._c.store.put_candidate, block)
        except SlotTaken as taken:
            block = codec.decode_block(self._genesis.chain_id, taken.stored)
        self.gossip.push_block(block)
        self.post(block.height, round_events.Mined(block))

    async def _check_candidate(self, current: _Round, block: Block) -> None:
        """A candidate that cannot be judged here is not voted for, and followed if others make it final."""
        with self._c.boundary.around("candidate", block.header.miner) as crossing:
            await self._try_check_candidate(current, block)
        if crossing.failure is not None:
            self.post(block.height, round_events.CandidateRefused(block, UNFORESEEN, wrong=False))

    async def _try_check_candidate(self, current: _Round, block: Block) -> None:
        """Recompute. While the blobs are not to be had say so once, and go on looking for them."""
        height = block.height
        looking = asyncio.create_task(self._recompute(current, block))
        try:
            try:
                async with asyncio.timeout(self._get_collect_s(height)):
                    await asyncio.shield(looking)
            except TimeoutError:
                self.post(height, round_events.CandidateRefused(block, "its blobs are not to be had", wrong=False))
                await looking
        except (PayloadRefused, ValidationError) as error:
            log.warning(
                "candidate %s of %s refused: %s", block.id.hex()[:8], self._c.get_name(block.header.miner), error
            )
            self.events.publish("rejected", height=height, block=block.id.hex(), reason=str(error))
            kind = Reason.PAYLOAD if isinstance(error, PayloadRefused) else get_reason(error)
            self.post(height, round_events.CandidateRefused(block, str(error), wrong=True, kind=kind))
        else:
            self.post(height, round_events.CandidateValidated(block))
        finally:
            looking.cancel()

    async def _recompute(self, current: _Round, block: Block) -> None:
        await current.payloads.ensure_all(block.contributions)
        aggregate = await current.payloads.aggregate(block.contributions)
        validation.validate_aggregate(block, aggregate.digest)

    # ---- what is signed: durable before it leaves (I4)

    async def on_trained(self, height: int, trained: Trained) -> None:
        """The worker's local phase is done: make its blobs durable, then the contribution, then send it."""
        tip = self._tip
        if self._round is None or tip.height + 1 != height:
            return
        record = self._round.record
        record.train, record.went_back, record.failure = dict(trained.metrics), trained.went_back, None
        try:
            adopted = await self._adopt_files(trained)
        except StoreFull as error:
            log.error("round %d goes on without this node's contribution, the disk is full: %s", height, error)
            await self.on_training_failed(height, f"the disk is full: {error}")
            return
        contribution = await self._c.disk.run(self._put_contribution, tip, trained, adopted)
        if contribution is None or self._tip is not tip:
            return
        self.handler.authenticator.add_own(contribution)
        self.gossip.push_contribution(contribution)
        self.post(height, round_events.ContributionSeen(contribution))

    async def _adopt_files(self, trained: Trained) -> tuple[PayloadRef, ...]:
        """Makes blobs of the files that the trainer has left, where they are too large to pass through here. Whoever
        votes waits for the disk's thread, so this is done on another. Raises StoreFull."""
        refs: list[PayloadRef] = []
        for kind, path in trained.files.items():
            digest, size = await self._c.bulk.run(self._c.store.adopt_blob, path)
            refs.append(PayloadRef(payload.kind_code(kind), digest, size))
        return tuple(refs)

    def _put_contribution(
        self, tip: Tip, trained: Trained, adopted: tuple[PayloadRef, ...] = ()
    ) -> Contribution | None:
        """The durable contribution on `tip`: this one, or the one signed for it before. Runs on the disk's thread.

        None when the height was finalised meanwhile: there is nothing to sign for it any more.
        """
        if self._c.store.head_height > tip.height:
            kept = self._c.store.referenced_blobs(tip.height + 1)
            for ref in adopted:
                if ref.digest not in kept:
                    self._c.store.delete_blob(ref.digest)
            return None
        refs = [
            PayloadRef(payload.kind_code(kind), self._c.store.put_blob(data), len(data))
            for kind, data in trained.payloads.items()
        ]
        refs += adopted
        contribution = codec.sign_contribution(
            self._c.key,
            self._genesis.chain_id,
            height=tip.height + 1,
            prev=tip.id,
            weight=trained.weight,
            payloads=tuple(sorted(refs, key=lambda ref: ref.kind)),
        )
        if (
            self.local_work.budget_s is not None
        ):  # before it is signed for good: a repetition has to give the same bytes
            self._c.store.put_meta(
                ITERATIONS, {"height": contribution.height, "iterations": int(trained.metrics["iterations"])}
            )
        try:
            self._c.store.put_contribution(contribution)
        except SlotTaken as taken:
            return codec.decode_contribution(taken.stored)
        return contribution

    async def on_training_failed(self, height: int, reason: str) -> None:
        if self._round is not None and self._round.machine.height == height:
            self._round.record.failure = reason
        self.events.publish("rejected", height=height, author=self._me.hex(), reason=f"training failed: {reason}")
        self.post(height, round_events.TrainingFailed())

    async def _cast(self, action: round_events.CastVote) -> None:
        cast, height = action.cast, self._tip.height + 1
        vote = codec.sign_vote(
            self._c.key,
            self._genesis.chain_id,
            phase=cast.phase,
            height=height,
            view=cast.view,
            block_id=cast.block_id,
        )
        vote = await self._c.disk.run(self._put_vote, vote, action)
        if cast.phase is Phase.PREVOTE:
            for prevote in cast.justification:
                self.gossip.push_vote(prevote)
        self.gossip.push_vote(vote)
        await self._handle(round_events.VoteSeen(vote))

    def _put_vote(self, vote: Vote, action: round_events.CastVote) -> Vote:
        """The durable vote of this slot: this one, or the one signed in it before. Runs on the disk's thread.

        Before a lock is signed, what it is on and the prevotes that justify it are durable (PROTOCOL §4).
        """
        try:
            if vote.phase is Phase.PRECOMMIT and action.block is not None:
                self._c.store.put_justification(vote.height, action.block, action.cast.justification)
            self._c.store.put_vote(vote)
        except SlotTaken as taken:
            return codec.decode_vote(taken.stored)
        return vote

    def is_accused(self, author: Id, height: int) -> bool:
        """Whether there is evidence against `author` of this height, or a later one."""
        return height <= self._accused.get(author, -1)

    def on_evidence(self, evidence: Evidence, author: Id, height: int) -> None:
        """A peer has proof against `author`: from now on it is left out, whether or not the round is this one."""
        if not self.is_accused(author, height):
            self._accused[author] = height
            self._queue.put_nowait(partial(self._accuse, evidence, author, height))
            self.post(self._tip.height + 1, round_events.Accused(author))

    async def _accuse(self, evidence: Evidence, author: Id, height: int) -> None:
        with self._c.boundary.around("accusation", author):
            await self._keep_evidence(evidence, author, height)

    async def _keep_evidence(self, evidence: Evidence, author: Id, height: int) -> None:
        self._accused[author] = max(height, self._accused.get(author, 0))
        if not await self._c.disk.run(self._c.store.put_evidence, evidence, author, height, self._c.clock.now_ms()):
            return  # one proof a slot is enough, whatever else its author signs
        log.warning("%s signed two different objects for one slot at height %d", self._c.get_name(author), height)
        self.peers.refuse(author, Reason.SIGNED_TWICE)
        if self._round is not None and self._round.machine.height == height:
            self._round.record.on_signed_twice(author, evidence.kind)
        self.gossip.push_evidence(evidence)
        self.events.publish("evidence", height=height, author=author.hex(), slot=evidence.kind.name.lower())

    # ---- commit

    async def _finalise(self, current: _Round, action: round_events.Finalise) -> None:
        block = action.block
        if not action.audited:
            log.warning("height %d followed by its certificate; its blobs are not here yet", block.height)
            self._auditor.add(block, self._tip.block)
        await self._append([FinalBlock(block, action.certificate)], current.payloads.get(block.header.aggregate))
        with self._c.boundary.around("record"):
            record = current.record
            record.on_final(block, action.certificate, self._c.clock.monotonic(), current.machine)
            self._records = {at: kept for at, kept in self._records.items() if at >= block.height - 2}
            self._records[block.height] = record
            self._publish_block(block, len(action.certificate.signatures))
        await self._begin()

    async def _append(self, blocks: Sequence[FinalBlock], aggregate: Aggregate | None = None) -> None:
        """Commit: the aggregate of the last, if it was computed here, then blocks, certificates and head in one
        transaction. `blocks` follow the tip.

        What came from peers while the blocks before these were written is those blocks', and stays, if they name it.
        """
        machine, first = self.machine, blocks[0].block.height
        seen: Collection[Contribution] = ()
        vain: Mapping[Id, VainWait] = {}
        if machine is not None and machine.height == first:
            seen, vain = machine.contributions.values(), machine.get_vain_waits(blocks[0].block, self._get_now())
        pulled = self.blobs.take_pulled() - self._just_named
        late = frozenset[Digest]().union(*(blobs.take_pulled() for blobs in self._behind))
        await self._c.disk.run(self._put_blocks, blocks, aggregate, tuple(seen), pulled, late)
        self._just_named = set[Digest]().union(*(get_block_digests(final.block) for final in blocks))
        if aggregate is not None:
            self._aggregates.on_new(aggregate)
        for final in blocks:
            self._count_waits(final.block.height, vain if final.block.height == first else {})
            self._tip = self._tip.extend(final.block)
            with self._c.boundary.around("record"):
                self.transfers.name(final.block.contributions, self._c.spec.get_streamed(final.block.height))

    def _count_waits(self, height: int, vain: Mapping[Id, VainWait]) -> None:
        for member in sorted(self.credits.on_final(height, vain)):
            self._tell_overdrawn(member)

    def _tell_overdrawn(self, member: Id) -> None:
        why = self.credits.explain(member)
        log.warning("%s is not awaited for some rounds: %s", self._c.get_name(member), why)
        self.events.publish("peer", peer=member.hex(), up=self.peers.is_connected(member), awaited=False, reason=why)

    def _put_blocks(
        self,
        blocks: Sequence[FinalBlock],
        aggregate: Aggregate | None,
        seen: tuple[Contribution, ...],
        pulled: frozenset[Digest],
        late: frozenset[Digest],
    ) -> None:
        """Runs on the disk's thread. What was `seen` and `pulled` was for the first of the blocks."""
        if aggregate is not None and aggregate.digest != ZERO:
            self._c.store.put_blob(aggregate.data)
        self._c.store.append_all([(final.block, final.certificate) for final in blocks])
        first, *others = blocks
        with self._c.boundary.around("retention"):
            self._retention.on_block(first.block, seen, pulled, late)
            for final in others:
                self._retention.on_block(final.block)

    def _publish_block(self, block: Block, num_votes: int) -> None:
        log.info(
            "block %d  %s by %s  %d contributions  %d votes  finalised",
            block.height,
            block.id.hex()[:8],
            self._c.get_name(block.header.miner),
            len(block.contributions),
            num_votes,
        )
        self.events.publish(
            "block",
            height=block.height,
            id=block.id.hex(),
            miner=block.header.miner.hex(),
            time_ms=block.header.time_ms,
            contributions=len(block.contributions),
            votes=num_votes,
        )

    async def _adopt(self, blocks: Sequence[FinalBlock]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(partial(self._append_adopted, blocks, done))
        await done

    async def _append_adopted(self, blocks: Sequence[FinalBlock], done: asyncio.Future[None]) -> None:
        tip = self._tip
        new: list[FinalBlock] = []
        for final in blocks:
            if final.block.height == tip.height + 1 and final.block.header.prev == tip.id:
                with self._c.boundary.around("audit"):
                    self._auditor.add(final.block, tip.block)
                new.append(final)
                tip = tip.extend(final.block)
        if new:
            before = self._tip.height
            await self._append(new)
            with self._c.boundary.around("record"):
                for final in new:
                    self._publish_block(final.block, len(final.certificate.signatures))
                log.info("caught up from height %d to %d", before, tip.height)
            await self._begin()
        if not done.done():
            done.set_result(None)

    # ---- read while training, taken, and applied

    async def _prepare(self, height: int, head: Block) -> Exchange:
        """What the worker's local phase for `height` reads of an earlier block."""
        gathered = Pulled(Exchange(head.id, self._me))  # where it fails, nobody's
        with self._c.boundary.around("shared sets"):
            gathered = await self._shared_sets.gather(height, head)
        current = self._round
        if self._c.spec.get_standing(height) and current is not None and current.machine.height == height:
            current.record.on_taken(gathered.pulled_bytes, gathered.reasons)
        return gathered.exchange

    async def _gather(self, block: Block) -> RoundInput:
        """What the worker needs of a final block: its aggregate, and what the method wants of single peers."""
        aggregate = await self._aggregates.get(block)
        taken = Pulled(Exchange(block.header.prev, self._me))  # where it fails, of nobody
        with self._c.boundary.around("blobs on demand"):
            taken = await self._on_demand.take(block, aggregate)
        record = self._records.get(block.height)
        if record is not None and get_kinds(self._c.spec, block.height):
            record.on_taken(taken.pulled_bytes, taken.reasons)
        return RoundInput(aggregate, taken.exchange)

    async def _recall(self, below: int) -> tuple[int, bytes] | None:
        """The newest aggregate below a height that is held here, with its own."""
        for height in range(below - 1, max(0, self._tip.height - RECALLED_HEIGHTS), -1):
            for block in await self._c.disk.run(self._read_blocks, height, height):
                if (aggregate := await self._aggregates.find(block)) is not None:
                    return height, aggregate
        return None

    def on_peer_refused(self, height: int, peer: Id, reason: str) -> None:
        name = self._c.get_name(peer)
        log.warning("round %d: what %s offered is not taken here, as it does harm: %s", height, name, reason)
        self.peers.refuse(peer, Reason.HARM)
        self._on_demand.leave_out(peer, height, reason)
        record = self._records.get(height)
        if record is not None:
            record.gone[peer] = f"does harm here: {reason}"
        self.events.publish("rejected", height=height, author=peer.hex(), reason=reason)

    def on_spoiled(self, height: int, reason: str) -> None:
        log.warning("round %d: its aggregate is spoiled, and this node goes on from its own model: %s", height, reason)
        record = self._records.get(height)
        if record is not None:
            record.spoiled = reason
        self.events.publish("spoiled", height=height, reason=reason)

    def _on_loss(self, loss: MissingAuthor) -> None:
        log.warning("round %d goes on without %s: %s", loss.height, self._c.get_name(loss.author), loss.why)
        if self.credits.charge(loss.author, loss.height, VainWait(loss.waited, loss.why)):
            self._tell_overdrawn(loss.author)
        if loss.is_fault:
            self.events.publish("rejected", height=loss.height, author=loss.author.hex(), reason=loss.why)

    def on_applied(self, height: int, metrics: Metrics) -> None:
        """The worker has applied the aggregate of `height`: the round is over, its record can be written."""
        with self._c.boundary.around("record"):
            self._end_record(height, metrics)

    def _end_record(self, height: int, metrics: Metrics) -> None:
        record = self._records.pop(height, None)
        if record is None:
            return
        sent = self._count_bytes_sent()
        refusals = self.get_refusals()
        record.on_applied(self._c.clock.monotonic(), dict(metrics), sent, refusals)
        if self._round is not None and self._round.machine.height == height + 1:
            self._round.record.bytes_before = sent  # it has begun already, and what was sent since is counted here
            self._round.record.refusals_before = refusals
        told = record.to_mapping()
        log.info(
            "round %d  accuracy %s  loss %s  %.2f s, of which training %.2f",
            height,
            show_measure(told["accuracy"]),
            show_measure(told["train"].get("loss")),
            told["seconds"]["wall"],
            told["seconds"]["train"],
        )
        self._queue.put_nowait(partial(self._write_record, height, told))

    async def _write_record(self, height: int, record: Mapping[str, Any]) -> None:
        with self._c.boundary.around("record"):
            await self._c.disk.run(self._c.store.put_round, height, record)
            self.events.publish("training", **record)

    def _count_bytes_sent(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for counters in self._c.transport.counters().values():
            for kind, traffic in counters.kinds.items():
                counts[kind] = counts.get(kind, 0) + traffic.bytes_sent
        return counts
