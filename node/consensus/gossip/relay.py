"""Relay: sends a member's new objects to those that it is not connected with, through a member that is connected with
both (PROTOCOL §7).

Two members that can both only dial out are never connected. A node that receives a new object from its author sees by
the last statuses which peers are not connected with that author, and sends it on at once. If several nodes could, the
first after the author in the order of members does; if that one fails, statuses repair it (`gossip`). If all are
connected, nothing is sent on.
"""

from __future__ import annotations

from collections.abc import Callable

from chain.block import Id
from chain.state import State
from node.p2p.peers import Peer, Peers
from node.p2p.status import list_bits
from node.p2p.transport.base import Message, Transport


class Relay:
    """Sends on objects for one node. `num_passed_on` counts messages since the start."""

    def __init__(self, transport: Transport, peers: Peers, get_state: Callable[[], State]) -> None:
        self._transport = transport
        self._peers = peers
        self._get_state = get_state
        self.num_passed_on = 0

    def pass_on(self, sender: Id, author: Id, message: Message) -> None:
        """Sends on a new object of `author`. It is called once for each object, so that each peer receives it once at
        most."""
        if sender != author:
            return
        for peer in self.list_cut_off(author):
            if self._is_turn(author, peer):
                self.num_passed_on += 1
                self._transport.post(peer.id, message)

    def list_cut_off(self, member: Id) -> list[Peer]:
        """Returns the members connected here that have no connection with `member`, by their status and by its own."""
        state, entry = self._get_state(), self._peers.get(member)
        index, status = state.index_of(member), None if entry is None else entry.status
        if index is None or status is None or not self._peers.is_settled(member):
            return []
        near = (
            self._peers.get(state.member_ids[at]) for at in list_bits(self._peers.connected_members & ~status.reaches)
        )
        return [
            peer
            for peer in near
            if peer is not None
            and peer.id != member
            and self._peers.is_settled(peer.id)
            and peer.status is not None
            and not peer.status.reaches >> index & 1
        ]

    def _is_turn(self, author: Id, peer: Peer) -> bool:
        """Says whether this node is the first after the author among those that are connected with both."""
        state, entry = self._get_state(), self._peers.get(author)
        me, first = state.index_of(self._transport.me), state.index_of(author)
        if me is None or first is None or entry is None or entry.status is None or peer.status is None:
            return False
        both = (entry.status.reaches & peer.status.reaches | 1 << me) & ~(1 << first)
        after = both >> first << first or both  # from the first member on if none comes after the author
        return next(list_bits(after), None) == me

    def __repr__(self) -> str:
        return f"<Relay: {self.num_passed_on} passed on>"
