"""The voting core against every course two views can take, and against what Hypothesis thinks of.

Four members of whom one lies, q = 3, two candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, combinations, product

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from chain.block import ZERO, Certificate, Id, Phase, Vote
from chain.finality import Action, Cast, Equivocation, Finalise, StartTimer, Timer, TimerKind, Voting
from chain.waits import PROFILES
from support.federation.invariants import Checker, sign

MEMBERS = tuple(bytes([i + 1]) * 32 for i in range(4))
HONEST, LIAR = (0, 1, 2), 3
BLOCKS = A, B = bytes([0xA1]) * 32, bytes([0xB2]) * 32
PREVOTE, PRECOMMIT = Phase.PREVOTE, Phase.PRECOMMIT
WAITS = PROFILES["local"]

# The model check. A member is taken to crash between any two of its votes: what it may sign next depends on its own
# rows, on which of the votes there are it has heard since, on which blocks it holds, and on whether its timers ran out.
# That covers members that remember more, since they may hear it all again. Votes of a view depend on that view and on
# those before it only, so every course can be told in the order: all prevotes of view 0, all precommits, and so on.

Said = Id | None  # None: nothing, for good
Row = tuple[Said, ...]  # the same phase of the same view, by honest member


def get_subsets(votes: Iterable[Vote], most: int | None = None) -> Iterator[tuple[Vote, ...]]:
    pool = tuple(votes)
    return chain.from_iterable(combinations(pool, k) for k in range((most or len(pool)) + 1))


class TwoViews:
    """Everything that may be signed in views 0 and 1 under one voting rule."""

    def __init__(self, voting: type[Voting], quorum: int, coordinator: int) -> None:
        self.states = 0
        self._voting = voting
        self._quorum = quorum
        self._coordinator = coordinator
        self._height = coordinator + 3  # members[(height + 1) mod 4] coordinates view 1
        self._get_options = lru_cache(maxsize=None)(self._compute_options)

    def find_fork(self) -> str | None:
        """A course in which two blocks get a certificate, with the liar's help; None if there is no such course."""
        enough = self._quorum - 1
        for prevotes in self._reduce(product((None, ZERO, A, B), repeat=3)):
            precommits = [self._look_up(i, (prevotes[i],), prevotes, (), PRECOMMIT, 0) for i in HONEST]
            for row in product(*precommits):
                self.states += 1
                certified = [block_id for block_id in BLOCKS if row.count(block_id) >= enough]
                if len(certified) == 2:
                    return f"view 0: {prevotes} then {row}"
                for block_id in certified:
                    other = B if block_id == A else A
                    for later in self._get_later_prevotes(prevotes, row):
                        self.states += 1
                        if self._count_able(prevotes, row, later, other) >= enough:
                            return f"view 0: {prevotes} then {row}; view 1: {later}"
        return None

    def _reduce(self, rows: Iterable[Row]) -> set[Row]:
        """Up to the order of the honest members that do not coordinate."""
        return {row for row in rows if row[1:] == tuple(sorted(row[1:], key=lambda said: said or b""))}

    def _get_later_prevotes(self, prevotes: Row, precommits: Row) -> Iterator[Row]:
        proposals: Iterable[Said] = (None,)
        if self._coordinator != LIAR:
            own = (prevotes[self._coordinator], precommits[self._coordinator])
            proposals = self._look_up(self._coordinator, own, prevotes, (), PREVOTE, 1)
        for proposal in proposals:
            choices = [
                frozenset({proposal})
                if i == self._coordinator
                else self._look_up(i, (prevotes[i], precommits[i]), prevotes, (proposal,), PREVOTE, 1)
                for i in HONEST
            ]
            yield from product(*choices)

    def _count_able(self, prevotes: Row, precommits: Row, later: Row, block_id: Id) -> int:
        return sum(
            block_id in self._look_up(i, (prevotes[i], precommits[i], later[i]), later, (), PRECOMMIT, 1)
            for i in HONEST
        )

    def _look_up(self, me: int, own: Row, prevotes: Row, proposal: Row, phase: Phase, view: int) -> frozenset[Said]:
        """Which of the others said what makes no difference; that one of them coordinates shows in `proposal`."""
        others = sorted(((said is not None, said or b"") for i, said in enumerate(prevotes) if i != me), reverse=True)
        first = me == self._coordinator
        return self._get_options(first, own, tuple(said for is_said, said in others if is_said), proposal, phase, view)

    def _compute_options(
        self, is_coordinator: bool, own: Row, prevotes: Row, proposal: Row, phase: Phase, view: int
    ) -> frozenset[Said]:
        """What a member that signed `own`, in order, may sign in this phase of this view, given others' `prevotes`."""
        me = self._coordinator if is_coordinator else next(i for i in HONEST if i != self._coordinator)
        prevote_view = view if phase is PRECOMMIT else 0
        rows = [
            sign(slot_phase, self._height, slot_view, said, MEMBERS[me])
            for (slot_view, slot_phase), said in zip(((0, PREVOTE), (0, PRECOMMIT), (1, PREVOTE)), own, strict=False)
            if said is not None
        ]
        others = [
            sign(PREVOTE, self._height, prevote_view, said, MEMBERS[i])
            for i, said in zip((i for i in HONEST if i != me), prevotes, strict=False)
            if said is not None
        ]
        lies = [sign(PREVOTE, self._height, prevote_view, said, MEMBERS[LIAR]) for said in (ZERO, A, B)]
        proposals = [sign(PREVOTE, self._height, 1, s, MEMBERS[self._coordinator]) for s in proposal if s is not None]
        if phase is PREVOTE and self._coordinator == LIAR:
            proposals = [sign(PREVOTE, self._height, 1, block_id, MEMBERS[LIAR]) for block_id in BLOCKS]
        options: set[Said] = {None}
        for heard in product(get_subsets(others), get_subsets(lies, 2), get_subsets(proposals)):
            for blocks in ((), (A,), (B,), BLOCKS):
                options.add(self._sign_next(me, rows, [*chain.from_iterable(heard)], blocks, phase, view))
        return frozenset(options)

    def _sign_next(
        self, me: int, rows: list[Vote], heard: list[Vote], blocks: tuple[Id, ...], phase: Phase, view: int
    ) -> Said:
        voting = self._voting(height=self._height, members=MEMBERS, quorum=self._quorum, me=MEMBERS[me], waits=WAITS)
        actions = voting.resume(rows, heard)  # all of it heard before anything follows from it
        if voting.view < view:
            actions += voting.on_timer(Timer(TimerKind.PRECOMMIT, voting.view))
        for block_id in blocks:
            actions += voting.on_candidate(block_id, acceptable=False, complete=False)
        for kind in (TimerKind.PROPOSE, TimerKind.PREVOTE):
            actions += voting.on_timer(Timer(kind, view))
        casts = (action for action in actions if isinstance(action, Cast))
        return next((cast.block_id for cast in casts if (cast.phase, cast.view) == (phase, view)), None)


