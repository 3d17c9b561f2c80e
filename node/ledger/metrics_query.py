"""Metrics over many rounds, reduced to few points for a chart or a table.

Rounds are read in pages and added one after the other, with only the requested series. At most one round more than the
answer may have is held in memory. The run, round and time are looked up for the rounds that remain.

While there are at most `max_points`, all remain. Beyond that the requested heights are cut into equal spans. From each
span remain the first and the last measured round and, for every series, the rounds where it is lowest and highest. This
is M4 (Jugel et al., VLDB 2014) of all series together, so that every round that remains has the values of all. A line
drawn through them covers the same range as the line through all rounds, spikes included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from node.errors import InvalidRequest, NotFound
from node.ledger.series import DEFAULT_SERIES, Picker
from node.pb import admin_pb2 as pb

PAGE = 256  # rounds read at once; between pages the store's thread is free for votes
USUAL_POINTS = 1000
MAX_POINTS = 10_000
MAX_VALUES = 50_000  # of one answer: keeps it below gRPC's 4 MiB
MAX_NAME_CHARS = 64

_Row = dict[str, Any]


@dataclass(slots=True)
class _Span:
    """The rounds kept of one span of heights: its first and last, and by series the `lowest` and the `highest`."""

    first: _Row
    last: _Row
    lowest: dict[str, _Row] = field(default_factory=dict)
    highest: dict[str, _Row] = field(default_factory=dict)

    def add(self, row: _Row, series: Sequence[str]) -> None:
        self.last = row
        for name in series:
            value = row.get(name)
            if value is None or math.isnan(value):
                continue
            if name not in self.lowest or value < self.lowest[name][name]:
                self.lowest[name] = row
            if name not in self.highest or value > self.highest[name][name]:
                self.highest[name] = row

    def get_rows(self) -> Iterator[_Row]:
        yield from (self.first, *self.lowest.values(), *self.highest.values(), self.last)


class RoundPlace(NamedTuple):
    """The run, the round and the time of a height."""

    run: int
    round: int
    time: str


class MetricsQuery:
    """One question, on a chain that ends at height `head`. `get_pages` lists what to read, `add` takes each page,
    `choose` returns the heights that remain, and `answer` makes the answer for them.

    Raises InvalidRequest, and NotFound for rounds that are not there yet.
    """

    def __init__(self, series: Sequence[str], first: int, last: int | None, max_points: int, *, head: int) -> None:
        self._series = tuple(dict.fromkeys(series)) or DEFAULT_SERIES
        self._is_chosen = bool(series)
        self._max_points = max_points or USUAL_POINTS
        self._first = max(1, first)
        self._last = head if last is None else min(head, last)
        self.picker = Picker(self._series)
        self._seen: set[str] = set()
        self._measured = 0
        self._rows: list[_Row] = []
        self._spans: dict[int, _Span] | None = None  # None while all rows remain
        self._validate()
        if head and self._first > head:
            raise NotFound(f"round {self._first}: the chain ends at height {head}")

    @property
    def num_held(self) -> int:
        """Returns the number of rounds held in memory now."""
        spans = (self._spans or {}).values()
        return len(self._rows) + sum(len({*map(id, span.get_rows())}) for span in spans)

    def _validate(self) -> None:
        for name in self._series:
            if len(name) > MAX_NAME_CHARS:
                raise InvalidRequest(f"series: expected names of at most {MAX_NAME_CHARS} characters")
        count, least = len(self._series), 2 + 2 * len(self._series)
        if not least <= self._max_points <= MAX_POINTS:
            raise InvalidRequest(
                f"max_points: expected {least} to {MAX_POINTS} for {count} series (got {self._max_points})"
            )
        if count * self._max_points > MAX_VALUES:
            raise InvalidRequest(
                f"max_points: expected at most {MAX_VALUES // count} for {count} series (got {self._max_points})"
            )

    def get_pages(self) -> Iterator[tuple[int, int]]:
        """Yields the rounds to read, first and last of each page."""
        for first in range(self._first, self._last + 1, PAGE):
            yield first, min(first + PAGE - 1, self._last)

    def add(self, rows: Iterable[_Row]) -> None:
        """Adds the measured rounds of the next page, each with its `height` and the values that `picker` found."""
        for row in rows:
            self._add(row)

    def _add(self, row: _Row) -> None:
        self._measured += 1
        self._seen.update(row)
        if self._spans is not None:
            self._add_to_span(self._spans, row)
            return
        self._rows.append(row)
        if len(self._rows) > self._max_points:
            self._spans = {}
            for kept in self._rows:
                self._add_to_span(self._spans, kept)
            self._rows = []

    def _add_to_span(self, spans: dict[int, _Span], row: _Row) -> None:
        num_spans = self._max_points // (2 + 2 * len(self._series))
        index = (row["height"] - self._first) * num_spans // (self._last - self._first + 1)
        spans.setdefault(index, _Span(row, row)).add(row, self._series)

    def choose(self) -> Sequence[int]:
        """Returns the heights of the rounds that remain. Raises InvalidRequest for a series that none of the rounds
        has."""
        unknown = [name for name in self._series if name not in self._seen]
        if self._is_chosen and unknown and self._measured:
            raise InvalidRequest(f"series: no round has {unknown[0]!r}; there are {', '.join(self.picker.known)}")
        if self._spans is not None:
            kept = {row["height"]: row for span in self._spans.values() for row in span.get_rows()}
            self._rows, self._spans = [kept[number] for number in sorted(kept)], None
        return [row["height"] for row in self._rows]

    def answer(self, places: Iterable[RoundPlace]) -> pb.Metrics:
        """Returns the answer, given the places of the heights that `choose` returned."""
        answer = pb.Metrics(series=self._series, known=self.picker.known, measured=self._measured)
        for row, place in zip(self._rows, places, strict=True):
            values = {name: float(row[name]) for name in self._series if name in row}
            answer.rounds.add(height=row["height"], run=place.run, round=place.round, time=place.time, values=values)
        return answer
