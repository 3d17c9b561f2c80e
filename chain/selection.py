"""The best round of a run, as the measures in its blocks have it: the same for whoever has the blocks.

A contribution to a round measures the model that the round before has left, by its author's val samples. Two rounds are
compared over the members that measured both, a quorum of them at least: each has the lower weighted median of their
measures. Weights are numbers of val samples, capped so that no third of the members holds half of them: one liar of
four moves no round's score out of the span of honest measures. A round that cannot be compared, for want of measures,
counts neither for nor against the run's patience.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from chain.block import Block, Contribution, Measure
from chain.run import Run
from chain.select import AUC, ONE, Select
from chain.state import State

Measures = Mapping[int, Measure]  # by seat, of one round


@dataclass(frozen=True, slots=True)
class Selection:
    """A run's best round at some height, computed from its blocks: `best` (0: a quorum measured none), its score and
    measures, and `since`, the number of rounds compared with it since. `last` and `last_score` are the newest round
    that a quorum measured and its score."""

    run: int = 0
    best: int = 0
    score: int = 0
    measures: Measures = field(default_factory=dict)
    since: int = 0
    last: int = 0
    last_score: int = 0

    def get_evaluated(self, run: Run) -> int:
        """Returns the round whose model is evaluated at the end of `run`: the best, or the last if there is no best."""
        return (self.best if self.run == run.number else 0) or run.last_round

    def after(self, state: State, contributions: Sequence[Contribution], height: int) -> Selection:
        """Returns the selection after the round at `height`, which `state` judges."""
        run = state.run
        if run.select is None:
            return self
        before = self if self.run == run.number else Selection(run.number)
        number = run.get_round(height) - 1
        return (
            before.add(run.select, number, list_measures(state, contributions), state.n, state.q) if number else before
        )

    def add(self, select: Select, number: int, measures: Measures, n: int, q: int) -> Selection:
        """Returns the selection after the measures of one more round, by seat. There are `n` members, with a quorum of
        `q`."""
        max_liars = (n - 1) // 3
        if len(measures) < q:
            return self
        if self.best == 0:
            score = compute_score(select, measures, max_liars)
            return replace(self, best=number, score=score, measures=measures, last=number, last_score=score)
        common = [seat for seat in measures if seat in self.measures]
        if len(common) < q:
            return self
        weights = {seat: measures[seat].samples for seat in common}
        ours, theirs = (
            compute_score(select, {seat: Measure(weights[seat], of[seat].value) for seat in common}, max_liars)
            for of in (measures, self.measures)
        )
        whole = compute_score(select, measures, max_liars)
        if _to_loss(select, ours) < _to_loss(select, theirs) - select.least_gain:
            return Selection(self.run, number, whole, measures, 0, number, whole)
        return replace(self, since=self.since + 1, last=number, last_score=whole)

    def stops(self, before: Selection, run: Run, height: int) -> bool:
        """Says whether patience ends `run` with the block at `height`; `before` is the selection before that block."""
        if run.select is None or run.stopped or run.is_closing(height):
            return False
        return self.run == run.number and self.exhausts(run.select, before)

    def exhausts(self, select: Select, before: Selection) -> bool:
        """Says whether patience ran out with the round that was added to `before`."""
        return before.since < self.since == select.patience


def list_measures(state: State, contributions: Sequence[Contribution]) -> dict[int, Measure]:
    """Returns the measures in contributions by the seats of their authors."""
    found: dict[int, Measure] = {}
    for contribution in contributions:
        member = state.get_member(contribution.author)
        if member is not None and contribution.measure is not None:
            found[member.seat] = contribution.measure
    return found


def compute_score(select: Select, measures: Measures, max_liars: int) -> int:
    """Computes the score of a round: the lower weighted median of its measures, which are ordered from the best to the
    worst."""
    ordered = sorted(measures.items(), key=lambda item: (_to_loss(select, item[1].value), item[0]))
    weights = cap_weights([measure.samples for _, measure in ordered], max_liars)
    below, total = accumulate(weights), sum(weights)
    return next(measure.value for (_, measure), weight in zip(ordered, below, strict=True) if 2 * weight >= total)


def cap_weights(weights: Sequence[int], max_liars: int) -> list[int]:
    """Caps weights at the greatest of them at which the heaviest `max_liars` hold less than half of the sum; if there
    is none, at the least weight."""
    for cap in sorted(set(weights), reverse=True):
        capped = sorted(min(weight, cap) for weight in weights)
        if 2 * sum(capped[len(capped) - max_liars :]) < sum(capped):
            return [min(weight, cap) for weight in weights]
    return [min(weights)] * len(weights)


def _to_loss(select: Select, value: int) -> int:
    """Returns a measure as a loss, which is better if it is lower."""
    return ONE - value if select.by == AUC else value


def read_selection(
    get_state: Callable[[int], State], blocks: Callable[[int, int], Iterable[Block]], head: int
) -> Selection:
    """Computes the selection of the run in force after the block at `head`, from that run's blocks. `get_state` returns
    the state after a height, `blocks` the blocks of the heights from one to another."""
    if head == 0 or (run := get_state(head).run).select is None:
        return Selection()
    low, high = 0, head  # where the run began: the first state that has it
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if get_state(middle).run.number == run.number else (middle + 1, high)
    found = Selection()
    for block in blocks(low + 1, head):
        if block.change is None:
            found = found.after(get_state(block.height - 1), block.contributions, block.height)
    return found
