"""Carries out what `RoundMachine` decides: one queue, one task.

Everything that happens to a height goes through the queue of `CurrentRound`, so the machine sees one event at a time
and what it decides is done, and durable, before the next. Slow work runs beside it (`RoundTasks`) and reports back
through the queue. What is signed goes through `Signer`, what is final through `Committer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chain.block import Block, Contribution, Id, Phase, Vote
from chain.genesis import Genesis
from chain.tip import Tip
from ml.specs import MethodSpec
from node.boundary import Boundary
from node.clock import Clock
from node.consensus import actions
from node.consensus.auditor import Auditor
from node.consensus.awaiting import Awaiting
from node.consensus.commit import Committer
from node.consensus.credit import VainWait
from node.consensus.current import Adopted, CurrentRound, Posted
from node.consensus.evidence import EvidencePool
from node.consensus.gossip import Gossip
from node.consensus.halted import Halted
from node.consensus.handler import PeerHandler
from node.consensus.machine import RoundMachine
from node.consensus.member_clocks import MemberClocks
from node.consensus.opening import RoundOpener
from node.consensus.record import Records, RoundRecord
from node.consensus.round_tasks import AGAIN_S, RoundTasks
from node.consensus.signer import SignedBefore, Signer
from node.consensus.stall import StallWatch
from node.consensus.sync import ChainsDiverge, FinalBlock, Sync
from node.events import Events
from node.p2p.peers import Peers
from node.p2p.refusals import Refusals
from node.p2p.transport.base import Transport
from node.payloads.checks import Aggregate
from node.payloads.fetcher import BlobFetcher
from node.payloads.transfers import Transfers
from node.training.learner import Learner, Target
from node.training.local_work import LocalWork

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class RoundParts:
    """The parts of one node's rounds, as `node.consensus.wiring` puts them together."""

    genesis: Genesis
    spec: MethodSpec
    clock: Clock
    clocks: MemberClocks
    boundary: Boundary
    transport: Transport
    peers: Peers
    events: Events
    blobs: BlobFetcher
    transfers: Transfers
    current: CurrentRound
    signer: Signer
    committer: Committer
    evidence: EvidencePool
    awaiting: Awaiting
    opener: RoundOpener
    tasks: RoundTasks
    records: Records
    local_work: LocalWork
    gossip: Gossip
    sync: Sync
    handler: PeerHandler
    learner: Learner
    stall: StallWatch
    auditor: Auditor


