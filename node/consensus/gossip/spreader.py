"""Spreaders: how what members sign reaches the others, in a mesh and among neighbours (PROTOCOL §5, §7).

In a mesh each member is connected with all others, as far as that can be. Of more members each is connected with its
neighbours (`node.p2p.overlay`), and what is new goes from one to the next.
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

FIRST_GIVERS = 3  # holders besides the author that give what is missing in one status; twice as many in the next
GIVERS_OF_SOME = 2  # the same, where a status goes to some
MAX_MISSED = 1 << 17  # of a height that goes on for long; what is forgotten is given as if it were missing anew
# Of payloads that go with a contribution from neighbour to neighbour; larger ones are pulled.
MAX_SPREAD_BYTES = 4 * 1024


class Spreader(Protocol):
    """Sends, in one network, what this node has signed, what it takes in, and what others lack."""

    def push(self, parts: Sequence[Message]) -> None:
        """Sends an object that this node has signed for the height in hand, with payloads of it behind it."""

    def pass_on(self, message: Message, digest: Digest, opened: Contribution | Block | Vote, sender: Id) -> None:
        """Sends on what `sender` has brought, and was new here."""

    def take_turn(self) -> list[Id]:
        """Chooses whom the next status goes to."""

    def has_cut_off(self, member: Id) -> bool:
        """Returns whether members wait for this node to say what `member` says of itself."""

    def select_told(self, status: Status) -> int:
        """Returns a bitmap of the members that a status of our height tells something of."""

    def is_turn(self, peer: Id, key: Hashable, author: Id) -> bool:
        """Returns whether it is for this node to give `peer` an object that its status shows it lacks."""

    def may_repair(self, peer: Id) -> bool:
        """Returns whether `peer` is given now what it lacks."""

    def give(self, peer: Id, missing: Iterable[Message]) -> None:
        """Sends `peer` what it lacks."""


class MeshSpreader:
    """Sends to all at once. Who lacks an object is given it by its author, and by a few more that hold it each time it
    is still missing."""

    def __init__(self, transport: Transport, peers: Peers, get_state: Callable[[], State]) -> None:
        self.relay = Relay(transport, peers, get_state)
        self._transport = transport
        self._peers = peers
        self._get_state = get_state
        self._missed: Counter[tuple[Id, Hashable]] = Counter()  # in how many statuses a peer lacked an object
        self._turn = 0  # of those that statuses go to

    def on_height(self) -> None:
        """Forgets what was missing at the height before."""
        self._missed.clear()

    def push(self, parts: Sequence[Message]) -> None:
        """Sends it to every connected peer that takes it; an observer sends nothing."""
        if self._get_state().index_of(self._transport.me) is None:
            return
        for part in parts:
            for peer in sorted(self._transport.connected()):
                if part.kind in GUEST_KINDS or not self._peers.is_guest(peer):
                    self._transport.post(peer, part)

    def pass_on(self, message: Message, digest: Digest, opened: Contribution | Block | Vote, sender: Id) -> None:
        self.relay.pass_on(sender, get_signer(opened), message)

    def take_turn(self) -> list[Id]:
        """Chooses everyone, or of many members each so-manieth, and all others."""
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

    def select_told(self, status: Status) -> int:
        return status.reaches & (status.contributing | status.abstaining)

    def is_turn(self, peer: Id, key: Hashable, author: Id) -> bool:
        """The author always gives it; of the others, those that follow it among the members give it first."""
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
    """Sends to neighbours, in bundles. They hear of few, and give each other all that is missing, once in a while;
    whoever is no member is given it as in a `mesh`."""

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
        self._turn = 0  # of those that statuses go to
        self._repaired_s: dict[Id, float] = {}  # when a neighbour was last given what it lacked

    def push(self, parts: Sequence[Message]) -> None:
        self._spreading.add(_cut_payloads(parts))

    def pass_on(self, message: Message, digest: Digest, opened: Contribution | Block | Vote, sender: Id) -> None:
        """Sends it on, but for a vote of a view that others are not near to, as far as this node is."""
        machine = self._get_machine()
        is_far = isinstance(opened, Vote) and (machine is None or opened.view > machine.view + VIEW_WINDOW)
        if not is_far:
            self._spreading.add([message], digest, sender)

    def take_turn(self) -> list[Id]:
        cycle = self._peers.cycle
        self._turn = (self._turn + 1) % cycle
        return [peer for at, peer in enumerate(sorted(self._transport.connected())) if (at - self._turn) % cycle == 0]

    def has_cut_off(self, member: Id) -> bool:
        return False  # statuses in their turn tell of all

    def select_told(self, status: Status) -> int:
        return status.contributing  # of members that are further away too; that one abstains is its own word alone

    def is_turn(self, peer: Id, key: Hashable, author: Id) -> bool:
        return self._get_state().index_of(peer) is not None or self._mesh.is_turn(peer, key, author)

    def may_repair(self, peer: Id) -> bool:
        """A neighbour has to wait after the last time: it may say again and again what it lacks."""
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
        """Puts behind a contribution small payloads of it that are here, as its author has pushed them."""
        if message.kind is not MessageKind.CONTRIBUTION:
            return [message]
        found = (self._find_payload(ref.digest) for ref in codec.decode_contribution(message.data).payloads)
        return _cut_payloads([message, *(Message(MessageKind.PAYLOAD, data) for data in found if data)])


def _cut_payloads(parts: Sequence[Message]) -> Sequence[Message]:
    """Leaves out the payloads behind an object where these are large."""
    return parts if sum(len(part.data) for part in parts[1:]) <= MAX_SPREAD_BYTES else parts[:1]
