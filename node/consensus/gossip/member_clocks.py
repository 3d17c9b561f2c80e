"""The members' clocks by their statuses, and the time that follows from all of them (PROTOCOL §3).

One clock is always wrong. A node judges times by its own clock, or by the lower median of all members' clocks if that
is later, so that a slow clock does not make it vote late. All clocks count, the node's own too: of four or more clocks,
all nodes find the same one to be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chain.block import Id
from chain.state import State
from node.clock import Clock
from node.consensus.height.current import CurrentRound
from node.p2p.clock_skew import ENOUGH_TO_TELL, compute_skews_s, describe_skew, is_wrong

FORGET_S = 60.0  # after a member's last status
SETTLE_S = 10.0  # for so long a reading with an earlier time, as of a delayed status, changes nothing


@dataclass(frozen=True, slots=True)
class _Reading:
    """Holds a member's clock by one status: the milliseconds by which it is ahead of this node's monotonic clock."""

    ahead_ms: float
    at_s: float


class MemberClocks:
    """Estimates the clocks of a federation's members. A status that took long makes its sender look slow, so of the
    last statuses the fastest counts."""

    def __init__(self, current: CurrentRound, me: Id, clock: Clock) -> None:
        self._current = current
        self._me = me
        self._clock = clock
        self._readings: dict[Id, _Reading] = {}
        self._sorted: tuple[State, list[float]] | None = None  # the last result of `_sort_others`, and its state
        self._forget_s = 0.0  # when one of the readings gets too old

    @property
    def _state(self) -> State:
        return self._current.tip.state

    def on_status(self, member: Id, time_ms: int) -> None:
        """Notes the time in a member's status; 0 stands for a member that does not send its time."""
        if time_ms <= 0 or member == self._me or self._state.index_of(member) is None:
            return
        now_s = self._clock.monotonic()
        before, new = self._readings.get(member), _Reading(time_ms - now_s * 1000, now_s)
        if before is None or new.ahead_ms >= before.ahead_ms or now_s - before.at_s > SETTLE_S:
            self._readings[member] = new
            self._sorted = None

    def now_ms(self) -> int:
        """Returns the time by which candidates are judged: this node's own, or the lower median of all members' if that
        is later.

        It is called at every event. The own clock counts among them. If the median is later than it, the median is the
        clock of another: the next below the middle of the others.
        """
        ahead_ms, own_ms = self._sort_others(), self._clock.now_ms()
        counts = self._state.index_of(self._me) is not None
        place = len(ahead_ms) // 2 - 1 if counts else (len(ahead_ms) - 1) // 2
        return own_ms if place < 0 else max(own_ms, round(ahead_ms[place] + self._clock.monotonic() * 1000))

    def _sort_others(self) -> list[float]:
        """Returns the milliseconds by which each other member's clock is ahead of this node's monotonic one, sorted."""
        state, now_s = self._state, self._clock.monotonic()
        if self._sorted is None or self._sorted[0] is not state or now_s > self._forget_s:
            known = [
                reading
                for member, reading in self._readings.items()
                if now_s - reading.at_s <= FORGET_S and state.index_of(member) is not None
            ]
            self._forget_s = min((reading.at_s for reading in known), default=now_s) + FORGET_S
            self._sorted = state, sorted(reading.ahead_ms for reading in known)
        return self._sorted[1]

    def get_skews_s(self) -> Mapping[Id, float]:
        """Returns the seconds by which each clock is ahead of the median, with this node's own if there is any
        other."""
        return compute_skews_s({member: now_ms / 1000 for member, now_ms in self._get_clocks_ms().items()})

    def describe_wrong(self) -> list[str]:
        """Returns a line for each clock that is off by more than MAX_SKEW_S."""
        skews_s = self.get_skews_s()
        wrong = {member: skew_s for member, skew_s in skews_s.items() if is_wrong(skew_s)}
        if wrong and len(skews_s) < ENOUGH_TO_TELL:
            one, other = map(self._get_name, sorted(skews_s, key=lambda member: member != self._me))
            apart_s = max(skews_s.values()) - min(skews_s.values())
            return [f"the clocks of {one} and {other} are {apart_s:.1f} s apart: one of the two is wrong"]
        return [
            f"the clock of {self._get_name(member)} is {describe_skew(skew_s, len(skews_s))}"
            for member, skew_s in sorted(wrong.items())
        ]

    def _get_clocks_ms(self) -> dict[Id, float]:
        """Returns the time that each clock shows now, as far as it is known."""
        now_s = self._clock.monotonic()
        shown = {
            member: reading.ahead_ms + now_s * 1000
            for member, reading in self._readings.items()
            if now_s - reading.at_s <= FORGET_S and self._state.index_of(member) is not None
        }
        if self._state.index_of(self._me) is not None:
            shown[self._me] = self._clock.now_ms()
        return shown

    def _get_name(self, member: Id) -> str:
        known = self._state.get_member(member)
        return "this node" if member == self._me or known is None else known.name
