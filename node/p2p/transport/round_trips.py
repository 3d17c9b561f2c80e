"""Round trips to one peer: the time until it has answered, measured within the messages that are sent anyway.

Every few seconds a batch carries a number. The receiver returns it at once, so the measurement includes both ends'
queues and event loops, as every other wait does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

PING_S = 5.0  # between two questions
LEAST_S = 1.0  # between two questions of a peer that are answered
GIVE_UP_S = 30.0  # a question unanswered for so long was lost, or the peer does not answer any
KEPT = 8  # the newest round trips, from which the usual one is computed
_MAX_NUMBER = 2**32 - 1


class RoundTrips:
    """Measures the round trips to one peer. Times are seconds of one steady clock. Answers are believed: a peer that
    answers late, or never, only makes itself look slow to this node."""

    def __init__(self) -> None:
        self._newest_s: deque[float] = deque(maxlen=KEPT)
        self._number = 0
        self._asked_s = float("-inf")
        self._is_open = False
        self._owed = 0
        self._heard_s = float("-inf")
        self.longest_s = 0.0  # of the newest round trips; 0 before the first
        self.on_owed: Callable[[], None] = lambda: None  # called when an answer waits to be sent

    def __repr__(self) -> str:
        typical_s = self.get_typical_s()
        return f"RoundTrips({'none yet' if typical_s is None else f'{typical_s * 1000:.1f} ms'})"

    @property
    def num_newest(self) -> int:
        """Returns how many round trips are kept."""
        return len(self._newest_s)

    # ---- sending

    @property
    def owes(self) -> bool:
        """Says whether the peer waits for an answer."""
        return self._owed != 0

    def take_question(self, now_s: float) -> int:
        """Returns the question for a batch that is sent now; 0: none."""
        if now_s - self._asked_s < (GIVE_UP_S if self._is_open else PING_S):
            return 0
        self._number = self._number % _MAX_NUMBER + 1
        self._asked_s, self._is_open = now_s, True
        return self._number

    def take_answer(self) -> int:
        """Returns the answer for a batch that is sent now; 0: none."""
        owed, self._owed = self._owed, 0
        return owed

    def restart(self) -> None:
        """Forgets the open question and answer: the connection is a new one."""
        self._is_open, self._owed = False, 0
        self._asked_s = self._heard_s = float("-inf")

    # ---- receiving

    def on_question(self, number: int, now_s: float) -> bool:
        """Notes a question of the peer; only the newest is answered. Returns False for one that comes too soon: each
        answer is a write."""
        if number and now_s - self._heard_s < LEAST_S:
            return False
        if number:
            self._heard_s, self._owed = now_s, number
            self.on_owed()
        return True

    def on_answer(self, number: int, now_s: float) -> None:
        """Notes an answer of the peer. Ignores one that answers no open question."""
        if number and self._is_open and number == self._number:
            self._is_open = False
            self._newest_s.append(max(0.0, now_s - self._asked_s))
            self.longest_s = max(self._newest_s)

    # ---- results

    def get_typical_s(self) -> float | None:
        """Returns the median of the newest round trips in seconds; None before the first."""
        return median(self._newest_s) if self._newest_s else None
