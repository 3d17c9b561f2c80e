"""The two rules of voting that come to mind first, in the same world as `chain.finality.Voting` (PROTOCOL's first
table).

They are here to be caught: a checker that lets them pass checks nothing. Both finalise what a majority votes for.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.block import Certificate, Id, Phase, Vote
from chain.finality import Action, Cast, Finalise, StartTimer, Timer, TimerKind
from chain.waits import Waits


class VoteOnce:
    """Votes once, for the first valid block: with two blocks the votes may split and no block can become final."""

    def __init__(self, *, height: int, members: tuple[Id, ...], quorum: int, me: Id | None, waits: Waits) -> None:
        self.view = 0
        self.lock: tuple[int, Id] | None = None
        self.certified: tuple[Id, Certificate] | None = None
        self.finalised: Id | None = None
        self._members = members
        self._quorum = quorum
        self._me = me
        self._waits = waits
        self._candidates: dict[Id, None] = {}
        self._votes: dict[tuple[int, Id], Vote] = {}
        self._voted = -1  # the last view that it voted in

    def start(self) -> list[Action]:
        return []

    def resume(self, own_votes: Sequence[Vote], justification: Sequence[Vote]) -> list[Action]:
        for vote in own_votes:
            self._votes[vote.view, vote.voter] = vote
            self.view = self._voted = max(self._voted, vote.view)
        return self._wait()

    def on_candidate(self, block_id: Id, *, acceptable: bool, complete: bool) -> list[Action]:
        self._candidates[block_id] = None
        return self._vote() + self._finalise()

    def on_vote(self, vote: Vote) -> list[Action]:
        if vote.phase is Phase.PRECOMMIT:
            self._votes.setdefault((vote.view, vote.voter), vote)
        return self._finalise()

    def on_timer(self, timer: Timer) -> list[Action]:
        return []

    def get_votes(self) -> tuple[Vote, ...]:
        return tuple(self._votes.values())

    def get_bitmaps(self) -> tuple[tuple[int, Phase, int], ...]:
        bitmaps: dict[int, int] = {}
        for view, voter in self._votes:
            bitmaps[view] = bitmaps.get(view, 0) | 1 << self._members.index(voter)
        return tuple((view, Phase.PRECOMMIT, bitmap) for view, bitmap in bitmaps.items())

    def _choose(self) -> Id:
        return next(iter(self._candidates))

    def _wait(self) -> list[Action]:
        return []

    def _vote(self) -> list[Action]:
        if self._voted >= self.view or not self._candidates or self.finalised is not None:
            return []
        self._voted = self.view
        return [Cast(Phase.PRECOMMIT, self.view, self._choose()), *self._wait()]

    def _finalise(self) -> list[Action]:
        for (view, _), vote in self._votes.items():
            same = [v for v in self._votes.values() if (v.view, v.block_id) == (view, vote.block_id)]
            if self.finalised is None and vote.block_id in self._candidates and len(same) >= self._quorum:
                self.finalised = vote.block_id
                signatures = sorted((self._members.index(v.voter), v.signature) for v in same)
                return [Finalise(vote.block_id, Certificate(view, tuple(signatures)))]
        return []


class VoteAgain(VoteOnce):
    """Votes again on timeout, for the best block: members may then leave a majority that one member has seen."""

    def on_timer(self, timer: Timer) -> list[Action]:
        if timer.view != self.view or self.finalised is not None:
            return []
        self.view += 1
        return self._vote()

    def _choose(self) -> Id:
        return min(self._candidates)

    def _wait(self) -> list[Action]:
        return [StartTimer(Timer(TimerKind.PRECOMMIT, self.view), self._waits.compute_propose_s(self.view))]
