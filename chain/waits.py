"""The waits of a federation, in seconds, by profile (PROTOCOL §4). Genesis picks a profile and may set each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waits:
    """The times that a member waits, in seconds.

    `delta_s` bounds the usual delay of a message, `collect_s` is the wait for more contributions after the q-th,
    `status_s` the pause between two statuses. The vote timers grow with the view up to `cap_s`.
    """

    delta_s: float
    propose_s: float
    propose_step_s: float
    vote_s: float
    vote_step_s: float
    cap_s: float
    collect_s: float
    status_s: float = 1.0

    def compute_propose_s(self, view: int) -> float:
        return min(self.propose_s + self.propose_step_s * view, self.cap_s)

    def compute_vote_s(self, view: int) -> float:
        return min(self.vote_s + self.vote_step_s * view, self.cap_s)


PROFILES = {
    "local": Waits(0.05, 1.0, 0.2, 0.3, 0.1, 6.0, 2.0),
    "site": Waits(0.25, 3.0, 0.5, 1.0, 0.3, 20.0, 10.0),
    "wide": Waits(1.0, 10.0, 2.0, 3.0, 1.0, 60.0, 30.0),
}
