"""Round reporter: notifies the round's record, gossip and the node's events of what happened at a height.

Nothing is decided here. A report that fails is counted as a failure of the record, and the round goes on without it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from chain.block import Id, Phase, Vote
from chain.changes.change import read_change
from node.boundary import Boundary
from node.clock import Clock
from node.consensus.gossip.gossip import Gossip
from node.consensus.height import actions
from node.consensus.height.final_block import FinalBlock
from node.consensus.height.machine import RoundMachine
from node.consensus.record.record import Records, RoundRecord
from node.events import Events
from node.p2p.peers import Peers

log = logging.getLogger(__name__)


class RoundReporter:
    """Reports on the rounds of one node. `me` is its id: the record has the time of this node's own contribution and
    votes."""

    def __init__(
        self,
        me: Id,
        clock: Clock,
        *,
        gossip: Gossip,
        records: Records,
        peers: Peers,
        events: Events,
        boundary: Boundary,
    ) -> None:
        self._me = me
        self._clock = clock
        self._gossip = gossip
        self._records = records
        self._peers = peers
        self._events = events
        self._boundary = boundary

    # ---- while a round is in hand

    def on_event(self, machine: RoundMachine, event: actions.Event) -> None:
        """Notes after an event that the machine handled since when objects are held, and when the round's phases
        ended."""
        with self._boundary.around("record"):
            self._note(machine, event)

    def _note(self, machine: RoundMachine, event: actions.Event) -> None:
        record, now_s = self._records.current, self._clock.monotonic()
        match event:
            case actions.ContributionSeen(contribution):
                self._gossip.on_held(contribution)
                if record is not None and contribution.author == self._me:
                    record.mark("contributed", now_s)
            case actions.CandidateSeen(block) | actions.Mined(block):
                self._gossip.on_held(block.id)
            case actions.VoteSeen(vote):
                self._gossip.on_held(vote.slot)
            case actions.CandidateValidated(block) | actions.CandidateRefused(block):
                objection = machine.objections.get(block.id)
                if objection is not None and objection.kind is not None:
                    self._peers.refuse(block.header.miner, objection.kind)
            case _:
                pass
        if record is None:  # there is none once the rounds are over
            return
        self._mark_step(record, machine, event, now_s)
        if machine.is_cut_off:
            record.mark("cutoff", now_s)
        if machine.is_satisfied:
            record.mark("candidate", now_s)

    def _mark_step(self, record: RoundRecord, machine: RoundMachine, event: actions.Event, now_s: float) -> None:
        """Marks the times of the steps of a round for `fednode bench round --waterfall`."""
        match event:
            case actions.ContributionSeen() if "cutoff" not in record:
                record.mark_last("arrived", now_s)
            case actions.PayloadsVerified() if "cutoff" not in record:
                record.mark_last("verified", now_s)
            case actions.AggregateComputed():
                record.mark("aggregated", now_s)
            case actions.CandidateSeen() | actions.Mined():
                record.mark("block", now_s)
            case actions.VoteSeen(Vote(voter=self._me, phase=phase)):
                record.mark("prevoted" if phase is Phase.PREVOTE else "precommitted", now_s)
            case _:
                pass
        if machine.voting.certified is not None:
            record.mark("certified", now_s)

    def publish_phase(self, machine: RoundMachine) -> None:
        """Publishes the phase of the round in hand."""
        self._events.publish("round", height=machine.height, phase=machine.phase.value, view=machine.view)

    # ---- blocks that are final

    def on_final(self, machine: RoundMachine, final: FinalBlock) -> None:
        """Publishes the committed block of the round in hand, and keeps its record until the worker has reported."""
        with self._boundary.around("record"):
            self._keep_record(machine, final)
            self._publish_block(final)

    def _keep_record(self, machine: RoundMachine, final: FinalBlock) -> None:
        if (record := self._records.current) is not None and final.block.change is None:
            record.on_final(final.block, final.certificate, self._clock.monotonic(), machine)
            self._records.keep(record)

    def on_adopted(self, machine: RoundMachine | None, blocks: Sequence[FinalBlock]) -> None:
        """Publishes committed blocks that others made final: perhaps that of the round in hand, and later ones."""
        with self._boundary.around("record"):
            if machine is not None and machine.height == blocks[0].block.height:
                self._keep_record(machine, blocks[0])
            for final in blocks:
                self._publish_block(final)
            log.info("caught up from height %d to %d", blocks[0].block.height - 1, blocks[-1].block.height)

    def _publish_block(self, final: FinalBlock) -> None:
        block, num_votes = final.block, len(final.certificate.signatures)
        if block.change is None:
            holds = f"{len(block.contributions)} contributions"
        else:
            holds = f"change {read_change(block.change.change).kind.name}"
        miner = self._peers.get_name(block.header.miner)
        log.info(
            "block %d  %s by %s  %s  %d votes  finalised", block.height, block.id.hex()[:8], miner, holds, num_votes
        )
        self._events.publish(
            "block",
            height=block.height,
            id=block.id.hex(),
            miner=block.header.miner.hex(),
            time_ms=block.header.time_ms,
            contributions=len(block.contributions),
            votes=num_votes,
        )

    def __repr__(self) -> str:
        return f"<RoundReporter {self._me.hex()[:8]}: {self._records!r}>"
