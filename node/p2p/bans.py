"""Bans: the peers that this node refuses for now, because they sent bad bytes under a good identity (PROTOCOL §7) or
because an operator named them.

For a fault the ban lasts 1 minute at first, and doubles with each further one up to an hour. A peer that then behaves
for as long as its last ban lasted, and an hour more, starts at 1 minute again. An operator's ban lasts as long as the
operator said, and is no fault: later bans are no longer for it. In either case only the connection is refused: what the
peer signed still counts when others relay it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chain.block import Id

FIRST_REFUSAL_S = 60.0
LONGEST_REFUSAL_S = 3600.0
FORGET_AFTER_S = 3600.0


@dataclass(slots=True)
class _Record:
    strikes: int
    until_s: float
    forget_s: float


class Bans:
    """Holds the bans of one node. `clock` returns seconds of any steady clock. At most one small record is kept per
    peer and kind."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[Id, _Record] = {}
        self._by_hand_until_s: dict[Id, float] = {}

    def __repr__(self) -> str:
        return f"Bans(refused={len(self.get_banned())}, by_hand={len(self.get_by_hand())}, known={len(self._records)})"

    def add_fault(self, peer: Id) -> float:
        """Refuses `peer` from now on for a fault. Returns for how many seconds."""
        now = self._clock()
        if (remaining_s := self.get_remaining_s(peer)) > 0:
            return remaining_s  # bytes already on their way when the refusal began are no new fault
        record = self._records.get(peer)
        strikes = 1 if record is None or now >= record.forget_s else record.strikes + 1
        refusal_s = min(FIRST_REFUSAL_S * 2.0 ** min(strikes - 1, 16), LONGEST_REFUSAL_S)
        self._records[peer] = _Record(strikes, now + refusal_s, now + 2 * refusal_s + FORGET_AFTER_S)
        return refusal_s

    def ban(self, peer: Id, seconds: float) -> None:
        """Refuses `peer` on an operator's request, which replaces an earlier one."""
        self._by_hand_until_s[peer] = self._clock() + seconds

    def lift(self, peer: Id) -> None:
        """Ends every refusal of `peer`. Its faults still count for the next one."""
        self._by_hand_until_s.pop(peer, None)
        if (record := self._records.get(peer)) is not None:
            record.until_s = min(record.until_s, self._clock())

    def get_remaining_s(self, peer: Id) -> float:
        """Returns for how many seconds more `peer` is refused; 0 if it is not."""
        record = self._records.get(peer)
        until_s = max(0.0 if record is None else record.until_s, self._by_hand_until_s.get(peer, 0.0))
        return max(0.0, until_s - self._clock())

    def is_banned(self, peer: Id) -> bool:
        return self.get_remaining_s(peer) > 0

    def get_banned(self) -> dict[Id, float]:
        """Returns every peer refused now, with the seconds left."""
        known = self._records.keys() | self._by_hand_until_s.keys()
        return {peer: left for peer in known if (left := self.get_remaining_s(peer)) > 0}

    def get_by_hand(self) -> dict[Id, float]:
        """Returns the peers that an operator has banned, with the seconds left of that ban."""
        now = self._clock()
        return {peer: until_s - now for peer, until_s in self._by_hand_until_s.items() if until_s > now}
