"""Measured delays of messages. Delta, the usual delay, is at least that of the rules, and larger where the network is
slower (PROTOCOL §4, SCALE §2).

A status that arrives before the things it is about has everything sent twice, and a grace shorter than a message's
travel time splits votes. Only this depends on measurements, so each node may have a Delta of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chain.block import Id
from chain.state import State
from node.p2p.transport.round_trips import RoundTrips


class Delays:
    """Computes the delays of one node. `round_trips` returns the measured round trips, to connected peers and others;
    `count_liars` returns how many of a number of measured members may lie."""

    def __init__(self, round_trips: Callable[[], Mapping[Id, RoundTrips]], count_liars: Callable[[int], int]) -> None:
        self._round_trips = round_trips
        self._count_liars = count_liars

    def __repr__(self) -> str:
        return f"Delays(peers={len(self._round_trips())})"

    def compute_delta_s(self, state: State) -> float:
        """Returns how many seconds a message takes at most, without the slowest members: as many are left out as may
        lie and answer late."""
        members = set(state.member_ids)
        longest_s = sorted(
            trips.longest_s for peer, trips in self._round_trips().items() if trips.longest_s and peer in members
        )
        num_believed = len(longest_s) - self._count_liars(len(longest_s))
        return _bound(longest_s[num_believed - 1] / 2 if num_believed > 0 else 0.0, state)

    def compute_repair_s(self, peer: Id, state: State) -> float:
        """Returns how many seconds an object may need to reach a peer, and the news of its arrival to come back. A peer
        that answers late only delays what it is sent itself."""
        trips = self._round_trips().get(peer)
        return _bound(0.0 if trips is None else trips.longest_s, state)


def _bound(measured_s: float, state: State) -> float:
    """Bounds a measured delay: at least the delta of the rules, at most the time for which a vote is waited for."""
    waits = state.rules.waits
    return min(max(measured_s, waits.delta_s), max(waits.delta_s, waits.vote_s))
