"""Neighbours: chooses the members with which this node keeps connections, and those to which it sends what is new at
once, in a federation that is too large for a mesh (PROTOCOL §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from chain.block import Id
from chain.state import State
from node.clock import Clock
from node.consensus.height.current import CurrentRound
from node.p2p.overlay import Overlay
from node.p2p.peers import Peers
from node.p2p.transport.base import Transport


class Neighbours:
    """Chooses the neighbours of one node. `eager` are the members that receive new objects at once. `run` goes on until
    cancelled."""

    def __init__(self, current: CurrentRound, peers: Peers, transport: Transport, clock: Clock) -> None:
        self._current = current
        self._peers = peers
        self._transport = transport
        self._clock = clock
        self._drawn: tuple[State, Overlay] | None = None
        self._linked: Sequence[Id] | None = None  # None: everyone
        self._since_s: dict[Id, float] = {}  # when each became a neighbour
        self.eager: Sequence[Id] = ()

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(self._current.tip.state.rules.waits.status_s)

    def look(self) -> None:
        """Chooses the neighbours again, by the members there are now and those that have been silent for long."""
        overlay = self._get_overlay()
        if overlay is None:
            linked, self.eager, self._since_s = None, (), {}
        else:
            linked, eager = overlay.choose(self._is_silent)
            self.eager = [*eager, *self._list_others(linked, overlay.num_places)]
            now_s = self._clock.monotonic()
            self._since_s = {member: self._since_s.get(member, now_s) for member in linked}
        if linked != self._linked:
            self._linked = linked
            self._transport.keep(linked)

    def _list_others(self, linked: Collection[Id], most: int) -> list[Id]:
        """Returns members that keep a connection with this node though they are not its neighbours: those between them
        are silent to them, as they may only dial out. If they have few connections, they would receive new objects by
        statuses alone."""
        return [member for member in self._peers.list_members_of_few(most) if member not in linked]

    def _get_overlay(self) -> Overlay | None:
        """Returns the overlay; None if each member is connected with all others."""
        state = self._current.tip.state
        if self._peers.is_meshed:
            self._drawn = None
        elif self._drawn is None or self._drawn[0].member_ids != state.member_ids:
            self._drawn = state, Overlay(state.chain_id, state.member_ids, self._transport.me)
        return None if self._drawn is None else self._drawn[1]

    def _is_silent(self, member: Id) -> bool:
        """Says whether nothing has come from a member though it has had time for it."""
        since_s = self._since_s.get(member)
        had_time = since_s is not None and self._clock.monotonic() - since_s >= self._peers.silence_s
        return had_time and not (self._peers.is_connected(member) and self._peers.is_alive(member))

    def __repr__(self) -> str:
        return (
            f"<Neighbours: {'everyone' if self._linked is None else len(self._linked)}, {len(self.eager)} told at once>"
        )
