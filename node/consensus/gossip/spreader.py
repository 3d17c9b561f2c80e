"""Spreaders: bring what members sign to the others, in a mesh and among neighbours (PROTOCOL §5, §7).

In a mesh each member is connected with all others, as far as possible. In a larger federation each is connected with
its neighbours (`node.p2p.overlay`), and new objects go from one to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

from chain import codec
from chain.block import Block, Contribution, Digest, Id, Vote
from chain.state import State
from chain.votes import VIEW_WINDOW
from node.clock import Clock
from node.consensus.gossip.authenticator import get_signer
from node.consensus.gossip.relay import Relay
from node.consensus.gossip.spreading import Spreading, post_parts
from node.consensus.height.machine import RoundMachine
from node.p2p.peers import Peers, compute_cycle
from node.p2p.status import Status
from node.p2p.transport.base import GUEST_KINDS, Message, MessageKind, Transport

FIRST_GIVERS = 3  # holders besides the author that send what is missing in one status; twice as many in the next
GIVERS_OF_SOME = 2  # the same, if a status goes to some peers only
MAX_MISSED = 1 << 17  # what is forgotten counts as missing for the first time
# Payloads up to this size go with a contribution from neighbour to neighbour; larger ones are fetched.
MAX_SPREAD_BYTES = 4 * 1024


class Spreader(Protocol):
    """Sends what this node has signed, what it receives, and what others lack, in one kind of network."""

    def push(self, parts: Sequence[Message]) -> None:
        """Sends an object that this node has signed for the height in hand, with payloads of it behind it."""

    def pass_on(self, message: Message, digest: Digest, opened: Contribution | Block | Vote, sender: Id) -> None:
        """Sends on an object that came from `sender` and was new here."""

    def take_turn(self) -> list[Id]:
        """Returns the peers that the next status goes to."""

    def has_cut_off(self, member: Id) -> bool:
        """Says whether some members learn only from this node whether `member` contributes."""

    def select_reported(self, status: Status) -> int:
        """Returns a bitmap of the members whose part in our height a status reports."""

    def is_turn(self, peer: Id, key: Hashable, author: Id) -> bool:
        """Says whether it is this node's turn to send `peer` an object that it lacks by its status."""

    def may_repair(self, peer: Id) -> bool:
        """Says whether `peer` may be sent now what it lacks."""

    def give(self, peer: Id, missing: Iterable[Message]) -> None:
        """Sends `peer` what it lacks."""


class MeshSpreader:
    """Sends to all peers at once. An object that a peer lacks is sent by its author, and by a few more holders for each
    status in which it is still missing."""

    def __init__(self, transport: Transport, peers: Peers, get_state: Callable[[], State]) -> None:
        self.relay = Relay(transport, peers, get_state)
        self._transport = transport
        self._peers = peers
        self._get_state = get_state
        self._missed: Counter[tuple[Id, Hashable]] = Counter()  # in how many statuses a peer lacked an object
        self._turn = 0  # of the peers that statuses go to

    def on_height(self) -> None:
        """Forgets what was missing at the height before."""
        self._missed.clear()

    def push(self, parts: Sequence[Message]) -> None:
        """Sends an object to every connected peer that accepts it; an observer sends nothing."""
        if self._get_state().index_of(self._transport.me) is None:
            return
        for part in parts:
            for peer in sorted(self._transport.connected()):
                if part.kind in GUEST_KINDS or not self._peers.is_guest(peer):
                    self._transport.post(peer, part)

    def pass_on(self, message: Message, digest: Digest, opened: Contribution | Block | Vote, sender: Id) -> None:
        self.relay.pass_on(sender, get_signer(opened), message)

    def take_turn(self) -> list[Id]:
        """Returns all connected peers; of many members only those whose turn it is."""
        state, cycle = self._get_state(), self._peers.cycle
        self._turn = (self._turn + 1) % cycle
        place = (state.index_of(self._transport.me) or 0) + self._turn
        told = []
        for peer in sorted(self._transport.connected()):
            index = state.index_of(peer)
            if index is None or (index - place) % cycle == 0:
                told.append(peer)
        return told

    def has_cut_off(self, member: Id) -> bool:
        return bool(self.relay.list_cut_off(member))

    def select_reported(self, status: Status) -> int:
        return status.reaches & (status.contributing | status.abstaining)

    def is_turn(self, peer: Id, key: Hashable, author: Id) -> bool:
        """Says whether it is this node's turn: always if it is the author, else first the members that follow the
        author."""
        state = self._get_state()
        me, first = state.index_of(self._transport.me), state.index_of(author)
        if me is None or first is None:
            return False
        missed = self._missed[peer, key]
        self._missed[peer, key] += 1
        if len(self._missed) > MAX_MISSED:
            del self._missed[next(iter(self._missed))]
        return (me - first) % state.n >> missed <= max(FIRST_GIVERS, GIVERS_OF_SOME * compute_cycle(state.n))

    def may_repair(self, peer: Id) -> bool:
        return True

    def give(self, peer: Id, missing: Iterable[Message]) -> None:
        for message in missing:
            self._transport.post(peer, message)


