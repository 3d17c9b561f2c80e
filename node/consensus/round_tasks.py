"""The slow work of the height in hand: fetching blobs, computing aggregates, checking candidates, mining, and timers.

Each task posts an event when it is done. If a peer's bytes cause an unforeseen error, those bytes are refused. When the
height ends, all tasks are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from chain import validation
from chain.block import ApprovedChange, Block, Body, Contribution, Digest
from chain.changes.change import Change, read_change
from chain.changes.execution import get_aggregate
from chain.changes.runs import StartRun
from chain.errors import InvalidChange, ValidationError
from chain.tip import Tip
from node.boundary import UNFORESEEN, Boundary
from node.consensus.gossip.gossip import Gossip
from node.consensus.governance.initial_models import InitialModelRefused, InitialModels
from node.consensus.height import actions
from node.consensus.height.current import CurrentRound
from node.consensus.payload_wiring import Payloads
from node.events import Events
from node.p2p.peers import Peers
from node.p2p.refusals import Reason, get_reason
from node.payloads.checks import Aggregate, PayloadRefused, RoundPayloads
from node.runs.specs import RunRound, RunSpecs

log = logging.getLogger(__name__)

UNKNOWN_METHOD = "this release does not know its method"
AGAIN_S = 1.0  # between two attempts after an unforeseen error

Mine = Callable[[Tip, Body, Digest], Awaitable[Block]]


class RoundTasks:
    """Runs the slow work of one node. `mine` returns a signed and durable candidate. `send_untrained` sends the
    contribution of a height at which nothing is trained."""

    def __init__(
        self,
        current: CurrentRound,
        runs: RunSpecs,
        payloads: Payloads,
        initial_models: InitialModels,
        *,
        mine: Mine,
        send_untrained: Callable[[Tip, RunRound], Awaitable[None]],
        gossip: Gossip,
        peers: Peers,
        events: Events,
        boundary: Boundary,
    ) -> None:
        self._current = current
        self._runs = runs
        self._make_payloads = payloads.make_round
        self._blobs = payloads.blobs
        self._transfers = payloads.transfers
        self._initial_models = initial_models
        self._mine = mine
        self._send_untrained = send_untrained
        self._gossip = gossip
        self._peers = peers
        self._events = events
        self._boundary = boundary
        self._height = 0
        self._round: RunRound | None = None  # None: there is no round, or this release does not know its method
        self._payloads: RoundPayloads | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._mining: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Returns the number of running tasks."""
        return len(self._tasks)

    # ---- a height begins, and ends

    def begin(self, tip: Tip) -> None:
        """Prepares for the height after `tip`."""
        self.cancel()
        self._height = tip.height + 1
        self._round = self._runs.find(self._height)
        self._payloads = None if self._round is None else self._make_payloads(tip, self._round)
        if (why := self._runs.explain_unknown(self._height)) is not None:
            log.error("height %d is not judged here, and followed: %s", self._height, why)

    def cancel(self) -> None:
        """Cancels all work, since the height is over."""
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._timers, self._tasks, self._mining, self._payloads = [], set(), None, None
        self._blobs.abandon()

    def get_aggregate(self, digest: Digest) -> Aggregate | None:
        """Returns the aggregate with this digest, if it was computed here for this height."""
        return None if self._payloads is None else self._payloads.get(digest)

    def get_collect_s(self, height: int) -> float:
        """Returns for how many seconds contributions of this height and their payloads are awaited."""
        round_ = self._runs.find(height)
        return self._current.tip.state.rules.waits.collect_s if round_ is None else round_.collect_s

    # ---- work that begins

    def send_untrained(self, tip: Tip) -> None:
        """Starts to send this member's contribution without training: in a run of masked sums, or at the end of a
        run."""
        if self._round is not None:
            self._spawn(self._try_sending(tip, self._round))

    async def _try_sending(self, tip: Tip, round_: RunRound) -> None:
        while True:
            with self._boundary.around("what is not trained for"):
                await self._send_untrained(tip, round_)
                return
            await asyncio.sleep(AGAIN_S)

    def fetch_payloads(self, contribution: Contribution) -> None:
        """Starts to fetch and check the payloads of a contribution."""
        if self._payloads is not None:
            self._spawn(self._fetch_payloads(self._height, self._payloads, contribution))

    def compute_aggregate(self, contributions: tuple[Contribution, ...]) -> None:
        """Starts to compute the aggregate of this node's candidate."""
        if self._payloads is not None:
            self._spawn(self._compute_aggregate(self._height, self._payloads, contributions))

    def start_mining(self, tip: Tip, contributions: tuple[Contribution, ...], aggregate: Digest) -> None:
        """Starts to mine this node's candidate."""
        self._mining = self._spawn(self._mine_and_push(tip, Body(contributions), aggregate))

    def start_mining_change(self, tip: Tip, change: ApprovedChange) -> None:
        """Starts to mine a candidate of this node that holds a change."""
        aggregate = get_aggregate(read_change(change.change), tip.header.aggregate)
        self._mining = self._spawn(self._mine_and_push(tip, Body(change=change), aggregate))

    def stop_mining(self) -> None:
        """Stops mining this node's candidate."""
        if self._mining is not None:
            self._mining.cancel()

    def check_candidate(self, block: Block) -> None:
        """Starts to recompute a candidate. A change was checked before, except the model that it may name."""
        if block.change is not None:
            self._spawn(self._check_change(block, read_change(block.change.change)))
            return
        if self._payloads is None:
            self._current.post(block.height, actions.CandidateRefused(block, UNKNOWN_METHOD, wrong=False))
            return
        self._spawn(self._check_candidate(self._payloads, block))

    def start_timer(self, timer: actions.Timer, after_s: float) -> None:
        """Starts a timer; when it fires, the machine is notified."""
        loop, height = asyncio.get_running_loop(), self._height
        self._timers = [handle for handle in self._timers if handle.when() >= loop.time()]  # still to fire
        self._timers.append(loop.call_later(after_s, self._current.post, height, actions.TimerFired(timer)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._current.fail(error)

    # ---- payloads

    async def _fetch_payloads(self, height: int, payloads: RoundPayloads, contribution: Contribution) -> None:
        with self._boundary.around("payloads", contribution.author) as crossing:
            await self._try_fetch_payloads(height, payloads, contribution)
        if crossing.failure is not None:
            self._current.post(height, actions.PayloadsRefused(contribution, UNFORESEEN))

    async def _try_fetch_payloads(self, height: int, payloads: RoundPayloads, contribution: Contribution) -> None:
        if self._round is not None:
            self._transfers.name([contribution], self._round.spec.get_streamed(self._round.number))
        try:
            await payloads.ensure(contribution)
        except PayloadRefused as error:
            log.warning("contribution of %s refused: %s", self._peers.get_name(contribution.author), error)
            self._peers.refuse(contribution.author, Reason.PAYLOAD)
            self._events.publish("rejected", height=height, author=contribution.author.hex(), reason=str(error))
            self._current.post(height, actions.PayloadsRefused(contribution, str(error)))
        else:
            self._current.post(height, actions.PayloadsVerified(contribution))

    # ---- a candidate of this node

    async def _compute_aggregate(
        self, height: int, payloads: RoundPayloads, contributions: tuple[Contribution, ...]
    ) -> None:
        """Computes the aggregate of this node's candidate. If that fails, nobody can say whose fault it is, so it is
        tried again for as long as the round lasts."""
        has_failed = False
        while True:
            with self._boundary.around("own aggregate"):
                aggregate = await payloads.aggregate(contributions)
                self._current.post(height, actions.AggregateComputed(aggregate.digest))
                return
            if not has_failed:
                log.warning("round %d goes on without a candidate of this node: %s", height, UNFORESEEN)
            has_failed = True
            await asyncio.sleep(AGAIN_S)

    async def _mine_and_push(self, tip: Tip, body: Body, aggregate: Digest) -> None:
        block = await self._mine(tip, body, aggregate)
        self._gossip.push_block(block)
        self._current.post(block.height, actions.Mined(block))

    # ---- candidates

    async def _check_candidate(self, payloads: RoundPayloads, block: Block) -> None:
        """Checks a candidate. One that cannot be checked here gets no vote, but is followed if others make it final."""
        with self._boundary.around("candidate", block.header.miner) as crossing:
            await self._try_check_candidate(payloads, block)
        if crossing.failure is not None:
            self._current.post(block.height, actions.CandidateRefused(block, UNFORESEEN, wrong=False))

    async def _check_change(self, block: Block, change: Change) -> None:
        """Checks a candidate with a change. A run gets no vote before its initial model is here and fits."""
        height, post = block.height, self._current.post
        if isinstance(change.kind, StartRun) and change.kind.initial is not None:
            if not self._blobs.is_held(change.kind.initial):
                post(height, actions.CandidateRefused(block, "its initial model is not here yet", wrong=False))
            with self._boundary.around("candidate", block.header.miner) as crossing:
                try:
                    await self._initial_models.ensure(change, [block.header.miner])
                except (InitialModelRefused, InvalidChange) as error:
                    log.warning("candidate %s refused: %s", block.id.hex()[:8], error)
                    post(height, actions.CandidateRefused(block, str(error), wrong=False))
                    return
            if crossing.failure is not None:
                post(height, actions.CandidateRefused(block, UNFORESEEN, wrong=False))
                return
        post(height, actions.CandidateValidated(block))

    async def _try_check_candidate(self, payloads: RoundPayloads, block: Block) -> None:
        """Recomputes a candidate. If its blobs do not come in time, it posts that once and goes on fetching them."""
        height, post = block.height, self._current.post
        looking = asyncio.create_task(_recompute(payloads, block))
        try:
            try:
                async with asyncio.timeout(self.get_collect_s(height)):
                    await asyncio.shield(looking)
            except TimeoutError:
                post(height, actions.CandidateRefused(block, "its blobs are not to be had", wrong=False))
                await looking
        except (PayloadRefused, ValidationError) as error:
            name = self._peers.get_name(block.header.miner)
            log.warning("candidate %s of %s refused: %s", block.id.hex()[:8], name, error)
            self._events.publish("rejected", height=height, block=block.id.hex(), reason=str(error))
            kind = Reason.PAYLOAD if isinstance(error, PayloadRefused) else get_reason(error)
            post(height, actions.CandidateRefused(block, str(error), wrong=True, kind=kind))
        else:
            post(height, actions.CandidateValidated(block))
        finally:
            looking.cancel()

    def __repr__(self) -> str:
        return f"<RoundTasks of {self._height}: {len(self)} running>"


async def _recompute(payloads: RoundPayloads, block: Block) -> None:
    await payloads.ensure_all(block.contributions)
    aggregate = await payloads.aggregate(block.contributions)
    validation.validate_aggregate(block, aggregate.digest)
