"""Pushes what is new, and repairs what got lost: each node says what it holds, and receives what it lacks (PROTOCOL
§5).

Authors push their own objects to all connected peers at once. A node sends a `Status` on connecting, soon after every
step, and at least every `status_s`. The receiver pushes what the sender lacks, in turns: first the author, then a few
more holders for each status in which it is still missing. So nothing depends on a message arriving once: queues may
drop, links may break.

If all holders pushed an object to all who lack it, a slow network would carry n^3 messages. So with many members a
status goes to some of them in turn, and a few of those push. If members are not all connected with each other, their
objects go from neighbour to neighbour: a `Spreader` does that for the network that the members form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from chain import codec
from chain.approvals import encode_approval, encode_proposal, encode_readiness
from chain.block import Approval, Block, Contribution, Digest, Evidence, Id, Phase, Vote
from chain.evidence import encode_evidence
from chain.proposals import Proposal
from chain.protocol import get_newest
from chain.state import State
from chain.tip import Tip
from node.clock import Clock
from node.consensus.gossip.relay import Relay
from node.consensus.gossip.spreader import MeshSpreader, NeighbourSpreader, Spreader
from node.consensus.gossip.spreading import Spreading
from node.consensus.height.machine import RoundMachine
from node.p2p.delays import Delays
from node.p2p.peers import Peers
from node.p2p.status import MAX_OPEN_TOLD, MAX_VERSION_CHARS, OpenChange, Status, VoteBitmap, status_to_bytes
from node.p2p.transport.base import Message, MessageKind, Transport
from node.version import get_version

MAX_EVIDENCE_PUSHED = 16  # on connecting: the newest; older evidence is known by then
MAX_GIVEN_PAUSE = 32.0  # statuses until one change is sent again to a peer that still lacks it, at most
MAX_HELD = 4096  # objects whose arrival is remembered


@dataclass(frozen=True, slots=True)
class Position:
    """Says where this node stands: its final tip, and the height it works on (None before the first round).
    `contributes` says whether others have reason to await its contribution to that height."""

    tip: Tip
    machine: RoundMachine | None
    contributes: bool
    proposals: Iterable[Proposal] = ()


class Gossip:
    """Sends and repairs objects for one node. `position` is called each time its value is needed; nothing is decided
    here."""

    def __init__(
        self,
        transport: Transport,
        peers: Peers,
        clock: Clock,
        position: Callable[[], Position],
        spreading: Spreading | None = None,
        find_payload: Callable[[Digest], bytes | None] = lambda digest: None,
        delays: Delays | None = None,
    ) -> None:
        self._delays = delays or Delays(dict, peers.count_liars)
        self.spreading = spreading or Spreading(transport, lambda: transport.connected())
        self._mesh = MeshSpreader(transport, peers, lambda: self._state)
        self._neighbours = NeighbourSpreader(
            transport,
            peers,
            clock,
            lambda: self._state,
            lambda: self._position().machine,
            self._mesh,
            self.spreading,
            find_payload,
        )
        self._transport = transport
        self._peers = peers
        self._clock = clock
        self._position = position
        self._changed = asyncio.Event()
        self._held_since_s: dict[Hashable, float] = {}
        self._given: dict[
            tuple[Id, Id, Hashable], tuple[float, float]
        ] = {}  # of changes: when last sent, and the pause after it
        self._encoded: dict[Id, Message] = {}
        self._proved: set[tuple[Id, Hashable]] = set()  # peers that received the prevotes behind a block, with the view
        self._evidence: list[Message] = []

    @property
    def spreader(self) -> Spreader:
        """Returns the spreader for the network that the members form now."""
        return self._mesh if self._peers.is_meshed else self._neighbours

    @property
    def relay(self) -> Relay:
        """Returns the relay of the mesh."""
        return self._mesh.relay

    # ---- own objects

    def push_contribution(self, contribution: Contribution, payloads: Iterable[bytes] = ()) -> None:
        """Sends a contribution with its small payloads behind it, in one batch."""
        parts = [Message(MessageKind.CONTRIBUTION, codec.encode_contribution(contribution))]
        self.spreader.push([*parts, *(Message(MessageKind.PAYLOAD, data) for data in payloads)])

    def push_block(self, block: Block) -> None:
        self.spreader.push([Message(MessageKind.BLOCK, codec.encode_block(block))])

    def push_vote(self, vote: Vote) -> None:
        self.spreader.push([Message(MessageKind.VOTE, codec.encode_vote(vote))])

    def push_evidence(self, evidence: Evidence) -> None:
        self._mesh.push([self.keep_evidence(evidence)])

    def push_proposal(self, change: bytes, approval: Approval) -> None:
        self._mesh.push([Message(MessageKind.PROPOSAL, encode_proposal(change, approval))])

    def push_approval(self, approval: Approval) -> None:
        self._mesh.push([Message(MessageKind.APPROVAL, encode_approval(approval))])

    def keep_evidence(self, evidence: Evidence) -> Message:
        """Keeps evidence, to send it to every peer that connects from now on. Returns it as a message."""
        message = Message(MessageKind.EVIDENCE, encode_evidence(evidence))
        self._evidence = [*self._evidence, message][-MAX_EVIDENCE_PUSHED:]
        return message

    # ---- objects that are held, and since when

    @property
    def num_held(self) -> int:
        """Returns the number of objects whose arrival is remembered."""
        return len(self._held_since_s)

    def on_held(self, key: Hashable) -> None:
        """Notes that an object is here. A peer that lacks it may be about to receive it: it is pushed again only once
        the peer would have had time to say that it has it."""
        self._held_since_s.setdefault(key, self._clock.monotonic())
        if len(self._held_since_s) > MAX_HELD:
            del self._held_since_s[next(iter(self._held_since_s))]

    def on_height(self) -> None:
        """Forgets what was held for the height before."""
        self._held_since_s.clear()
        self._mesh.on_height()
        self._encoded.clear()
        self._proved.clear()
        still_open = {proposal.id for proposal in self._position().proposals}
        self._given = {key: given for key, given in self._given.items() if key[1] in still_open and key[2] is None}
        self.on_step()

    def on_step(self) -> None:
        """Notes that something in this node's status has changed."""
        self._changed.set()

    @property
    def _state(self) -> State:
        """Returns the state that judges the height in hand."""
        return self._position().tip.state

    @property
    def _is_member(self) -> bool:
        """Says whether this node is a member; an observer sends its status and nothing else."""
        return self._state.index_of(self._transport.me) is not None

    def _is_settled(self, peer: Id, key: Hashable) -> bool:
        since_s = self._held_since_s.get(key, float("-inf"))
        return self._clock.monotonic() - since_s >= self._delays.compute_repair_s(peer, self._state)

    def _gives(self, peer: Id, key: Hashable, author: Id) -> bool:
        """Says whether it is this node's turn to send `peer` an object that it lacks by its status."""
        return self._is_settled(peer, key) and self.spreader.is_turn(peer, key, author)

    def _is_due(self, peer: Id, change_id: Id, what: Hashable = None) -> bool:
        """Says whether a part of a change may be sent to `peer` again. The pause doubles each time: the peer may have
        no room for it, or lie. A change is large, and open for long."""
        now_s, status_s = self._clock.monotonic(), self._state.rules.waits.status_s
        given_s, pause_s = self._given.get((peer, change_id, what), (float("-inf"), status_s / 2))
        if now_s - given_s < pause_s:
            return False
        self._given[peer, change_id, what] = now_s, min(2 * pause_s, MAX_GIVEN_PAUSE * status_s)
        return True

    # ---- status

    async def run(self) -> None:
        """Sends a status once a change has stood for Delta, and at least every `status_s`; with many members, to those
        whose turn it is.

        If the height is over by then, nothing was missing, and the next height's status says more. So rounds that take
        little longer than Delta do not cost a status each.
        """
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._state.rules.waits.status_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._changed.wait()
                    height = None
                    while height != (height := self._position().tip.height):
                        self._changed.clear()
                        await asyncio.sleep(self._delays.compute_delta_s(self._state))
            self._changed.clear()
            message = self._status_message()
            for peer in self.spreader.take_turn():
                self._transport.post(peer, message)
            due_s = loop.time() + self._state.rules.waits.status_s

    def greet(self, peer: Id) -> None:
        """Sends this node's status and the newest evidence to a peer that has just connected."""
        self._transport.post(peer, self._status_message())
        for message in self._evidence if self._is_member and not self._peers.is_guest(peer) else ():
            self._transport.post(peer, message)

    def send_status(self) -> None:
        """Sends the status to all peers at once, so that they push what this node lacks."""
        message = self._status_message()
        for peer in sorted(self._transport.connected()):
            self._transport.post(peer, message)

    def _status_message(self) -> Message:
        return Message(MessageKind.STATUS, status_to_bytes(self.get_status()))

    def get_status(self) -> Status:
        position = self._position()
        machine, tip = position.machine, position.tip
        now_ms = self._clock.now_ms()
        version, protocol = get_version()[:MAX_VERSION_CHARS], get_newest()
        reaches, contributing, abstaining = self._peers.get_reach(0 if machine is None else machine.height)
        if machine is None:
            return Status(
                tip.state.chain_id,
                tip.height,
                tip.id,
                time_ms=now_ms,
                version=version,
                protocol=protocol,
                reaches=reaches,
                ages=self._peers.get_ages(),
            )
        members = tip.state.member_ids
        candidates = sorted(machine.candidates)[: 2 * len(members)]  # no peer takes a longer list
        return Status(
            chain_id=tip.state.chain_id,
            head_height=tip.height,
            head_id=tip.id,
            height=machine.height,
            view=machine.view,
            contributes=position.contributes,
            abstains=machine.abstains,
            contributions=sum(1 << i for i, key in enumerate(members) if key in machine.contributions),
            candidates=tuple(candidates),
            votes=tuple(VoteBitmap(*held) for held in machine.voting.get_bitmaps()),
            open=_list_open(position),
            time_ms=now_ms,
            version=version,
            protocol=protocol,
            reaches=reaches,
            contributing=contributing,
            abstaining=abstaining,
            ages=self._peers.get_ages(),
        )

    # ---- repair

    def on_status(self, peer: Id, status: Status) -> None:
        """Sends `peer` what it lacks at our height by its status. A peer on a lower height syncs by itself once it has
        our status."""
        position = self._position()
        if status.head_height < position.tip.height:
            self._transport.post(peer, self._status_message())
        machine, members = position.machine, position.tip.state.member_ids
        if machine is None or status.height != machine.height or not self._is_member:
            return
        if not self._peers.is_guest(peer) and self.spreader.may_repair(peer):
            missing = [*self._list_missing(peer, status, machine, members)]
            missing += self._list_proof(peer, status, machine.voting.get_proof())
            self.spreader.give(peer, missing)
        self._repair_proposals(peer, status, position)

    def _list_missing(
        self, peer: Id, status: Status, machine: RoundMachine, members: Sequence[Id]
    ) -> Iterator[Message]:
        """Yields the contributions, candidates and votes that the peer lacks."""
        for index, key in enumerate(members):
            contribution = None if status.contributions >> index & 1 else machine.contributions.get(key)
            if contribution is not None and self._gives(peer, contribution, key):
                yield Message(MessageKind.CONTRIBUTION, codec.encode_contribution(contribution))
        candidates = frozenset(status.candidates)
        for block_id, block in machine.candidates.items():
            if block_id not in candidates and self._gives(peer, block_id, block.header.miner):
                yield self._encode_candidate(block)
        held: dict[tuple[int, Phase], int] = {(entry.view, entry.phase): entry.members for entry in status.votes}
        for vote in machine.voting.get_missing(held):
            if self._gives(peer, vote.slot, vote.voter):
                yield Message(MessageKind.VOTE, codec.encode_vote(vote))

    def _repair_proposals(self, peer: Id, status: Status, position: Position) -> None:
        """Sends open changes that the peer lacks, or approvals and readiness that it lacks of them."""
        state = position.tip.state
        told = {change.id: change for change in status.open}
        for proposal in position.proposals:
            held, proposer = told.get(proposal.id), state.get_seat(proposal.change.by)
            if held is None:
                approval = None if proposer is None else proposal.approvals.get(proposer.key)
                if approval is None or not self._gives(peer, proposal.id, approval.voter):
                    continue
                if self._is_due(peer, proposal.id):
                    self._post(peer, MessageKind.PROPOSAL, encode_proposal(proposal.data, approval))
                continue
            for voter, approval in proposal.approvals.items():
                index = state.index_of(voter)
                if index is None or held.approvals >> index & 1:
                    continue
                if self._gives(peer, (proposal.id, voter), voter):
                    self._post(peer, MessageKind.APPROVAL, encode_approval(approval))
            ready = proposal.readiness
            if ready is None or (held.ready_height is not None and held.ready_height >= ready.height):
                continue
            if self._is_due(peer, proposal.id, ready.height):
                self._post(peer, MessageKind.READINESS, encode_readiness(ready))

    def _list_proof(self, peer: Id, status: Status, proof: Sequence[Vote]) -> Iterator[Message]:
        """Yields the prevotes behind the valid block for a peer in a later view, once a view, whatever it holds. A
        bitmap does not show which of an equivocator's two votes the peer has, and it may need the other one."""
        if not proof or status.view <= proof[0].view:
            return
        key = ("proof", status.view, proof[0].block_id)
        if (peer, key) not in self._proved and self._gives(peer, key, proof[0].voter):
            self._proved.add((peer, key))
            for vote in proof:
                yield Message(MessageKind.VOTE, codec.encode_vote(vote))

    def _encode_candidate(self, block: Block) -> Message:
        """Encodes a candidate of this height, once for all peers that lack it: it is the largest message, with a
        contribution of each member."""
        if block.id not in self._encoded:
            self._encoded[block.id] = Message(MessageKind.BLOCK, codec.encode_block(block))
        return self._encoded[block.id]

    def _post(self, peer: Id, kind: MessageKind, data: bytes) -> None:
        self._transport.post(peer, Message(kind, data))


def _list_open(position: Position) -> tuple[OpenChange, ...]:
    """Returns the open changes for a status, the oldest if there are too many."""
    members, told = position.tip.state.member_ids, []
    for proposal in position.proposals:
        approvals = sum(1 << i for i, key in enumerate(members) if key in proposal.approvals)
        ready = proposal.readiness
        told.append(OpenChange(proposal.id, approvals, None if ready is None else ready.height))
    return tuple(told[:MAX_OPEN_TOLD])
