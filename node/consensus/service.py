"""Round service: one queue and one task, which takes a node from one height to the next.

Every event of a height goes through the queue of `CurrentRound`. So `RoundMachine` sees one event at a time, and its
actions are done and durable before the next. `ActionExecutor` carries out the actions. The service itself ends the
height: it has `Committer` commit the block, and begins the next round.
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
from node.consensus.commit import Committer
from node.consensus.context import RoundContext
from node.consensus.executor import ActionExecutor
from node.consensus.gossip.sync import ChainsDiverge
from node.consensus.gossip_parts import GossipParts
from node.consensus.governance.upgrade import check_release
from node.consensus.governance_parts import GovernanceParts
from node.consensus.handler import PeerHandler
from node.consensus.height import actions
from node.consensus.height.credit import VainWait
from node.consensus.height.current import Adopted, Posted
from node.consensus.height.final_block import FinalBlock
from node.consensus.height.machine import RoundMachine
from node.consensus.learning_parts import LearningParts
from node.consensus.opening import RoundOpener
from node.consensus.payload_wiring import Payloads
from node.consensus.record.stall import StallWatch
from node.consensus.reporter import RoundReporter
from node.consensus.round_tasks import AGAIN_S, RoundTasks
from node.consensus.signing.signer import SignedBefore
from node.p2p.refusals import Refusals
from node.payloads.checks import Aggregate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class RoundParts:
    """Holds the parts of one node's rounds; `node.consensus.wiring` makes them."""

    context: RoundContext
    gossip: GossipParts
    payloads: Payloads
    governance: GovernanceParts
    learning: LearningParts
    committer: Committer
    opener: RoundOpener
    tasks: RoundTasks
    executor: ActionExecutor
    handler: PeerHandler
    reporter: RoundReporter
    stall: StallWatch


class RoundService:
    """Runs one node's rounds from the store's head on. `run` goes on until cancelled."""

    def __init__(self, parts: RoundParts) -> None:
        context, gossip, governance, learning = parts.context, parts.gossip, parts.governance, parts.learning
        self.parts = parts
        self.peers = context.peers  # the attributes from here on are for status, metrics and the operator
        self.events = context.events
        self.blobs = parts.payloads.blobs
        self.transfers = parts.payloads.transfers
        self.participation = parts.opener.participation
        self.restored = parts.opener.restored
        self.consent = governance.consent
        self.own_membership = governance.own_membership
        self.credits = gossip.awaiting.credits
        self.local_work = learning.local_work
        self.published = gossip.published
        self.clocks = gossip.clocks  # and those from here on for the daemon and this class
        self.current = context.current
        self.signer = context.signer
        self.proposals = governance.proposals
        self.opener = parts.opener
        self.tasks = parts.tasks
        self.records = context.records
        self.gossip = gossip.gossip
        self.handler = parts.handler
        self.hints = gossip.hints
        self.learner = learning.learner
        self._clock = context.node.clock
        self._boundary = context.node.boundary
        self._committer = parts.committer
        self._executor = parts.executor
        self._reporter = parts.reporter
        self._scheduler = learning.scheduler
        self._contributor = learning.contributor
        self._auditor = learning.auditor
        self._sync = gossip.sync

    # ---- for status and admin

    @property
    def tip(self) -> Tip:
        return self.current.tip

    @property
    def machine(self) -> RoundMachine | None:
        """Returns the machine of the round in hand; None if there is no round, since the set rounds are over."""
        machine = self.current.machine
        return None if machine is None or machine.is_idle else machine

    @property
    def stall(self) -> str | None:
        """Says why no height can be finalised now, or why one takes too long; None while all is well."""
        return self.parts.stall.reason

    @property
    def other_history(self) -> str | None:
        """Describes another history below this node's head that a peer has proved; None if none has."""
        return self._sync.other_history

    @property
    def num_iterations(self) -> int:
        """Returns E, the number of iterations of the round in hand."""
        return self._scheduler.num_iterations

    @property
    def is_done(self) -> bool:
        """Says whether the set rounds are over: the node goes on serving, and only a change makes a block."""
        return not self.tip.state.has_round(self.tip.height + 1)

    def describe_not_awaited(self) -> dict[Id, str]:
        """Returns the members whose contribution this node does not await in the round in hand, each with the
        reason."""
        return self.parts.gossip.awaiting.describe(self.machine)

    def get_refusals(self) -> dict[Id, Refusals]:
        """Returns the counts of what was refused since the node started, of each peer that has any."""
        return self.records.get_refusals()

    def __repr__(self) -> str:
        return f"<RoundService {self.signer.id.hex()[:8]}: {self.current!r}>"

    # ---- running

    async def run(self) -> None:
        """Runs all tasks of this node. Raises Halted, or an error of the store that the node cannot go on with."""
        parts, gossip, governance = self.parts, self.parts.gossip, self.parts.governance
        await self._committer.raise_if_diverged()
        gossip.neighbours.look()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(parts.context.node.transport.run(self.handler), name="transport")
                group.create_task(self.learner.run(), name="learner")
                group.create_task(self._keep("status", self.gossip.run), name="gossip")
                group.create_task(self._keep("hints", self.hints.run), name="hints")
                group.create_task(self._keep("measures", self.published.run), name="published")
                group.create_task(self._keep("neighbours", gossip.neighbours.run), name="neighbours")
                group.create_task(self._run_sync(), name="sync")
                group.create_task(self._keep("stall", parts.stall.run), name="stall")
                group.create_task(self._keep("silence", gossip.silence.run), name="silence")
                group.create_task(self._keep("readiness", governance.stands_ready.run), name="readiness")
                group.create_task(self._keep("convictions", governance.convictions.run), name="convictions")
                group.create_task(self._keep("sightings", gossip.last_seen.run), name="sightings")
                group.create_task(self._keep("relayed blobs", parts.payloads.relayed.run), name="relayed")
                group.create_task(self._auditor.run(), name="auditor")
                group.create_task(self._auditor.audit_imported(self.tip.height), name="imported")
                group.create_task(self._decide(), name="rounds")
        finally:
            self._committer.abandon()

    async def _keep(self, what: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a part that decides nothing, and restarts it after an unforeseen error."""
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
        """Begins the height after the head, with those of its objects that are in the store already."""
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
        self.parts.payloads.relayed.on_block(tip.block)
        await self.parts.learning.recount.catch_up()
        is_done = self.is_done
        collect_s = self.tasks.get_collect_s(height)
        machine = await self.opener.open(tip, collect_s, seen=seen, is_behind=self._sync.is_behind)
        self.tasks.begin(tip)
        is_closing = self.tip.state.run.is_closing(height)
        if is_done or is_closing:  # later measurements do not belong to the last round
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
        """Says whether something has to be sent at this height without training."""
        return self.opener.masking.has_to_send(height) or self.tip.state.run.is_evaluating(height)

    async def _renew(self, before: SignedBefore) -> bool:
        """Signs the contribution of the same round again, if a change took the height it was made for. Returns whether
        there was such a contribution."""
        return before.started.contribution is None and await self._contributor.renew()

    async def resume(self) -> None:
        """Makes this node contribute to the round in hand if it does not yet. It cannot wait for the next round: while
        all members pause, there is none."""
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
        """Handles one event of the round in hand, and all events that follow from it."""
        phase = machine.phase
        decided: Sequence[actions.Action] = ()
        is_own = isinstance(event, actions.Started)  # it comes from the store: in doubt nothing is signed
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
            self.parts.gossip.awaiting.on_final(final.block.height, vain if final.block is first else {})
