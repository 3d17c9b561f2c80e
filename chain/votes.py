"""The votes a member holds at one height (PROTOCOL §4, §5): it counts them, and finds those that a peer lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from chain.block import Id, Phase, Vote

VIEW_WINDOW = 8  # votes are kept in full for this many views on either side of the member's own

Slot = tuple[int, Phase]  # a view, and a phase of it


@dataclass(slots=True)
class _Row:
    """The votes of one phase of one view by voter, and the number of votes by block."""

    votes: dict[Id, tuple[Vote, ...]] = field(default_factory=dict)
    tally: Counter[Id] = field(default_factory=Counter)

    def add(self, vote: Vote) -> bool:
        """Adds a vote. Returns False if two votes of this voter are held already."""
        held = self.votes.get(vote.voter, ())
        if len(held) == 2:
            return False
        self.votes[vote.voter] = (*held, vote)
        self.tally[vote.block_id] += 1
        return True


class VoteSet:
    """The votes of one height. Its size is bounded whatever dishonest members send (I6).

    It keeps two different votes per (member, view, phase) within the window of views. Of every member it also keeps the
    latest vote, however far ahead, and one more: the last vote that found no room in these. Thanks to that one an old
    quorum that arrives all at once counts, although its view has left the window or a dishonest member has filled its
    own slots.

    Counts that every vote needs (tallies, members that voted) are updated as votes arrive: n votes must not cost n^2.
    """

    def __init__(self) -> None:
        self.latest: dict[Id, Vote] = {}
        self._view = 0
        self._rows: dict[Slot, _Row] = {}
        self._strays: dict[Id, Vote] = {}
        self._reached: Counter[Slot] = Counter()  # by slot, how many members have their latest vote in it

    def __repr__(self) -> str:
        return (
            f"VoteSet(view={self._view}, voters={len(self.latest)}, slots={len(self._rows)}, "
            f"strays={len(self._strays)})"
        )

    def add(self, vote: Vote) -> bool:
        """Adds this vote. Returns False if a vote of this slot for the same block is held."""
        if any(held.block_id == vote.block_id for held in self.get_slot(vote)):
            return False
        latest = self.latest.get(vote.voter)
        if latest is None or (vote.view, vote.phase) > (latest.view, latest.phase):
            self._set_latest(vote, latest)
        self._file(vote)
        return True

    def _set_latest(self, vote: Vote, before: Vote | None) -> None:
        self.latest[vote.voter] = vote
        self._reached[vote.view, vote.phase] += 1
        if before is not None:
            left = (before.view, before.phase)
            self._reached[left] -= 1
            if not self._reached[left]:
                del self._reached[left]

    def move(self, view: int) -> None:
        """Centres the window on `view`: drops the rows outside it and adds the latest votes inside it."""
        self._view = view
        self._rows = {key: row for key, row in self._rows.items() if self._is_near(key[0])}
        for vote in self.latest.values():
            if self._is_near(vote.view) and vote not in self._get_row(vote):
                self._file(vote)

    def get_slot(self, vote: Vote) -> tuple[Vote, ...]:
        """Returns the votes held of this vote's voter, view and phase."""
        row = self._get_row(vote)
        loose = (self._strays.get(vote.voter), self.latest.get(vote.voter))
        return row + tuple(v for v in loose if v is not None and v.slot == vote.slot and v not in row)

    def _get_row(self, vote: Vote) -> tuple[Vote, ...]:
        row = self._rows.get((vote.view, vote.phase))
        return () if row is None else row.votes.get(vote.voter, ())

    def get_votes(self, view: int, phase: Phase) -> Iterator[Vote]:
        """Yields every vote of one phase of one view; of an equivocator there may be several, for different blocks."""
        row = self._rows.get((view, phase))
        for votes in row.votes.values() if row is not None else ():
            yield from votes
        for vote in self._strays.values():
            if vote.view == view and vote.phase is phase:
                yield vote
        if not self._is_near(view):
            for vote in self.latest.values():
                if vote.view == view and vote.phase is phase:
                    yield vote

    def get_votes_for(self, view: int, phase: Phase, block_id: Id) -> tuple[Vote, ...]:
        return tuple(vote for vote in self.get_votes(view, phase) if vote.block_id == block_id)

    def get_tally(self, view: int, phase: Phase) -> Mapping[Id, int]:
        """Returns the number of votes, in one phase of one view, for each block and for nil."""
        if self._is_whole(view):
            row = self._rows.get((view, phase))
            return row.tally if row is not None else Counter()
        return Counter(vote.block_id for vote in self.get_votes(view, phase))

    def count_voters(self, view: int, phase: Phase) -> int:
        """Returns how many members have a vote here of this phase of this view."""
        if self._is_whole(view):
            row = self._rows.get((view, phase))
            return len(row.votes) if row is not None else 0
        return len({vote.voter for vote in self.get_votes(view, phase)})

    def get_all(self) -> Iterator[Vote]:
        """Yields every vote that a peer may still need."""
        for row in self._rows.values():
            for votes in row.votes.values():
                yield from votes
        yield from self.latest.values()

    def get_slots(self) -> set[Slot]:
        """Returns each (view, phase) of which at least one vote is held."""
        loose = ((vote.view, vote.phase) for vote in self._strays.values())
        return self._rows.keys() | self._reached.keys() | set(loose)

    def count_reached(self, view: int, phase: Phase) -> int:
        """Returns how many members have reached this phase of this view, or a later one."""
        return sum(count for slot, count in self._reached.items() if slot >= (view, phase))

    def get_highest_view(self) -> int:
        """Returns the highest view of the votes held, 0 before any."""
        return max(self._reached, default=(0, Phase.PREVOTE))[0]

    def _is_near(self, view: int) -> bool:
        return abs(view - self._view) <= VIEW_WINDOW

    def _is_whole(self, view: int) -> bool:
        """Says whether the rows hold all votes of this view."""
        return self._is_near(view) and not self._strays

    def _file(self, vote: Vote) -> None:
        if self._is_near(vote.view) and self._rows.setdefault((vote.view, vote.phase), _Row()).add(vote):
            return
        if self.latest[vote.voter] is not vote:
            self._strays[vote.voter] = vote
