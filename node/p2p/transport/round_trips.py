"""Round trips to one peer: how long it takes until it has answered, measured with what is said anyway.

Every few seconds a batch carries a number. Whoever gets it says it back at once, so both ends' queues and event loops
are in what is measured, as they are in all that is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

PING_S = 5.0  # between two questions
LEAST_S = 1.0  # between two of a peer that are answered
GIVE_UP_S = 30.0  # what has not been answered for so long was lost, or is not answered at all
KEPT = 8  # the newest, which say what is usual
_MAX_NUMBER = 2**32 - 1


class RoundTrips:
    """Those with one peer. Times are seconds of one steady clock. An answer is believed: a peer that is late with it,
    or never gives one, is found slow by this node alone."""

    def __init__(self) -> None:
        self._newest_s: deque[float] = deque(maxlen=KEPT)
        self._number = 0
        self._asked_s = float("-inf")
        self._is_open = False
        self._owed = 0
        self._heard_s = float("-inf")
        self.longest_s = 0.0  # of the newest; 0 before the first
        self.on_owed: Callable[[], None] = lambda: None  # hears that an answer waits to be sent

    def __repr__(self) -> str:
        typical_s = self.get_typical_s()
        return f"RoundTrips({'none yet' if typical_s is None else f'{typical_s * 1000:.1f} ms'})"

    @property
    def num_newest(self) -> int:
        """The round trips that are gone by."""
        return len(self._newest_s)

    # ---- what is sent

    @property
    def owes(self) -> bool:
        """Whether the peer waits for an answer."""
        return self._owed != 0

    def take_question(self, now_s: float) -> int:
        """What a batch that is sent now asks; 0: nothing."""
        if now_s - self._asked_s < (GIVE_UP_S if self._is_open else PING_S):
            return 0
        self._number = self._number % _MAX_NUMBER + 1
        self._asked_s, self._is_open = now_s, True
        return self._number

    def take_answer(self) -> int:
        """What a batch that is sent now answers; 0: nothing."""
        owed, self._owed = self._owed, 0
        return owed

    def restart(self) -> None:
        """The connection is a new one: what was asked on the old one is not answered any more."""
        self._is_open, self._owed = False, 0
        self._asked_s = self._heard_s = float("-inf")

    # ---- what has come

    def on_question(self, number: int, now_s: float) -> bool:
        """Of several only the newest is answered. False for one that comes too soon: each answer is a write."""
        if number and now_s - self._heard_s < LEAST_S:
            return False
        if number:
            self._heard_s, self._owed = now_s, number
            self.on_owed()
        return True

    def on_answer(self, number: int, now_s: float) -> None:
        """One that answers nothing open is left alone."""
        if number and self._is_open and number == self._number:
            self._is_open = False
            self._newest_s.append(max(0.0, now_s - self._asked_s))
            self.longest_s = max(self._newest_s)

    # ---- what is known

    def get_typical_s(self) -> float | None:
        """The median of the newest; None before the first."""
        return median(self._newest_s) if self._newest_s else None