class Unlocked(Voting):
    def _is_free_for(self, block_id: Id) -> bool:
        return True


@pytest.mark.timeout(900)  # ten seconds of arithmetic on an idle machine
@pytest.mark.parametrize("coordinator", [0, pytest.param(LIAR, marks=pytest.mark.outer)])
@pytest.mark.outer
def test_no_course_of_two_views_forks(coordinator: int) -> None:
    model = TwoViews(Voting, 3, coordinator)
    assert model.find_fork() is None
    assert model.states > 1000


@pytest.mark.parametrize("coordinator", [0, LIAR])
def test_some_course_forks_without_the_lock(coordinator: int) -> None:
    fork = TwoViews(Unlocked, 3, coordinator).find_fork()
    assert fork is not None
    assert "view 1" in fork


def test_some_course_forks_with_too_small_a_quorum() -> None:
    assert TwoViews(Voting, 2, 0).find_fork() is not None


class Height(RuleBasedStateMachine):
    """Votes may reach anyone at any time, in any order, any number of times, or never; timers run out at will."""

    @initialize(height=st.integers(1, 4))
    def open(self, height: int) -> None:
        self.height = height
        self.checker = Checker(MEMBERS, 3, frozenset(HONEST))
        self.rows: list[dict[tuple[int, Phase], Vote]] = [{} for _ in HONEST]
        self.proofs: list[tuple[Vote, ...]] = [() for _ in HONEST]
        self.durable: list[set[Id]] = [set() for _ in HONEST]
        self.sent: list[Vote] = []
        self.finalised: list[Id | None] = [None for _ in HONEST]
        self.timers: list[list[Timer]] = [[] for _ in HONEST]
        self.votings = [self.make_voting(i) for i in HONEST]

    def make_voting(self, index: int) -> Voting:
        return Voting(height=self.height, members=MEMBERS, quorum=3, me=MEMBERS[index], waits=WAITS)

    @rule(index=st.sampled_from(HONEST), block_id=st.sampled_from(BLOCKS), acceptable=st.booleans(), full=st.booleans())
    def learn(self, index: int, block_id: Id, acceptable: bool, full: bool) -> None:
        self.perform(index, self.votings[index].on_candidate(block_id, acceptable=acceptable, complete=full))

    @rule(index=st.sampled_from(HONEST), data=st.data())
    def hear(self, index: int, data: st.DataObject) -> None:
        if self.sent:
            vote = data.draw(st.sampled_from(self.sent))
            self.perform(index, self.votings[index].on_vote(vote))

    @rule(index=st.sampled_from(HONEST))
    def hear_all(self, index: int) -> None:
        for vote in tuple(self.sent) if self.finalised[index] is None else ():
            self.perform(index, self.votings[index].on_vote(vote))

    @rule(index=st.sampled_from(HONEST))
    def expire(self, index: int) -> None:
        while self.timers[index]:
            timer = self.timers[index].pop(0)
            if timer.view == self.votings[index].view:
                self.perform(index, self.votings[index].on_timer(timer))
                return

    @rule(phase=st.sampled_from(Phase), view=st.integers(0, 3), block_id=st.sampled_from((ZERO, A, B)))
    def lie(self, phase: Phase, view: int, block_id: Id) -> None:
        self.sent.append(sign(phase, self.height, view, block_id, MEMBERS[LIAR]))

    @rule(struck=st.sets(st.sampled_from(HONEST), min_size=1))
    def crash(self, struck: set[int]) -> None:
        for index in sorted(struck):
            self.timers[index] = []
            self.votings[index] = self.make_voting(index)
            if self.finalised[index] is None:
                own = tuple(self.rows[index].values())
                self.perform(index, self.votings[index].resume(own, self.proofs[index]))
                for block_id in sorted(self.durable[index]):
                    self.learn(index, block_id, False, False)

    def perform(self, index: int, actions: list[Action]) -> None:
        if self.finalised[index] is not None:
            return
        for action in actions:
            if isinstance(action, Cast):
                self.perform(index, self.cast(index, action))
            elif isinstance(action, StartTimer):
                self.timers[index].append(action.timer)
            elif isinstance(action, Equivocation):
                self.checker.on_evidence(action.first, action.second)
            elif isinstance(action, Finalise):
                self.finalise(index, action.block_id, action.certificate)
        voting = self.votings[index]
        self.checker.on_lock(index, voting.view, voting.lock)
        self.checker.on_held(index, voting.get_votes())

    def cast(self, index: int, cast: Cast) -> list[Action]:
        vote = sign(cast.phase, self.height, cast.view, cast.block_id, MEMBERS[index])
        self.checker.on_signed(index, vote)
        if cast.phase is PRECOMMIT and cast.block_id != ZERO:
            self.durable[index].add(cast.block_id)
            self.proofs[index] = cast.justification
        self.rows[index][cast.view, cast.phase] = vote
        self.sent.append(vote)
        return self.votings[index].on_vote(vote)

    def finalise(self, index: int, block_id: Id, certificate: Certificate) -> None:
        self.checker.on_decided(index, block_id, certificate)
        self.finalised[index] = block_id

    def teardown(self) -> None:
        """I10: the network settles. Everybody hears everything before the next timer runs out."""
        if not hasattr(self, "sent"):
            return
        for index, block_id in product(HONEST, BLOCKS):
            self.learn(index, block_id, False, False)
        for _ in range(60):
            said = -1
            while said < len(self.sent):
                said = len(self.sent)
                for index in HONEST:
                    self.hear_all(index)
            if all(self.finalised):
                return
            for index in HONEST:
                self.expire(index)
        raise AssertionError(f"I10: stuck in views {[voting.view for voting in self.votings]}")


TestHeight = Height.TestCase
TestHeight.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
