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
    """The heights above `since`, up to the next span, which one state judges: its run, its rules and its number of
    members. `follows_round`: the block at `since` is no change, but the round with which patience ended the run."""

    since: int
    run: Run
    rules: Rules
    num_members: int
    follows_round: bool = False

    @property
    def max_aggregate_bytes(self) -> int:
        """A number of bytes above the size of any aggregate of its rounds."""
        return self.rules.limits.bound_aggregate(self.num_members)


@dataclass(frozen=True, slots=True)
class Place:
    """A round of a run, both counted from 1."""

    run: int
    round: int


def get_next_place(state: State, head: int) -> Place:
    """Returns the round that the height after `head` makes, or would make if the run had one more; `state` judges
    it."""
    return Place(state.run.number, state.run.get_round(head + 1))


class Calendar:
    """The runs and rounds by height. It grows with each change."""

    def __init__(self, states: Iterable[tuple[int, State]]) -> None:
        """Takes the states after genesis and after each change, with their heights, in order."""
        self._spans: tuple[Span, ...] = ()
        self._heights: tuple[int, ...] = ()
        for height, state in states:
            self.add(height, state)

    def add(self, height: int, state: State) -> None:
        """Adds the state after the change block at `height`, which is above all changes before it. A change that was
        added before is ignored."""
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
        )  # set first: readers look up the heights
        self._heights = (*self._heights, height)

    # ---- by height

    def get_span(self, height: int) -> Span:
        """Returns the span that judges a height, from 1 on."""
        before = bisect_left(self._heights, height) - 1
        return self._spans[before]

    def get_place(self, height: int) -> Place | None:
        """Returns the round that made the block at `height`, or may make it; None if that block is a change or can only
        be one."""
        if height < 1 or self.is_change(height):
            return None
        run = self.get_span(height).run
        return Place(run.number, run.get_round(height)) if run.has_round(height) else None

    def is_change(self, height: int) -> bool:
        """Says whether the block at this height is a change that was added here."""
        heights = self._heights
        at = bisect_left(heights, height)
        return height > 0 and at < len(heights) and heights[at] == height and not self._spans[at].follows_round

    # ---- by run

    @property
    def newest(self) -> Span:
        """The span above the newest change."""
        return self._spans[-1]

    def get_run(self, number: int) -> Run | None:
        """Returns a run as it is, or as it was at its end; None if it never began."""
        return next((span.run for span in reversed(self._spans) if span.run.number == number), None)

    def get_start(self, number: int) -> int | None:
        """Returns the height of the change that started a run, 0 for the first run; None if the run never began."""
        return next((span.since for span in self._spans if span.run.number == number), None)

    def get_height(self, place: Place) -> int | None:
        """Returns the height that this round made, or will make as things stand; None if there is none."""
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
        """Returns the heights up to `head` that evaluate the best round of a run, lowest first. A run that continued
        for more rounds afterwards has several."""
        found: list[int] = []
        for span, following in zip(self._spans, (*self._heights[1:], None), strict=False):
            height = span.run.first_height + span.run.last_round + 1
            end = head if following is None else min(head, following)
            if span.since < height <= end and span.run.is_evaluating(height) and not self.is_change(height):
                found.append(height)
        return found

    def count_rounds(self, number: int, head: int) -> int:
        """Returns how many rounds of a run the blocks up to `head` have made. All blocks between two changes are
        rounds."""
        made = 0
        for span, following in zip(self._spans, (*self._heights[1:], None), strict=False):
            if span.run.number == number and span.since <= head:
                end = head if following is None else min(head, following - self.is_change(following))
                made = span.run.get_trained(end)
        return made

    @property
    def max_aggregate_bytes(self) -> int:
        """A number of bytes above the size of any aggregate so far."""
        return max(span.max_aggregate_bytes for span in self._spans)

    def __repr__(self) -> str:
        return f"Calendar(changes={len(self._spans) - 1}, run={self.newest.run.number})"