class NeighbourSpreader:
    """Sends to neighbours, in bundles. A status goes to a few of them in turn. Neighbours send each other all that is
    missing, with a pause in between; a peer that is no member is sent objects as in a `mesh`."""

    def __init__(
        self,
        transport: Transport,
        peers: Peers,
        clock: Clock,
        get_state: Callable[[], State],
        get_machine: Callable[[], RoundMachine | None],
        mesh: MeshSpreader,
        spreading: Spreading,
        find_payload: Callable[[Digest], bytes | None],
    ) -> None:
        self._transport = transport
        self._peers = peers
        self._clock = clock
        self._get_state = get_state
        self._get_machine = get_machine
        self._mesh = mesh
        self._spreading = spreading
        self._find_payload = find_payload
        self._turn = 0  # of the peers that statuses go to
        self._repaired_s: dict[Id, float] = {}  # when a neighbour was last sent what it lacked

    def push(self, parts: Sequence[Message]) -> None:
        self._spreading.add(_cut_payloads(parts))

    def pass_on(self, message: Message, digest: Digest, opened: Contribution | Block | Vote, sender: Id) -> None:
        """Sends an object on, except a vote whose view is too far ahead of this node's."""
        machine = self._get_machine()
        is_far = isinstance(opened, Vote) and (machine is None or opened.view > machine.view + VIEW_WINDOW)
        if not is_far:
            self._spreading.add([message], digest, sender)

    def take_turn(self) -> list[Id]:
        cycle = self._peers.cycle
        self._turn = (self._turn + 1) % cycle
        return [peer for at, peer in enumerate(sorted(self._transport.connected())) if (at - self._turn) % cycle == 0]

    def has_cut_off(self, member: Id) -> bool:
        return False  # statuses report all members in their turn

    def select_reported(self, status: Status) -> int:
        return status.contributing  # also of members further away; for abstaining only a member's own status counts

    def is_turn(self, peer: Id, key: Hashable, author: Id) -> bool:
        return self._get_state().index_of(peer) is not None or self._mesh.is_turn(peer, key, author)

    def may_repair(self, peer: Id) -> bool:
        """Says whether `peer` may be sent what it lacks again. There is a pause, as a peer may claim all the time to
        lack something."""
        now_s = self._clock.monotonic()
        if now_s - self._repaired_s.get(peer, float("-inf")) < self._get_state().rules.waits.status_s / 4:
            return False
        connected = self._transport.connected()
        self._repaired_s = {other: at_s for other, at_s in self._repaired_s.items() if other in connected}
        self._repaired_s[peer] = now_s
        return True

    def give(self, peer: Id, missing: Iterable[Message]) -> None:
        post_parts(self._transport, peer, map(self._add_payloads, missing))

    def _add_payloads(self, message: Message) -> Sequence[Message]:
        """Adds the small payloads that are held behind a contribution, as its author pushed them."""
        if message.kind is not MessageKind.CONTRIBUTION:
            return [message]
        found = (self._find_payload(ref.digest) for ref in codec.decode_contribution(message.data).payloads)
        return _cut_payloads([message, *(Message(MessageKind.PAYLOAD, data) for data in found if data)])


def _cut_payloads(parts: Sequence[Message]) -> Sequence[Message]:
    """Leaves out the payloads behind an object if they are large."""
    return parts if sum(len(part.data) for part in parts[1:]) <= MAX_SPREAD_BYTES else parts[:1]