class RoundService:
    """One node's rounds, from the store's head on. `run` goes on until cancelled."""

    def __init__(self, parts: RoundParts) -> None:
        self.peers = parts.peers
        self.events = parts.events
        self.clocks = parts.clocks
        self.blobs = parts.blobs
        self.transfers = parts.transfers
        self.current = parts.current
        self.signer = parts.signer
        self.awaiting = parts.awaiting
        self.opener = parts.opener
        self.tasks = parts.tasks
        self.participation = parts.opener.participation
        self.restored = parts.opener.restored
        self.credits = parts.awaiting.credits
        self.records = parts.records
        self.local_work = parts.local_work
        self.gossip = parts.gossip
        self.handler = parts.handler
        self.learner = parts.learner
        self.num_iterations = parts.spec.get_local_work(parts.current.tip.height + 1)  # E of the round in hand
        self._genesis = parts.genesis
        self._spec = parts.spec
        self._clock = parts.clock
        self._boundary = parts.boundary
        self._transport = parts.transport
        self._committer = parts.committer
        self._evidence = parts.evidence
        self._sync = parts.sync
        self._stall = parts.stall
        self._auditor = parts.auditor

    # ---- for status and admin

    @property
    def tip(self) -> Tip:
        return self.current.tip

    @property
    def machine(self) -> RoundMachine | None:
        return self.current.machine

    @property
    def stall(self) -> str | None:
        """Why no height can be finalised now, or is not though it could be; None while all is well."""
        return self._stall.reason

    @property
    def is_done(self) -> bool:
        """Whether the set rounds are over: the node keeps serving and contributes no more."""
        return self._genesis.rounds != 0 and self.tip.height >= self._genesis.rounds

    def describe_not_awaited(self) -> dict[Id, str]:
        """Whose contribution this node does not wait for in the round in hand, and why."""
        return self.awaiting.describe(self.machine)

    def get_refusals(self) -> dict[Id, Refusals]:
        """What was not taken since the node started, of each peer of which there is such."""
        return self.records.get_refusals()

    def __repr__(self) -> str:
        return f"<RoundService {self.signer.id.hex()[:8]}: {self.current!r}>"

    # ---- running

    async def run(self) -> None:
        """Everything of this node that waits. Raises Halted, or what the store raises when it can go no further."""
        await self._committer.raise_if_diverged()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._transport.run(self.handler), name="transport")
                group.create_task(self.learner.run(), name="learner")
                group.create_task(self._keep("status", self.gossip.run), name="gossip")
                group.create_task(self._run_sync(), name="sync")
                group.create_task(self._keep("stall", self._stall.run), name="stall")
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
                        if self.machine is not None and height == self.machine.height:
                            await self._handle(self.machine, event)
                    case Adopted(blocks, done):
                        await self._adopt(blocks, done)
                    case step:
                        await step()
        finally:
            self.tasks.cancel()

    # ---- a height begins

    async def _begin(self) -> None:
        """Take up the height after the head, with whatever of it is durable here already."""
        self._measure()
        self.tasks.cancel()
        tip, height = self.tip, self.tip.height + 1
        self.handler.on_height(height)
        if self.is_done:
            self.current.machine = None
            self.records.end()
            self.gossip.on_height()
            self.learner.set_target(Target(tip.block, trains=False))
            return
        collect_s = self.tasks.get_collect_s(height)
        machine = await self.opener.open(tip, collect_s, is_behind=self._sync.is_behind)
        self.tasks.begin(tip)
        self.records.begin(height)
        self.current.machine = machine
        before = await self.signer.load_before(height)
        self.gossip.on_height()
        await self._handle(machine, before.started)
        for block in before.locked:
            self.current.post(height, actions.CandidateSeen(block))
        for thing in before.own:
            self._push(thing)
        self.handler.release()
        self._set_target(machine, before)
        self._publish_phase()

    def _measure(self) -> None:
        """What the round that ends has taken, for the choices of the next."""
        machine, record = self.machine, self.records.current
        if machine is None or record is None:
            return
        self.local_work.add_round(record.train, record.beta_s, self.learner.progress, self.num_iterations)
        self.opener.crossing.add(machine.apart_s)

    def _set_target(self, machine: RoundMachine, before: SignedBefore) -> None:
        """Has the worker train for this height, unless it has been trained for in an earlier life."""
        chosen = before.num_iterations or self.local_work.choose_iterations()
        self.num_iterations = chosen or self._spec.get_local_work(machine.height)
        has_contributed = before.started.contribution is not None
        is_over = has_contributed and machine.height <= self._spec.sharing_heights  # nothing is left but what is signed
        self.learner.set_target(
            Target(
                self.tip.block,
                trains=machine.contributes and not is_over,
                has_contributed=has_contributed,
                num_iterations=chosen,
            )
        )

    async def resume(self) -> None:
        """Has the round in hand contributed to, if it is not already: while all pause there is none after it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.current.call(partial(self._resume, done))
        await done

    async def _resume(self, done: asyncio.Future[None]) -> None:
        machine = self.machine
        if machine is not None and machine.abstains and self.participation.contributes_to(machine.height):
            await self._handle(machine, actions.Resumed())
            chosen = self.local_work.choose_iterations()
            self.num_iterations = chosen or self._spec.get_local_work(machine.height)
            self.learner.set_target(Target(self.tip.block, trains=True, num_iterations=chosen))
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
        with self._boundary.around("record"):
            self._note(machine, event)
        if machine.phase is not phase:
            self._publish_phase()
        for action in decided:
            if self.machine is not machine:
                break  # an earlier action has finalised the height
            await self._perform(machine, action)
        if decided:
            self.gossip.on_step()

    def _get_now(self) -> actions.Now:
        return actions.Now(self._clock.monotonic(), self.clocks.now_ms())

    def _note(self, machine: RoundMachine, event: actions.Event) -> None:
        """Remember since when things are held, and when the round's phases ended."""
        record, now_s = self._get_record(), self._clock.monotonic()
        match event:
            case actions.ContributionSeen(contribution):
                self.gossip.on_held(contribution)
                if contribution.author == self.signer.id:
                    record.mark("contributed", now_s)
            case actions.CandidateSeen(block) | actions.Mined(block):
                self.gossip.on_held(block.id)
            case actions.VoteSeen(vote):
                self.gossip.on_held(vote.slot)
            case actions.CandidateValidated(block) | actions.CandidateRefused(block):
                objection = machine.objections.get(block.id)
                if objection is not None and objection.kind is not None:
                    self.peers.refuse(block.header.miner, objection.kind)
            case _:
                pass
        if machine.is_cut_off:
            record.mark("cutoff", now_s)
        if machine.is_satisfied:
            record.mark("candidate", now_s)

    def _get_record(self) -> RoundRecord:
        assert self.records.current is not None  # noqa: S101 - only asked for while a round is in hand
        return self.records.current

    def _publish_phase(self) -> None:
        machine = self.machine
        if machine is not None:
            self.events.publish("round", height=machine.height, phase=machine.phase.value, view=machine.view)

    async def _perform(self, machine: RoundMachine, action: actions.Action) -> None:
        match action:
            case actions.FetchPayloads(contribution):
                self.tasks.fetch_payloads(contribution)
            case actions.ComputeAggregate(contributions):
                self.tasks.compute_aggregate(contributions)
            case actions.Mine(contributions, aggregate):
                self.tasks.start_mining(self.tip, contributions, aggregate)
            case actions.StopMining():
                self.tasks.stop_mining()
            case actions.CheckCandidate(block):
                self.tasks.check_candidate(block)
            case actions.CastVote():
                await self._cast(machine, action)
            case actions.FetchBlock():
                with self._boundary.around("status"):
                    self.gossip.send_status()  # whoever sees that we lack it pushes it
            case actions.StartTimer(timer, after_s):
                self.tasks.start_timer(timer, after_s)
            case actions.Accuse(evidence, author):
                await self._evidence.accuse(evidence, author, machine.height)
            case actions.Finalise():
                await self._finalise(machine, action)
            case actions.Halt(reason):
                raise Halted(reason)

    async def _cast(self, machine: RoundMachine, action: actions.CastVote) -> None:
        vote = await self.signer.sign_vote(machine.height, action)
        if action.cast.phase is Phase.PREVOTE:
            for prevote in action.cast.justification:
                self.gossip.push_vote(prevote)
        self.gossip.push_vote(vote)
        await self._handle(machine, actions.VoteSeen(vote))

    def _push(self, thing: Contribution | Block | Vote) -> None:
        match thing:
            case Contribution():
                self.gossip.push_contribution(thing)
            case Block():
                self.gossip.push_block(thing)
            case Vote():
                self.gossip.push_vote(thing)

    # ---- blocks that are final

    async def _finalise(self, machine: RoundMachine, action: actions.Finalise) -> None:
        block, record = action.block, self._get_record()
        if not action.audited:
            log.warning("height %d followed by its certificate; its blobs are not here yet", block.height)
            self._auditor.add(block, self.tip.block)
        await self._append([FinalBlock(block, action.certificate)], self.tasks.get_aggregate(block.header.aggregate))
        with self._boundary.around("record"):
            record.on_final(block, action.certificate, self._clock.monotonic(), machine)
            self.records.keep(record)
            self._publish_block(block, len(action.certificate.signatures))
        await self._begin()

    async def _adopt(self, blocks: Sequence[FinalBlock], done: asyncio.Future[None]) -> None:
        before = self.tip
        new = self._committer.choose_next(blocks)
        if new:
            parents = [before.block, *(final.block for final in new)]
            for parent, final in zip(parents, new, strict=False):
                with self._boundary.around("audit"):
                    self._auditor.add(final.block, parent)
            await self._append(new)
            with self._boundary.around("record"):
                for final in new:
                    self._publish_block(final.block, len(final.certificate.signatures))
                log.info("caught up from height %d to %d", before.height, self.tip.height)
            await self._begin()
        if not done.done():
            done.set_result(None)

    async def _append(self, blocks: Sequence[FinalBlock], aggregate: Aggregate | None = None) -> None:
        machine, first = self.machine, blocks[0].block
        seen: Collection[Contribution] = ()
        vain: Mapping[Id, VainWait] = {}
        if machine is not None and machine.height == first.height:
            seen, vain = machine.contributions.values(), machine.get_vain_waits(first, self._get_now())
        await self._committer.append(blocks, aggregate, seen)
        for final in blocks:
            self.awaiting.on_final(final.block.height, vain if final.block is first else {})

    def _publish_block(self, block: Block, num_votes: int) -> None:
        log.info(
            "block %d  %s by %s  %d contributions  %d votes  finalised",
            block.height,
            block.id.hex()[:8],
            self.peers.get_name(block.header.miner),
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
