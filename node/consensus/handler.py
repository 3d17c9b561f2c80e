"""Peer handler: takes in what peers push, and serves their requests (PROTOCOL §5-§7).

What is bad by itself is refused here, and so is the peer that sent it. What is authentic goes into the round in hand,
or waits for the next. Nothing is decided here, and no handler sends requests to others.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Hashable
from contextlib import suppress

from chain import codec, validation
from chain import evidence as evidence_rules
from chain.beacon import list_commitments
from chain.block import Block, Contribution, Digest, Evidence, Id, Vote
from chain.errors import ChainError, DecodeError, InvalidEvidence, InvalidSignature
from node.boundary import Boundary
from node.consensus.gossip.authenticator import get_signer
from node.consensus.gossip.serving import StoreServer
from node.consensus.gossip_parts import GossipParts
from node.consensus.governance.proposals import ProposalBook
from node.consensus.height import actions
from node.consensus.height.current import CurrentRound
from node.events import Events
from node.p2p.bundle import BundleError, decode_bundle
from node.p2p.peers import Peer
from node.p2p.refusals import Reason, get_reason
from node.p2p.status import Status, StatusError, check_bounds, list_bits, status_from_bytes
from node.p2p.transport.base import CONSENT_KINDS, Message, MessageKind, PeerFault, takes
from node.payloads.pushed import PushedPayloads

log = logging.getLogger(__name__)

MAX_EVIDENCE_AHEAD = 8  # heights above the head: this node may be behind
MAX_BUFFERED_VIEW = 8  # votes for the next height are kept up to this view


class PeerHandler:
    """Handles the messages of all peers of one node. For the next height it keeps one object of each slot, with a bound
    on the slots (I6)."""

    def __init__(
        self,
        current: CurrentRound,
        gossip: GossipParts,
        proposals: ProposalBook,
        pushed: PushedPayloads,
        server: StoreServer,
        events: Events,
        boundary: Boundary,
    ) -> None:
        self._current = current
        self._peers = gossip.peers
        self._clocks = gossip.clocks
        self._gossip = gossip.gossip
        self._evidence = gossip.evidence
        self._authenticator = gossip.authenticator
        self._hints = gossip.hints
        self._published = gossip.published
        self._sync = gossip.sync
        self._proposals = proposals
        self._pushed = pushed
        self._server = server
        self._events = events
        self._boundary = boundary
        self._next: dict[Hashable, Contribution | Block | Vote] = {}
        self._heard: set[tuple[Id, bool]] = set()  # members that said that they contribute to this height, or do not
        self._posted: dict[Id, set[Id]] = {}  # queued candidates of this height, by miner

    @property
    def num_kept(self) -> int:
        """Returns the number of objects that wait for the next height."""
        return len(self._next)

    # ---- a height begins

    def on_height(self, height: int) -> None:
        """Forgets objects below `height`, and which members were at work on the height before."""
        self._authenticator.on_height(height, self._current.tip.state)
        self._pushed.on_height(height)
        self._heard.clear()
        self._posted.clear()

    def release(self) -> None:
        """Puts the objects that were kept for this height into it."""
        kept, self._next = self._next, {}
        for thing in kept.values():
            boundary = self._boundary.around("kept", get_signer(thing), passing=(ChainError,))
            with suppress(ChainError), boundary:  # it has another parent, or breaks another rule
                self._accept(thing)

    # ---- what is pushed

    def on_peer_up(self, peer: Id) -> None:
        self._peers.on_up(peer)
        self._gossip.greet(peer)
        self._hints.greet(peer)
        self._published.on_peer_up(peer)
        self._events.publish("peer", peer=peer.hex(), up=True)

    def on_peer_down(self, peer: Id) -> None:
        self._peers.on_down(peer)
        self._events.publish("peer", peer=peer.hex(), up=False)

    def on_message(self, peer: Id, message: Message) -> None:
        entry = self._peers.get(peer)
        if entry is None:
            return
        if not takes(entry.role, message.kind):
            entry.refusals[Reason.OTHER_HEIGHT] += 1
            return
        was_alive = self._peers.is_alive(peer)
        self._peers.on_seen(peer)
        if not was_alive:
            self._heard -= {(peer, True), (peer, False)}  # so that its next word counts again
            if not entry.is_member:
                self._proposals.on_alive(peer)
        if message.kind is MessageKind.STATUS:
            status = self._open_status(message.data)
            self._peers.on_status(peer, status)
            self._on_status(peer, status)
            return
        try:
            if message.kind is MessageKind.BUNDLE:
                self._on_bundle(entry, message.data)
            else:
                self._on_signed(entry, message)
        except (InvalidEvidence, InvalidSignature) as error:  # the sender should have checked it
            raise PeerFault(f"{message.kind.name.lower()}: {error}", get_reason(error)) from error

    def _open_status(self, data: bytes) -> Status:
        try:
            status = status_from_bytes(data)
            if status.height == self._current.tip.height + 1:  # the number of members is known for this height only
                check_bounds(status, self._current.tip.state.n)
        except StatusError as error:
            raise PeerFault(f"status: {error}") from error
        if status.chain_id != self._current.tip.state.chain_id:
            raise PeerFault(
                f"status: expected chain {self._current.tip.state.chain_id.hex()}, got {status.chain_id.hex()}",
                Reason.OTHER_CHAIN,
            )
        return status

    def _on_status(self, peer: Id, status: Status) -> None:
        self._clocks.on_status(peer, status.time_ms)
        self._gossip.on_status(peer, status)
        self._sync.on_status()
        self._published.on_status(peer, status.head_height)
        height = self._current.tip.height + 1
        if status.height != height:
            return
        says = status.contributes or status.abstains
        is_news = says and self._hear(peer, contributes=status.contributes)
        if is_news and self._gossip.spreader.has_cut_off(peer):
            self._gossip.on_step()  # members that it is not connected with learn it from this node
        if (sender := self._peers.get(peer)) is not None and sender.is_member:
            self._hear_through(status)

    def _hear(self, member: Id, *, contributes: bool) -> bool:
        """Notifies the machine that a member contributes to this height, or does not. Returns whether that is news."""
        if (member, contributes) in self._heard:
            return False
        self._heard.add((member, contributes))
        event = actions.MemberAlive(member) if contributes else actions.MemberAbstains(member)
        self._current.post(self._current.tip.height + 1, event)
        return True

    def _hear_through(self, status: Status) -> None:
        """Notes what a status of our height says of members that this node is not connected with."""
        members = self._current.tip.state.member_ids
        for index in list_bits(self._gossip.spreader.select_reported(status) & ~self._peers.connected_members):
            member, contributes = members[index], bool(status.contributing >> index & 1)
            if (member, contributes) in self._heard or self._peers.get(member) is None:  # None: this node itself
                continue
            if self._peers.get_word(member, status.height) is contributes:
                self._hear(member, contributes=contributes)

    def _on_bundle(self, sender: Peer, data: bytes) -> None:
        """Handles objects that a peer sent together. Most of them are known here already. A payload belongs to the
        contribution before it."""
        behind: tuple[Id, Digest] | None = None  # the author of the contribution before, and its digest
        height, known = self._current.tip.height + 1, self._authenticator.knows
        is_old = False  # of a height that is final here
        try:
            for kind, part in decode_bundle(data):
                if kind is MessageKind.PAYLOAD:
                    if not is_old:
                        self._on_bundled_payload(sender, behind, Message(kind, part))
                    continue
                read_height = codec.read_vote_height if kind is MessageKind.VOTE else codec.read_contribution_height
                is_old = read_height(part) < height
                if is_old:
                    sender.refusals[Reason.OTHER_HEIGHT] += 1
                    continue
                digest = hashlib.sha256(part).digest()
                if known(digest):
                    self._gossip.spreading.on_known(digest, sender.id)
                else:
                    self._on_signed(sender, Message(kind, part), digest)
                behind = (codec.read_author(part), digest) if kind is MessageKind.CONTRIBUTION else None
        except (BundleError, DecodeError) as error:
            raise PeerFault(f"bundle: {error}") from error

    def _on_bundled_payload(self, sender: Peer, behind: tuple[Id, Digest] | None, payload: Message) -> None:
        """Handles a payload in a bundle. Raises PeerFault if it does not follow a contribution."""
        if behind is None:
            raise PeerFault("bundle: a payload without its contribution")
        author, contribution = behind
        if self._pushed.offer(author, payload.data, is_relayed=True):
            self._gossip.spreading.add_payload(contribution, payload)

    def _on_signed(self, sender: Peer, message: Message, digest: Digest | None = None) -> None:
        if message.kind in CONSENT_KINDS:
            self._proposals.on_message(sender, message)
            return
        if message.kind is MessageKind.HINT:
            self._hints.on_message(sender, message.data)
            return
        if message.kind is MessageKind.MEASURES:
            self._published.on_message(sender, message.data)
            return
        if message.kind is MessageKind.PAYLOAD:
            if not self._pushed.offer(sender.id, message.data):
                sender.refusals[Reason.OTHER_HEIGHT] += 1
            return
        height = self._current.tip.height + 1
        digest = hashlib.sha256(message.data).digest() if digest is None else digest
        opened = self._authenticator.open(
            message, first=height, last=height + 1, has_room=self._has_room, digest=digest
        )
        if isinstance(opened, Evidence):
            self._on_evidence(sender, opened)
        elif isinstance(opened, Reason):
            sender.refusals[opened] += 1
        elif opened is not None:
            try:
                is_taken = self._accept(opened)
            except InvalidSignature:
                raise
            except ChainError as error:
                self._peers.refuse(get_signer(opened), get_reason(error))
                log.debug("%s from %s refused: %s", message.kind.name.lower(), sender.name, error)
                return
            if not is_taken:
                sender.refusals[Reason.NO_ROOM] += 1
                self._authenticator.forget(opened)
                return
            if isinstance(opened, Contribution):
                self._pushed.expect(opened)
            self._peers.on_sign(get_signer(opened))
            self._gossip.spreader.pass_on(message, digest, opened, sender.id)

    def _on_evidence(self, sender: Peer, evidence: Evidence) -> None:
        """Handles evidence of a height near ours; a liar could sign two objects for each of 2^64 heights. Evidence of a
        later height makes older evidence superfluous, and convicts nobody before that height is reached. Its signatures
        are checked only if it is news."""
        state = self._current.tip.state
        author, height = evidence_rules.read_accusation(evidence)
        above = height - self._current.tip.height
        if not -state.rules.evidence_heights <= above <= min(state.rules.evidence_heights, MAX_EVIDENCE_AHEAD):
            sender.refusals[Reason.OTHER_HEIGHT] += 1
        elif not self._evidence.is_accused(author, height):
            author, height = evidence_rules.validate_evidence(state, evidence)
            self._evidence.on_evidence(evidence, author, height)

    def _accept(self, thing: Contribution | Block | Vote) -> bool:
        """Takes an authentic object into this height, or keeps it for the next. Returns False if there is no room.

        Raises ValidationError if it breaks a rule of the ledger.
        """
        tip, machine = self._current.tip, self._current.machine
        height = tip.height + 1
        if not self._sync.is_beyond(tip.height):
            return False
        if thing.height == height + 1:
            return self._keep(thing)
        if thing.height != height or machine is None:
            return False
        match thing:
            case Contribution():
                committed = list_commitments(tip.block)
                validation.validate_contribution(
                    tip.state, thing, height=height, prev=tip.id, committed=committed, is_verified=True
                )
                self._current.post(height, actions.ContributionSeen(thing))
            case Vote():
                self._current.post(height, actions.VoteSeen(thing))
            case Block():
                validation.validate_candidate(
                    tip,
                    thing,
                    known=self._authenticator.is_known,
                    knows_approval=self._proposals.knows,
                    is_verified=True,
                )
                if not self._has_room(thing):
                    return False
                self._posted.setdefault(thing.header.miner, set()).add(thing.id)
                self._current.post(height, actions.CandidateSeen(thing))
        return True

    def _has_room(self, thing: Contribution | Block | Vote) -> bool:
        """Says whether there is room for `thing`, as far as that shows before it is authenticated."""
        if thing.height == self._current.tip.height + 2:
            slot = _get_next_slot(thing)
            return slot is not None and slot not in self._next
        machine = self._current.machine
        coming = self._posted.get(thing.header.miner, ()) if isinstance(thing, Block) else ()
        return machine is not None and machine.has_room(thing, coming)

    def _keep(self, thing: Contribution | Block | Vote) -> bool:
        """Keeps an object of the next height: one contribution and one candidate a member, and votes of the first
        views."""
        slot = _get_next_slot(thing)
        return slot is not None and self._next.setdefault(slot, thing) is thing

    # ---- what is asked for

    async def on_blocks_request(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        return await self._server.get_blocks(first, count)

    def on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncGenerator[bytes, None]:
        return self._server.read_blob(peer, digest, offset)


def _get_next_slot(thing: Contribution | Block | Vote) -> Hashable | None:
    """Returns the slot of an object of the next height, of which one is kept; None for an object that is not kept."""
    match thing:
        case Contribution(author=author):
            return ("contribution", author)
        case Block():
            return ("candidate", thing.header.miner)
        case Vote():
            return thing.slot if thing.view <= MAX_BUFFERED_VIEW else None
