"""Relay: what a member signs goes on to those that it is not connected with, through one that both are (PROTOCOL §7).

Two members that can both only dial out are never connected with each other. A node that gets something new from its
author sees by the last statuses who lacks a connection to that author, and passes it on at once. Of several that could,
the first among the members after the author does; should that one not, statuses repair it (`gossip`). Where all are
connected with each other nothing is passed on.
"""

from __future__ import annotations

from collections.abc import Callable

from chain.block import Id
from chain.state import State
from node.p2p.peers import Peer, Peers
from node.p2p.status import list_bits
from node.p2p.transport.base import Message, Transport


class Relay:
    """One node's. `num_passed_on` counts messages since the start."""

    def __init__(self, transport: Transport, peers: Peers, get_state: Callable[[], State]) -> None:
        self._transport = transport
        self._peers = peers
        self._get_state = get_state
        self.num_passed_on = 0

    def pass_on(self, sender: Id, author: Id, message: Message) -> None:
        """Something new of `author` was taken in. It comes here once, so that each peer gets it once at most."""
        if sender != author:
            return
        for peer in self.list_cut_off(author):
            if self._is_turn(author, peer):
                self.num_passed_on += 1
                self._transport.post(peer.id, message)

    def list_cut_off(self, member: Id) -> list[Peer]:
        """Members connected here that neither are connected with `member`, as they say, nor is it with them."""
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
        """Whether this node is the first after the author of those that both are connected with."""
        state, entry = self._get_state(), self._peers.get(author)
        me, first = state.index_of(self._transport.me), state.index_of(author)
        if me is None or first is None or entry is None or entry.status is None or peer.status is None:
            return False
        both = (entry.status.reaches & peer.status.reaches | 1 << me) & ~(1 << first)
        after = both >> first << first or both  # around the end, where nobody comes after the author
        return next(list_bits(after), None) == me

    def __repr__(self) -> str:
        return f"<Relay: {self.num_passed_on} passed on>"
