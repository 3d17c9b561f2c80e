"""The votes a member holds at one height (PROTOCOL §4, §5): what it counts, and what it can send to who lacks it."""

from __future__ import annotations

from collections.abc import Iterator

from chain.block import Id, Phase, Vote

VIEW_WINDOW = 8  # votes are kept in full for this many views on either side of the member's own


class VoteBook:
    """Bounded whatever liars send (I6).

    Within the window, two different votes per (member, view, phase); of every member the latest vote, however far
    ahead; and of every member the last vote that found no room in these. The last is what makes an old quorum count
    when it is sent in one go, though its view has left the window or a liar has filled its own slots.
    """

    def __init__(self) -> None:
        self.latest: dict[Id, Vote] = {}
        self._view = 0
        self._rows: dict[tuple[int, Phase], dict[Id, tuple[Vote, ...]]] = {}
        self._strays: dict[Id, Vote] = {}

    def add(self, vote: Vote) -> bool:
        """Keep this vote; False if one that says the same is held."""
        if any(held.block_id == vote.block_id for held in self.get_slot(vote)):
            return False
        latest = self.latest.get(vote.voter)
        if latest is None or (vote.view, vote.phase) > (latest.view, latest.phase):
            self.latest[vote.voter] = vote
        self._file(vote)
        return True

    def move(self, view: int) -> None:
        """Centre the window on `view`: forget the rows it leaves, file the latest votes it reaches."""
        self._view = view
        self._rows = {key: row for key, row in self._rows.items() if self._is_near(key[0])}
        for vote in self.latest.values():
            if self._is_near(vote.view) and vote not in self._rows.get((vote.view, vote.phase), {}).get(vote.voter, ()):
                self._file(vote)

    def get_slot(self, vote: Vote) -> tuple[Vote, ...]:
        """What is held of this vote's voter, view and phase."""
        row = self._rows.get((vote.view, vote.phase), {}).get(vote.voter, ())
        loose = (self._strays.get(vote.voter), self.latest.get(vote.voter))
        return row + tuple(v for v in loose if v is not None and v.slot == vote.slot and v not in row)

    def get_votes(self, view: int, phase: Phase) -> Iterator[Vote]:
        """Every vote of one phase of one view; an equivocator's may be several, each for another block."""
        row = self._rows.get((view, phase), {})
        for votes in row.values():
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

    def get_all(self) -> Iterator[Vote]:
        """Every vote that a peer may still have use for."""
        for row in self._rows.values():
            for votes in row.values():
                yield from votes
        yield from self.latest.values()

    def get_slots(self) -> set[tuple[int, Phase]]:
        """The (view, phase) of which at least one vote is held."""
        loose = (*self._strays.values(), *self.latest.values())
        return self._rows.keys() | {(vote.view, vote.phase) for vote in loose}

    def count_heard(self, view: int, phase: Phase) -> int:
        """Members that have come at least as far as this phase of this view."""
        return sum((vote.view, vote.phase) >= (view, phase) for vote in self.latest.values())

    def _is_near(self, view: int) -> bool:
        return abs(view - self._view) <= VIEW_WINDOW

    def _file(self, vote: Vote) -> None:
        if self._is_near(vote.view):
            row = self._rows.setdefault((vote.view, vote.phase), {})
            held = row.get(vote.voter, ())
            if len(held) < 2:
                row[vote.voter] = (*held, vote)
                return
        if self.latest[vote.voter] is not vote:
            self._strays[vote.voter] = vote
