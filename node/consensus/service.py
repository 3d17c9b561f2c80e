"""Round service: one queue and one task, in which a node lives one height after the other.

Everything that happens to a height goes through the queue of `CurrentRound`, so `RoundMachine` sees one event at a time
and what it decides is done, and durable, before the next. `ActionExecutor` carries that out; the end of a height, with
its block for `Committer` and the round after it, is the service's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chain.block import Contribution, Id
from chain.calendar import get_next_place
from chain.tip import Tip
from node.boundary import Boundary
from node.clock import Clock
from node.consensus import actions
from node.consensus.auditor import Auditor
from node.consensus.authenticator import Authenticator
from node.consensus.awaiting import Awaiting
from node.consensus.commit import Committer
from node.consensus.contributor import Contributor
from node.consensus.convictions import Convictions
from node.consensus.credit import VainWait
from node.consensus.current import Adopted, CurrentRound, Posted
from node.consensus.evidence import EvidencePool
from node.consensus.executor import ActionExecutor
from node.consensus.gossip import Gossip
from node.consensus.handler import PeerHandler
from node.consensus.hints import AddressHints
from node.consensus.machine import RoundMachine
from node.consensus.member_clocks import MemberClocks
from node.consensus.neighbours import Neighbours
from node.consensus.opening import RoundOpener
from node.consensus.payload_wiring import Payloads
from node.consensus.proposals import ProposalBook
from node.consensus.published import PublishedRounds
from node.consensus.readiness import StandsReady
from node.consensus.record import Records
from node.consensus.recount import Recount
from node.consensus.reporter import RoundReporter
from node.consensus.round_tasks import AGAIN_S, RoundTasks
from node.consensus.scheduler import TrainingScheduler
from node.consensus.sightings import Sightings
from node.consensus.signer import SignedBefore, Signer
from node.consensus.silence import SilenceWatch
from node.consensus.stall import StallWatch
from node.consensus.sync import ChainsDiverge, FinalBlock, Sync
from node.consensus.upgrade import check_release
from node.events import Events
from node.p2p.peers import Peers
from node.p2p.refusals import Refusals
from node.p2p.transport.base import Transport
from node.payloads.checks import Aggregate
from node.training.learner import Learner
from node.training.local_work import LocalWork

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class RoundParts:
    """The parts of one node's rounds, as `node.consensus.wiring` puts them together."""

    clock: Clock
    clocks: MemberClocks
    boundary: Boundary
    transport: Transport
    peers: Peers
    events: Events
    payloads: Payloads
    current: CurrentRound
    signer: Signer
    committer: Committer
    awaiting: Awaiting
    proposals: ProposalBook
    opener: RoundOpener
    tasks: RoundTasks
    executor: ActionExecutor
    records: Records
    reporter: RoundReporter
    local_work: LocalWork
    gossip: Gossip
    sync: Sync
    evidence: EvidencePool
    authenticator: Authenticator
    handler: PeerHandler
    hints: AddressHints
    published: PublishedRounds
    neighbours: Neighbours
    learner: Learner
    scheduler: TrainingScheduler
    contributor: Contributor
    stall: StallWatch
    silence: SilenceWatch
    auditor: Auditor
    stands_ready: StandsReady
    convictions: Convictions
    sightings: Sightings
    recount: Recount


