"""Whom this node refuses for now: peers that sent bad bytes under a good identity (PROTOCOL §7).

The refusal lasts 1 minute at the first fault and doubles with each further one up to an hour. Only the connection is
refused: what the peer signed still counts when others relay it. A peer that then behaves for as long as its last
refusal lasted, and an hour more, starts afresh.
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
    """The refusals of one node. `clock` gives seconds of any steady clock; at most one small record per peer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[Id, _Record] = {}

    def add_fault(self, peer: Id) -> float:
        """Refuses `peer` from now on. Returns for how many seconds."""
        now = self._clock()
        record = self._records.get(peer)
        if record is not None and now < record.until_s:
            return record.until_s - now  # what was already on its way when the refusal began is the same fault
        strikes = 1 if record is None or now >= record.forget_s else record.strikes + 1
        refusal_s = min(FIRST_REFUSAL_S * 2.0 ** min(strikes - 1, 16), LONGEST_REFUSAL_S)
        self._records[peer] = _Record(strikes, now + refusal_s, now + 2 * refusal_s + FORGET_AFTER_S)
        return refusal_s

    def get_remaining_s(self, peer: Id) -> float:
        """For how many seconds more `peer` is refused; 0 if it is not."""
        record = self._records.get(peer)
        return 0.0 if record is None else max(0.0, record.until_s - self._clock())

    def is_banned(self, peer: Id) -> bool:
        record = self._records.get(peer)
        return record is not None and self._clock() < record.until_s

    def get_banned(self) -> dict[Id, float]:
        """Every peer refused now, with the seconds left."""
        return {peer: left for peer in self._records if (left := self.get_remaining_s(peer)) > 0}
