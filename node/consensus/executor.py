"""Action executor: carries out the machine's actions, except the end of a height.

What is signed is durable before it is sent. Slow work only begins here, and posts an event when it is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chain.block import Block, Contribution, Digest, Phase, Vote
from chain.store.blob_rows import SMALL_BLOB_BYTES
from node.boundary import Boundary
from node.consensus.gossip.evidence import EvidencePool
from node.consensus.gossip.gossip import Gossip
from node.consensus.height import actions
from node.consensus.height.current import CurrentRound
from node.consensus.height.halted import Halted
from node.consensus.round_tasks import RoundTasks
from node.consensus.signing.signer import Signer
from node.payloads.checks import Aggregate
from node.payloads.waiting_blobs import WaitingBlobs


class ActionExecutor:
    """Carries out the actions of one node's rounds."""

    def __init__(
        self,
        current: CurrentRound,
        signer: Signer,
        tasks: RoundTasks,
        waiting: WaitingBlobs,
        *,
        gossip: Gossip,
        evidence: EvidencePool,
        boundary: Boundary,
    ) -> None:
        self._current = current
        self._signer = signer
        self._tasks = tasks
        self._waiting = waiting
        self._gossip = gossip
        self._evidence = evidence
        self._boundary = boundary

    async def execute(self, height: int, action: actions.Effect) -> actions.Event | None:
        """Carries out an action of the round at `height`. Returns an event that the machine has to handle at once, None
        if there is none. Raises Halted."""
        match action:
            case actions.FetchPayloads(contribution):
                self._tasks.fetch_payloads(contribution)
            case actions.ComputeAggregate(contributions):
                self._tasks.compute_aggregate(contributions)
            case actions.Mine(contributions, aggregate):
                self._tasks.start_mining(self._current.tip, contributions, aggregate)
            case actions.MineChange(change):
                self._tasks.start_mining_change(self._current.tip, change)
            case actions.StopMining():
                self._tasks.stop_mining()
            case actions.CheckCandidate(block):
                self._tasks.check_candidate(block)
            case actions.CastVote():
                return await self._cast(height, action)
            case actions.FetchBlock():
                with self._boundary.around("status"):
                    self._gossip.send_status()  # peers that see that this node lacks it push it
            case actions.StartTimer(timer, after_s):
                self._tasks.start_timer(timer, after_s)
            case actions.Accuse(evidence, author):
                await self._evidence.accuse(evidence, author, height)
            case actions.Halt(reason):
                raise Halted(reason)
        return None

    async def _cast(self, height: int, action: actions.CastVote) -> actions.VoteSeen:
        """Signs a vote and sends it, after the prevotes that justify it. With a precommit for a block all its small
        blobs are made durable, the aggregate among them; large ones are durable already."""
        blobs: Mapping[Digest, bytes] = {}
        if action.cast.phase is Phase.PRECOMMIT and action.block is not None:
            self._let_wait(self._tasks.get_aggregate(action.block.header.aggregate))
            blobs = self._waiting.get_all()
        vote = await self._signer.sign_vote(height, action, tuple(blobs.values()))
        self._waiting.remove(blobs)
        if action.cast.phase is Phase.PREVOTE:
            for prevote in action.cast.justification:
                self._gossip.push_vote(prevote)
        self._gossip.push_vote(vote)
        return actions.VoteSeen(vote)

    def _let_wait(self, aggregate: Aggregate | None) -> None:
        """Keeps a small aggregate in memory until the block is written; a large one is written before the block."""
        if aggregate is not None and 0 < len(aggregate.data) <= SMALL_BLOB_BYTES:
            self._waiting.add(aggregate.digest, aggregate.data)

    def resend(self, things: Iterable[Contribution | Block | Vote]) -> None:
        """Sends again what this node signed before a restart."""
        for thing in things:
            match thing:
                case Contribution():
                    self._gossip.push_contribution(thing)
                case Block():
                    self._gossip.push_block(thing)
                case Vote():
                    self._gossip.push_vote(thing)

    def __repr__(self) -> str:
        return f"<ActionExecutor on {self._current.tip.height}: {self._tasks!r}>"