class RoundService:
    """One node's rounds, from the store's head on. `run` goes on until cancelled."""

    def __init__(self, parts: RoundParts) -> None:
        self.parts = parts
        self.peers = parts.peers  # these are here for status, metrics and the operator
        self.events = parts.events
        self.blobs = parts.payloads.blobs
        self.transfers = parts.payloads.transfers
        self.participation = parts.opener.participation
        self.restored = parts.opener.restored
        self.consent = parts.opener.consent
        self.standing = parts.opener.standing
        self.credits = parts.awaiting.credits
        self.local_work = parts.local_work
        self.clocks = parts.clocks  # and these are worked with
        self.current = parts.current
        self.signer = parts.signer
        self.proposals = parts.proposals
        self.opener = parts.opener
        self.tasks = parts.tasks
        self.records = parts.records
        self.gossip = parts.gossip
        self.handler = parts.handler
        self.hints = parts.hints
        self.published = parts.published
        self.neighbours = parts.neighbours
        self.learner = parts.learner
        self._clock = parts.clock
        self._boundary = parts.boundary
        self._transport = parts.transport
        self._committer = parts.committer
        self._awaiting = parts.awaiting
        self._executor = parts.executor
        self._reporter = parts.reporter
        self._scheduler = parts.scheduler
        self._contributor = parts.contributor
        self._sync = parts.sync
        self._stall = parts.stall
        self._silence = parts.silence
        self._auditor = parts.auditor
        self._stands_ready = parts.stands_ready
        self._convictions = parts.convictions
        self._sightings = parts.sightings
        self._recount = parts.recount
        self._relayed = parts.payloads.relayed

    # ---- for status and admin

    @property
    def tip(self) -> Tip:
        return self.current.tip

    @property
    def machine(self) -> RoundMachine | None:
        """The round in hand; None while there is none, as the set rounds are over."""
        machine = self.current.machine
        return None if machine is None or machine.is_idle else machine

    @property
    def stall(self) -> str | None:
        """Why no height can be finalised now, or is not though it could be; None while all is well."""
        return self._stall.reason

    @property
    def other_history(self) -> str | None:
        """Another history than this node's, below its head, that a peer has proved; None where none has."""
        return self._sync.other_history

    @property
    def num_iterations(self) -> int:
        """E of the round in hand."""
        return self._scheduler.num_iterations

    @property
    def is_done(self) -> bool:
        """Whether the set rounds are over: the node keeps serving, and only a change makes a block."""
        return not self.tip.state.has_round(self.tip.height + 1)

    def describe_not_awaited(self) -> dict[Id, str]:
        """Whose contribution this node does not wait for in the round in hand, and why."""
        return self._awaiting.describe(self.machine)

    def get_refusals(self) -> dict[Id, Refusals]:
        """What was not taken since the node started, of each peer of which there is such."""
        return self.records.get_refusals()

    def __repr__(self) -> str:
        return f"<RoundService {self.signer.id.hex()[:8]}: {self.current!r}>"

    # ---- running

    async def run(self) -> None:
        """Everything of this node that waits. Raises Halted, or what the store raises when it can go no further."""
        await self._committer.raise_if_diverged()
        self.neighbours.look()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._transport.run(self.handler), name="transport")
                group.create_task(self.learner.run(), name="learner")
                group.create_task(self._keep("status", self.gossip.run), name="gossip")
                group.create_task(self._keep("hints", self.hints.run), name="hints")
                group.create_task(self._keep("measures", self.published.run), name="published")
                group.create_task(self._keep("neighbours", self.neighbours.run), name="neighbours")
                group.create_task(self._run_sync(), name="sync")
                group.create_task(self._keep("stall", self._stall.run), name="stall")
                group.create_task(self._keep("silence", self._silence.run), name="silence")
                group.create_task(self._keep("readiness", self._stands_ready.run), name="readiness")
                group.create_task(self._keep("convictions", self._convictions.run), name="convictions")
                group.create_task(self._keep("sightings", self._sightings.run), name="sightings")
                group.create_task(self._keep("relayed blobs", self._relayed.run), name="relayed")
                group.create_task(self._auditor.run(), name="auditor")
                group.create_task(self._auditor.audit_imported(self.tip.height), name="imported")
                group.create_task(self._decide(), name="rounds")
        finally:
            self._committer.abandon()

    async def _keep(self, what: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What speaks of others' objects, and decides nothing, begins anew after an error that nobody foresaw."""
        while True:
            with self._boundary.around(what):
                await run()
            await asyncio.sleep(AGAIN_S)

    async def _run_sync(self) -> None:
        try:
            await self._sync.run()
        except ChainsDiverge as error:
            await self._committer.halt(error)

    async def _decide(self) -> None:
        try:
            await self._begin()
            while True:
                match await self.current.next():
                    case Posted(height, event):
                        if self.current.machine is not None and height == self.current.machine.height:
                            await self._handle(self.current.machine, event)
                    case Adopted(blocks, done):
                        await self._adopt(blocks, done)
                    case step:
                        await step()
        finally:
            self.tasks.cancel()

    # ---- a height begins

    async def _begin(self) -> None:
        """Take up the height after the head, with whatever of it is durable here already."""
        ended, seen = self.current.machine, frozenset[Id]()
        if ended is not None:
            self._scheduler.measure()
            self.opener.crossing.add(ended.apart_s)
            seen = frozenset(ended.verified if ended.height == self.tip.height else ())
        self.tasks.cancel()
        self.signer.require_in_force(self.tip.state)
        tip, height = self.tip, self.tip.height + 1
        check_release(tip, self.peers)
        self.handler.on_height(height)
        self._relayed.on_block(tip.block)
        await self._recount.catch_up()
        is_done = self.is_done
        collect_s = self.tasks.get_collect_s(height)
        machine = await self.opener.open(tip, collect_s, seen=seen, is_behind=self._sync.is_behind)
        self.tasks.begin(tip)
        is_closing = self.tip.state.run.is_closing(height)
        if is_done or is_closing:  # what was measured of the last round is that round's
            self.records.end()
        else:
            place = get_next_place(tip.state, tip.height)
            goes_on = tip.block.change is not None or self.opener.masking.is_opening(height)
            self.records.begin(height, place, goes_on=goes_on)
        self.current.machine = machine
        before = await self.signer.load_before(height)
        self.gossip.on_height()
        await self._handle(machine, before.started)
        for block in before.locked:
            self.current.post(height, actions.CandidateSeen(block))
        self._executor.resend(before.own)
        self.handler.release()
        if is_done:
            self._scheduler.end()
        else:
            is_renewed = machine.contributes and await self._renew(before)
            is_untrained = self._is_untrained(height)
            if machine.contributes and not is_renewed and before.started.contribution is None and is_untrained:
                self.tasks.send_untrained(tip)
            self._scheduler.begin(machine, before, is_renewed=is_renewed, trains=not (is_untrained or is_closing))
            await self._contributor.close()
        if self.current.machine is not None:
            self._reporter.publish_phase(self.current.machine)

    def _is_untrained(self, height: int) -> bool:
        """Whether there is something to send at this height that nothing is trained for."""
        return self.opener.masking.has_to_send(height) or self.tip.state.run.is_evaluating(height)

    async def _renew(self, before: SignedBefore) -> bool:
        """Whether what was contributed to the same round, before a change took its height, counts for this one."""
        return before.started.contribution is None and await self._contributor.renew()

    async def resume(self) -> None:
        """Has the round in hand contributed to, if it is not already: while all pause there is none after it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.current.call(partial(self._resume, done))
        await done

    async def _resume(self, done: asyncio.Future[None]) -> None:
        machine = self.current.machine
        place = get_next_place(self.tip.state, self.tip.height)
        if machine is not None and machine.abstains and self.opener.may_contribute_to(place):
            await self._handle(machine, actions.Resumed())
            if self._is_untrained(machine.height):
                self.tasks.send_untrained(self.tip)
            elif self.tip.state.run.is_closing(machine.height):
                await self._contributor.close()
            else:
                self._scheduler.resume(machine)
            self.gossip.on_step()
        if not done.done():
            done.set_result(None)

    # ---- events in, actions out

    async def _handle(self, machine: RoundMachine, event: actions.Event) -> None:
        """One event of the round in hand, and all that follows from it."""
        phase = machine.phase
        decided: Sequence[actions.Action] = ()
        is_own = isinstance(event, actions.Started)  # of what is durable here: in doubt nothing is signed
        source = actions.get_source(event)
        with self._boundary.around("event", source, passing=(Exception,) if is_own else ()):
            decided = machine.on(event, self._get_now())
        self._reporter.on_event(machine, event)
        if machine.phase is not phase:
            self._reporter.publish_phase(machine)
        for action in decided:
            if self.current.machine is not machine:
                break  # an earlier action has finalised the height
            if isinstance(action, actions.Finalise):
                await self._finalise(machine, action)
            elif (heard := await self._executor.execute(machine.height, action)) is not None:
                await self._handle(machine, heard)
        if decided:
            self.gossip.on_step()

    def _get_now(self) -> actions.Now:
        return actions.Now(self._clock.monotonic(), self.clocks.now_ms())

    # ---- blocks that are final

    async def _finalise(self, machine: RoundMachine, action: actions.Finalise) -> None:
        block, final = action.block, FinalBlock(action.block, action.certificate)
        if not action.audited:
            log.warning("height %d followed by its certificate; its blobs are not here yet", block.height)
            self._auditor.add(block, self.tip.block)
        await self._append([final], self.tasks.get_aggregate(block.header.aggregate))
        self._reporter.on_final(machine, final)
        await self._begin()

    async def _adopt(self, blocks: Sequence[FinalBlock], done: asyncio.Future[None]) -> None:
        new, machine = self._committer.choose_next(blocks), self.current.machine
        if new:
            parents = [self.tip.block, *(final.block for final in new)]
            for parent, final in zip(parents, new, strict=False):
                with self._boundary.around("audit"):
                    self._auditor.add(final.block, parent)
            await self._append(new)
            self._reporter.on_adopted(machine, new)
            await self._begin()
        if not done.done():
            done.set_result(None)

    async def _append(self, blocks: Sequence[FinalBlock], aggregate: Aggregate | None = None) -> None:
        machine, first = self.current.machine, blocks[0].block
        seen: Collection[Contribution] = ()
        vain: Mapping[Id, VainWait] = {}
        if machine is not None and machine.height == first.height:
            seen, vain = machine.contributions.values(), machine.collecting.get_vain_waits(first, self._get_now())
        await self._committer.append(blocks, aggregate, seen)
        for final in blocks:
            self._awaiting.on_final(final.block.height, vain if final.block is first else {})
