"""Silence watch: reports connected peers from which nothing has come for some time, and notifies the round in hand of
such members.

If fewer contributions than a quorum are enough (`min_contributions`), a round must not wait for ever for members that
are gone. While this node itself is cut off, no quorum is in reach, and the round is not notified.
"""

from __future__ import annotations

from collections.abc import Callable

from chain.block import Id
from node.clock import Clock
from node.consensus.height.actions import MemberSilent
from node.consensus.height.current import CurrentRound
from node.events import Events
from node.p2p.peers import Peers


class SilenceWatch:
    """Watches the peers of one node. `run` goes on until cancelled. `on_change` is called when a peer falls silent or
    is back, since this node's status says whom it reaches."""

    def __init__(
        self,
        current: CurrentRound,
        peers: Peers,
        clock: Clock,
        events: Events,
        get_status_s: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self._current = current
        self._peers = peers
        self._clock = clock
        self._events = events
        self._on_change = on_change
        self._get_status_s = get_status_s
        self._silent: frozenset[Id] = frozenset()  # connected peers that are silent, as published
        self._since_s: dict[Id, float] = {}  # when each was first found silent
        self._told: dict[Id, int] = {}  # the height for which the round was last notified of each

    async def run(self) -> None:
        while True:
            await self._peers.until_sight_may_change(self._get_status_s())
            self._say()
            self.look()

    def _say(self) -> None:
        """Publishes which connected peers have fallen silent, or are back. One that has just connected had no time
        yet."""
        silent = frozenset(
            peer.id
            for peer in self._peers
            if peer.connected and peer.num_statuses and not self._peers.is_alive(peer.id)
        )
        for peer in sorted(silent ^ self._silent):
            if self._peers.is_connected(peer):  # a closed connection is published elsewhere
                self._events.publish("peer", peer=peer.hex(), up=True, silent=peer in silent)
        if silent != self._silent:
            self._on_change()
        self._silent = silent

    def look(self) -> None:
        """Notifies the round of members that have counted as silent for `silence_s`: right after a start nothing has
        come from anyone."""
        now_s, machine = self._clock.monotonic(), self._current.machine
        silent = [peer.id for peer in self._peers if peer.is_member and not self._peers.is_in_sight(peer.id)]
        self._since_s = {member: self._since_s.get(member, now_s) for member in silent}
        self._told = {member: height for member, height in self._told.items() if member in self._since_s}
        if machine is None or self._peers.describe_stall() is not None:
            return
        for member, since_s in self._since_s.items():
            is_long = now_s - since_s >= self._peers.silence_s
            if is_long and self._told.get(member) != machine.height:
                self._told[member] = machine.height
                self._current.post(machine.height, MemberSilent(member))

    def __repr__(self) -> str:
        return f"<SilenceWatch: {len(self._since_s)} silent>"
