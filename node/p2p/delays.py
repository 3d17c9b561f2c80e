"""Delays of messages, as measured: Delta, the usual delay, is that of the rules at least, and more where the network is
slower than they say (PROTOCOL §4, SCALE §2).

Statuses that come sooner than what they are about has arrived have everything sent twice, and a grace shorter than a
message's way splits votes. Nothing else follows what was measured, so each node may have a Delta of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chain.block import Id
from chain.state import State
from node.p2p.transport.round_trips import RoundTrips


class Delays:
    """One node's. `round_trips` gives those that are known, of connected peers and others; `count_liars`, of how many
    members that were measured how many may lie."""

    def __init__(self, round_trips: Callable[[], Mapping[Id, RoundTrips]], count_liars: Callable[[int], int]) -> None:
        self._round_trips = round_trips
        self._count_liars = count_liars

    def __repr__(self) -> str:
        return f"Delays(peers={len(self._round_trips())})"

    def compute_delta_s(self, state: State) -> float:
        """How long a message takes at most, but for those to the slowest members: so many may lie, and answer late."""
        members = set(state.member_ids)
        longest_s = sorted(
            trips.longest_s for peer, trips in self._round_trips().items() if trips.longest_s and peer in members
        )
        num_believed = len(longest_s) - self._count_liars(len(longest_s))
        return _bound(longest_s[num_believed - 1] / 2 if num_believed > 0 else 0.0, state)

    def compute_repair_s(self, peer: Id, state: State) -> float:
        """How long something may be on its way to one peer, and the news of its arrival back. A peer that answers late
        has itself given less."""
        trips = self._round_trips().get(peer)
        return _bound(0.0 if trips is None else trips.longest_s, state)


def _bound(measured_s: float, state: State) -> float:
    """No more than a vote is waited for: beyond that waiting for a message is no use."""
    waits = state.rules.waits
    return min(max(measured_s, waits.delta_s), max(waits.delta_s, waits.vote_s))
