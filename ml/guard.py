"""The guard of a client that takes models of single peers: it tries them on the client's own test samples, and refuses
those that would do harm (SECURITY §6).

Nobody recomputes what a client does with the models it has drawn, so no rule of aggregation bounds them. Only their
effect can be checked. Each model is tried alone, and one that does harm alone is refused. Then the worst of the others
together is refused, one after the other, until the client's loss is within the limit. Without harm this costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

KEEP_HEIGHTS = 2  # rounds for which a refused peer is not drawn, unless genesis sets another number
OnRefused = Callable[[bytes, str], None]  # a peer, and the reason why it was refused


class LeftOut:
    """The peers that one client has refused, and does not draw for some rounds."""

    def __init__(self) -> None:
        self._refused: dict[bytes, tuple[int, str]] = {}  # the height of the last refusal, and the reason

    def __repr__(self) -> str:
        return f"LeftOut(peers={len(self._refused)})"

    def add(self, peer: bytes, height: int, why: str) -> None:
        self._refused[peer] = height, why

    def to_list(self) -> list[tuple[bytes, int, str]]:
        """Returns all peers that were ever refused, each with the arguments of `add`."""
        return [(peer, at, why) for peer, (at, why) in self._refused.items()]

    def get(self, height: int, keep_heights: int) -> dict[bytes, str]:
        """Returns the peers that are not drawn at `height`, where each is left out for `keep_heights`, with the
        reason."""
        return {
            peer: f"left out of the draw, as what it offered in round {at} does harm here: {why}"
            for peer, (at, why) in self._refused.items()
            if at < height <= at + keep_heights
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a client after it has applied a round: its measures, with its method's own metrics, or the `fault`
    that keeps it from going on."""

    measured: dict[str, float]
    fault: str | None = None

    @property
    def loss(self) -> float:
        """The loss on the client's own test samples; NaN where there are none, infinity after a fault."""
        return math.inf if self.fault is not None else self.measured["loss"]


@dataclass(frozen=True, slots=True)
class Guard:
    """The limit of harm to a client whose loss on its own test samples is `loss` before it applies a round. A round
    does harm if the client's loss is not finite afterwards, or more than `max_ratio` times as large."""

    loss: float
    max_ratio: float = math.inf

    def explain(self, outcome: Outcome) -> str | None:
        """Returns the reason why this outcome is harm; None where it is none."""
        if outcome.fault is not None:
            return outcome.fault
        if outcome.loss > self.max_ratio * self.loss:
            return f"the loss on own samples would go from {self.loss:.3g} to {outcome.loss:.3g}"
        return None

    def take(
        self, take: Callable[[Collection[bytes]], Outcome], peers: Collection[bytes]
    ) -> tuple[Outcome, dict[bytes, str]]:
        """Returns the outcome of a round, and the peers that were refused in it, each with the reason. `take` applies
        the round without the peers that it is passed, from the same state each time; the result of its last call stays.

        Where the round does harm without any peer, no peer is to blame, and none is refused.
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
