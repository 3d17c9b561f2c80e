"""The guard of a client that takes models of single peers: it tries them on the client's own test samples, and refuses
those that would do harm (SECURITY §6).

Nobody recomputes what a client does with the models it has drawn, so no rule of aggregation bounds them. What is
left is their effect. Each is tried alone, and one that does harm alone is refused. Of the others together the worst
is refused, one after the other, until the client stands no worse than it may. Where there is no harm this costs
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

KEEP_HEIGHTS = 2  # for so many rounds a peer that was refused is not drawn, unless genesis says otherwise
OnRefused = Callable[[bytes, str], None]  # a peer, and why nothing of it was taken


class LeftOut:
    """Whom one client does not draw, having refused them: each for some rounds."""

    def __init__(self) -> None:
        self._refused: dict[bytes, tuple[int, str]] = {}  # at which height it was last, and why

    def __repr__(self) -> str:
        return f"LeftOut(peers={len(self._refused)})"

    def add(self, peer: bytes, height: int, why: str) -> None:
        self._refused[peer] = height, why

    def to_list(self) -> list[tuple[bytes, int, str]]:
        """All that were ever refused; `add` takes each."""
        return [(peer, at, why) for peer, (at, why) in self._refused.items()]

    def get(self, height: int, keep_heights: int) -> dict[bytes, str]:
        """The peers that are not drawn at `height`, where each is left out for `keep_heights`, with the reason."""
        return {
            peer: f"left out of the draw, as what it offered in round {at} does harm here: {why}"
            for peer, (at, why) in self._refused.items()
            if at < height <= at + keep_heights
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a client once it has taken over a round: what it measured, its method's own metrics among it, or the
    `fault` for which it cannot go on from there."""

    measured: dict[str, float]
    fault: str | None = None

    @property
    def loss(self) -> float:
        """On the own test samples; no number where there are none."""
        return math.inf if self.fault is not None else self.measured["loss"]


@dataclass(frozen=True, slots=True)
class Guard:
    """The limit of harm to a client whose loss on its own test samples is `loss` before it takes anything: harm is an
    aggregate that leaves it without a finite loss, or with one more than `max_ratio` times as large."""

    loss: float
    max_ratio: float = math.inf

    def explain(self, outcome: Outcome) -> str | None:
        """The reason why this is harm; None where it is none."""
        if outcome.fault is not None:
            return outcome.fault
        if outcome.loss > self.max_ratio * self.loss:
            return f"the loss on own samples would go from {self.loss:.3g} to {outcome.loss:.3g}"
        return None

    def take(
        self, take: Callable[[Collection[bytes]], Outcome], peers: Collection[bytes]
    ) -> tuple[Outcome, dict[bytes, str]]:
        """The outcome of a round, and the reasons why some of `peers` were refused in it. `take` takes the round over
        without those that it is given, and does so from the same state each time; its last call is the one whose result
        is to stand.

        Where harm is done without any peer, it is none of theirs: then nobody is refused.
        """
        outcome = take(())
        if not peers or self.explain(outcome) is None:
            return outcome, {}
        refused: dict[bytes, str] = {}
        losses = {}
        for peer in sorted(peers):
            alone = take([other for other in peers if other != peer])
            losses[peer] = alone.loss
            if (why := self.explain(alone)) is not None:
                refused[peer] = why
        while (why := self.explain(outcome := take(refused))) is not None and len(refused) < len(peers):
            worst = max(peers - refused.keys(), key=lambda peer: (losses[peer], peer))
            refused[worst] = f"with others, {why}"
        return (outcome, refused) if why is None else (take(()), {})
