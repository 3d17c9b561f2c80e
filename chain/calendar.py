"""The calendar of a chain: which run, and which round of it, made the block at a height, and the other way round.

A height is a round of the run in force, unless its block holds a change: then it is none, and the rounds after it come
one height later (FEDERATION §1, §2). The state before a height judges it, and a state begins with genesis or with a
change, so that the heights of the states say all. Readers on other threads see the calendar as it was or as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chain.rules import Rules
from chain.run import Run, stops
from chain.state import State


@dataclass(frozen=True, slots=True)
class Span:
    """The heights above `since` that one state judges, up to the next: its run, its rules and how many members it has.
    `follows_round`: the block at `since` is no change, but the round with which patience ended the run."""

    since: int
    run: Run
    rules: Rules
    num_members: int
    follows_round: bool = False

    @property
    def max_aggregate_bytes(self) -> int:
        """More than an aggregate of its rounds can have."""
        return self.rules.limits.bound_aggregate(self.num_members)


@dataclass(frozen=True, slots=True)
class Place:
    """A round of a run, both counted from 1."""

    run: int
    round: int


def get_next_place(state: State, head: int) -> Place:
    """The round of its run that the height after `head` is, or would be if there were one more; `state` judges it."""
    return Place(state.run.number, state.run.get_round(head + 1))


class Calendar:
    """Runs and rounds by height. Grows with each change."""

    def __init__(self, states: Iterable[tuple[int, State]]) -> None:
        """`states` are those after genesis and after each change, with their heights, in order."""
        self._spans: tuple[Span, ...] = ()
        self._heights: tuple[int, ...] = ()
        for height, state in states:
            self.add(height, state)

    def add(self, height: int, state: State) -> None:
        """The block at `height`, above all changes before it, is a change, and `state` the one after it. What is known
        already is not added again."""
        if self._heights and height <= self._heights[-1]:
            return
        run = state.run
        follows_round = bool(self._spans) and stops(self._spans[-1].run, run)
        if self._spans and (before := self._spans[-1].run).to_terms() == run.to_terms():
            run = replace(
                before, number=run.number, first_height=run.first_height, is_ended=run.is_ended, stopped=run.stopped
            )
        self._spans = (
            *self._spans,
            Span(height, run, state.rules, state.n, follows_round),
        )  # first: readers go by the heights
        self._heights = (*self._heights, height)

    # ---- by height

    def get_span(self, height: int) -> Span:
        """What judges a height from 1 on."""
        before = bisect_left(self._heights, height) - 1
        return self._spans[before]

    def get_place(self, height: int) -> Place | None:
        """The round that made the block at `height`, or may make it; None where only a change can, or did."""
        if height < 1 or self.is_change(height):
            return None
        run = self.get_span(height).run
        return Place(run.number, run.get_round(height)) if run.has_round(height) else None

    def is_change(self, height: int) -> bool:
        """Whether the block at this height is a change that is known here."""
        heights = self._heights
        at = bisect_left(heights, height)
        return height > 0 and at < len(heights) and heights[at] == height and not self._spans[at].follows_round

    # ---- by run

    @property
    def newest(self) -> Span:
        """What judges the heights above the newest change."""
        return self._spans[-1]

    def get_run(self, number: int) -> Run | None:
        """A run as it is, or was at its end; None for one that never began."""
        return next((span.run for span in reversed(self._spans) if span.run.number == number), None)

    def get_start(self, number: int) -> int | None:
        """The height that a run began after: of the change that started it, 0 for genesis' own; None for one that never
        began."""
        return next((span.since for span in self._spans if span.run.number == number), None)

    def get_height(self, place: Place) -> int | None:
        """The height that this round made, or is to make as things stand; None where there is none."""
        spans, heights = self._spans, (*self._heights[1:], None)
        for span, following in zip(spans, heights, strict=False):
            if span.run.number != place.run:
                continue
            height = span.run.first_height + place.round - 1
            is_judged = height > span.since and (following is None or height <= following)
            if is_judged and span.run.has_round(height) and not self.is_change(height):
                return height
        return None

    def list_evaluating(self, head: int) -> list[int]:
        """Lists the heights up to `head` that evaluate the best round of a run, lowest first. A run that went on for
        more rounds afterwards has several."""
        found: list[int] = []
        for span, following in zip(self._spans, (*self._heights[1:], None), strict=False):
            height = span.run.first_height + span.run.last_round + 1
            end = head if following is None else min(head, following)
            if span.since < height <= end and span.run.is_evaluating(height) and not self.is_change(height):
                found.append(height)
        return found

    def count_rounds(self, number: int, head: int) -> int:
        """How many rounds of a run the blocks up to `head` have made: between two changes there are rounds alone."""
        made = 0
        for span, following in zip(self._spans, (*self._heights[1:], None), strict=False):
            if span.run.number == number and span.since <= head:
                end = head if following is None else min(head, following - self.is_change(following))
                made = span.run.get_trained(end)
        return made

    @property
    def max_aggregate_bytes(self) -> int:
        """More than any aggregate up to now can have."""
        return max(span.max_aggregate_bytes for span in self._spans)

    def __repr__(self) -> str:
        return f"Calendar(changes={len(self._spans) - 1}, run={self.newest.run.number})"
