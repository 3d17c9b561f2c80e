"""The voting core by hand: every line of PROTOCOL §4's table, its restart rules and its bounds, told by alice.

Four members, q = 3, one may lie. At height 4 the coordinators of views 0, 1, 2, 3 are alice, bob, carol, dave.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chain.block import ZERO, Certificate, Id, Phase, Vote
from chain.finality import (
    Action,
    Cast,
    Equivocation,
    FetchBlock,
    Finalise,
    StartTimer,
    Step,
    Timer,
    TimerKind,
    Voting,
)
from chain.votes import VIEW_WINDOW
from chain.waits import PROFILES

ALICE, BOB, CAROL, DAVE, EVE = (bytes([i]) * 32 for i in range(1, 6))
MEMBERS = (ALICE, BOB, CAROL, DAVE)
X, Y, Z = (bytes([i]) * 32 for i in (0xA1, 0xB2, 0xC3))  # X has the lowest id: the best
WAITS = PROFILES["local"]
PREVOTE, PRECOMMIT = Phase.PREVOTE, Phase.PRECOMMIT


def prevote(voter: Id, block_id: Id, view: int = 0) -> Vote:
    return Vote(PREVOTE, 4, view, block_id, voter, b"p" + voter[:1])


def precommit(voter: Id, block_id: Id, view: int = 0) -> Vote:
    return Vote(PRECOMMIT, 4, view, block_id, voter, b"c" + voter[:1])


class Seat:
    """A member's core with the driver's part played by hand: what it casts is signed and fed back at once."""

    def __init__(self, me: Id | None = ALICE, members: tuple[Id, ...] = MEMBERS, quorum: int = 3) -> None:
        self.voting = Voting(height=4, members=members, quorum=quorum, me=me, waits=WAITS)
        self.me = me
        self.done: list[Action] = []
        self.perform(self.voting.start())

    def holds(self, *blocks: Id, acceptable: bool = True, complete: bool = True) -> Seat:
        for block_id in blocks:
            self.perform(self.voting.on_candidate(block_id, acceptable=acceptable, complete=complete))
        return self

    def hears(self, *votes: Vote) -> Seat:
        for vote in votes:
            self.perform(self.voting.on_vote(vote))
        return self

    def waits_for(self, kind: TimerKind, view: int = 0) -> Seat:
        assert kind in self.timers(view), f"{kind} was never started in view {view}"
        self.perform(self.voting.on_timer(Timer(kind, view)))
        return self

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.done.append(action)
            if isinstance(action, Cast):
                assert self.me is not None
                vote = Vote(action.phase, 4, action.view, action.block_id, self.me, b"me")
                self.perform(self.voting.on_vote(vote))

    def cast(self) -> list[tuple[Phase, int, Id]]:
        return [(a.phase, a.view, a.block_id) for a in self.done if isinstance(a, Cast)]

    def timers(self, view: int = 0) -> dict[TimerKind, float]:
        return {a.timer.kind: a.after_s for a in self.done if isinstance(a, StartTimer) and a.timer.view == view}

    def fetched(self) -> list[Id]:
        return [a.block_id for a in self.done if isinstance(a, FetchBlock)]

    def finalised(self) -> list[Finalise]:
        return [a for a in self.done if isinstance(a, Finalise)]


def seat_in_view_1(me: Id = ALICE, *blocks: Id) -> Seat:
    """View 0 came to nothing: the other three precommitted nil."""
    others = (precommit(member, ZERO) for member in MEMBERS if member != me)
    return Seat(me).holds(*blocks, acceptable=False).hears(*others)


# prevote, view 0


def test_full_acceptable_candidate_is_prevoted_at_once() -> None:
    alice = Seat().holds(X)
    assert alice.cast() == [(PREVOTE, 0, X)]
    assert alice.timers() == {}


def test_best_acceptable_is_prevoted_a_delta_after_the_first() -> None:
    alice = Seat().holds(Z, Y, complete=False).holds(X, acceptable=False)
    assert alice.cast() == []
    assert alice.timers()[TimerKind.GRACE] == WAITS.delta_s
    alice.waits_for(TimerKind.GRACE)
    assert alice.cast() == [(PREVOTE, 0, Y)]


def test_full_candidate_ends_the_grace() -> None:
    alice = Seat().holds(X, complete=False).holds(Y)
    assert alice.cast() == [(PREVOTE, 0, Y)]


def test_candidate_told_again_with_a_better_standing_is_prevoted() -> None:
    alice = Seat().holds(X, acceptable=False)
    alice.holds(X)
    assert alice.cast() == [(PREVOTE, 0, X)]


def test_only_unacceptable_candidates_lead_to_nil_after_propose_time() -> None:
    alice = Seat().holds(X, acceptable=False)
    assert alice.timers() == {TimerKind.PROPOSE: WAITS.propose_s}
    alice.waits_for(TimerKind.PROPOSE)
    assert alice.cast() == [(PREVOTE, 0, ZERO)]


def test_propose_time_runs_from_the_first_candidate_only() -> None:
    alice = Seat()
    assert alice.timers() == {}
    alice.holds(X, Y, acceptable=False)
    assert [a for a in alice.done if isinstance(a, StartTimer)] == [
        StartTimer(Timer(TimerKind.PROPOSE, 0), WAITS.propose_s)
    ]


def test_nothing_is_prevoted_while_no_candidate_is_held() -> None:
    alice = Seat().hears(prevote(BOB, X))
    assert alice.cast() == []
    assert alice.timers() == {}


# prevote, view v > 0


def test_coordinator_proposes_its_valid_block() -> None:
    bob = Seat(BOB).holds(X, Y, acceptable=False)
    proof = tuple(prevote(voter, Y) for voter in (ALICE, CAROL, DAVE))
    bob.hears(*proof)  # precommits Y
    bob.hears(precommit(CAROL, ZERO), precommit(DAVE, ZERO), precommit(ALICE, ZERO))
    assert bob.cast()[-1] == (PREVOTE, 1, Y)
    assert Cast(PREVOTE, 1, Y, proof) in bob.done


def test_coordinator_without_a_valid_block_proposes_the_best_candidate() -> None:
    assert seat_in_view_1(BOB, Y, X).cast() == [(PREVOTE, 1, X)]


def test_coordinator_without_any_candidate_waits_for_one() -> None:
    bob = seat_in_view_1(BOB)
    assert bob.cast() == []
    bob.holds(Y, acceptable=False)
    assert bob.cast() == [(PREVOTE, 1, Y)]


def test_others_follow_the_coordinator_though_they_know_a_better_block() -> None:
    alice = seat_in_view_1(ALICE, X, Y).hears(prevote(DAVE, X, 1))
    assert alice.cast() == []
    alice.hears(prevote(BOB, Y, 1))
    assert alice.cast()[0] == (PREVOTE, 1, Y)


def test_unknown_proposal_is_fetched_once_and_then_followed() -> None:
    alice = seat_in_view_1(ALICE).hears(prevote(BOB, Y, 1))
    alice.hears(prevote(DAVE, X, 1))
    assert alice.fetched() == [Y]
    assert alice.cast() == []
    alice.holds(Y, acceptable=False)
    assert alice.cast()[0] == (PREVOTE, 1, Y)


def test_silent_coordinator_leads_to_nil_after_a_longer_propose_time() -> None:
    alice = seat_in_view_1(ALICE, X)
    assert alice.timers(1)[TimerKind.PROPOSE] == pytest.approx(1.2)
    alice.waits_for(TimerKind.PROPOSE, 1)
    assert alice.cast()[0] == (PREVOTE, 1, ZERO)


def test_propose_time_in_a_later_view_waits_for_the_first_candidate() -> None:
    alice = seat_in_view_1(ALICE)
    assert TimerKind.PROPOSE not in alice.timers(1)
    alice.holds(X, acceptable=False)
    assert TimerKind.PROPOSE in alice.timers(1)


def locked_on_x() -> Seat:
    """Alice precommitted X in view 0 and is in view 1 now, whose coordinator is bob."""
    alice = Seat().holds(X, Y).hears(prevote(BOB, X), prevote(CAROL, X))
    assert alice.voting.lock == (0, X)
    return alice.hears(*(precommit(voter, ZERO) for voter in (BOB, CAROL, DAVE)))


def test_lock_refuses_another_block() -> None:
    alice = locked_on_x().hears(prevote(BOB, Y, 1))
    assert alice.voting.view == 1
    assert (PREVOTE, 1, Y) not in alice.cast()
    alice.waits_for(TimerKind.PROPOSE, 1)
    assert alice.cast()[-1] == (PREVOTE, 1, ZERO)


def test_lock_follows_its_own_block() -> None:
    assert locked_on_x().hears(prevote(BOB, X, 1)).cast()[-1] == (PREVOTE, 1, X)


def test_lock_yields_to_a_later_quorum_of_prevotes() -> None:
    alice = locked_on_x()
    alice.hears(*(precommit(voter, ZERO, 1) for voter in (BOB, CAROL, DAVE)))  # view 1 passes her by
    alice.hears(prevote(CAROL, Y, 2))
    assert (PREVOTE, 2, Y) not in alice.cast()
    alice.hears(*(prevote(voter, Y, 1) for voter in (BOB, CAROL, DAVE)))
    assert alice.cast()[-1] == (PREVOTE, 2, Y)


def test_lock_does_not_yield_to_an_earlier_quorum_of_prevotes() -> None:
    alice = Seat().holds(X, Y, acceptable=False).hears(prevote(CAROL, ZERO, 1), prevote(DAVE, ZERO, 1))
    alice.hears(prevote(CAROL, X, 1), prevote(BOB, X, 1))  # bob proposes X; carol says both, and alice follows
    assert alice.voting.lock == (1, X)
    alice.hears(*(precommit(voter, ZERO, 1) for voter in (BOB, CAROL, DAVE)))
    alice.hears(*(prevote(voter, Y, 0) for voter in (BOB, CAROL, DAVE)), prevote(CAROL, Y, 2))
    assert (PREVOTE, 2, Y) not in alice.cast()


def test_lock_does_not_yield_to_a_quorum_of_its_own_view() -> None:
    alice = locked_on_x().hears(*(prevote(voter, Y) for voter in (BOB, CAROL, DAVE)), prevote(BOB, Y, 1))
    assert (PREVOTE, 1, Y) not in alice.cast()


# precommit


def test_quorum_of_prevotes_locks_and_is_precommitted_with_its_justification() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, X))
    assert alice.voting.lock is None
    alice.hears(prevote(DAVE, X))
    assert alice.voting.lock == alice.voting.valid == (0, X)
    cast = alice.done[-1]
    assert isinstance(cast, Cast)
    assert (cast.phase, cast.view, cast.block_id) == (PRECOMMIT, 0, X)
    assert {vote.voter for vote in cast.justification} == {ALICE, BOB, DAVE}
    assert all(vote.phase is PREVOTE and vote.block_id == X for vote in cast.justification)


def test_quorum_counts_before_my_own_prevote() -> None:
    alice = Seat().holds(X, acceptable=False).hears(*(prevote(voter, X) for voter in (BOB, CAROL, DAVE)))
    assert alice.cast() == [(PRECOMMIT, 0, X)]


def test_candidate_that_others_wait_for_is_prevoted_and_precommitted_in_one_go() -> None:
    alice = Seat().hears(prevote(BOB, X), prevote(CAROL, X), prevote(DAVE, X)).holds(X)
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, X)]


def test_quorum_of_nil_prevotes_is_precommitted_nil() -> None:
    alice = Seat().holds(X).hears(*(prevote(voter, ZERO) for voter in (BOB, CAROL, DAVE)))
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, ZERO)]
    assert alice.voting.lock is None


def test_prevote_time_leads_to_a_nil_precommit() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, X), prevote(CAROL, Y))
    assert alice.timers()[TimerKind.PREVOTE] == pytest.approx(0.3)
    alice.waits_for(TimerKind.PREVOTE)
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, ZERO)]


def test_quorum_for_an_unknown_block_is_fetched_and_precommitted_once_it_is_here() -> None:
    alice = Seat().holds(X).hears(*(prevote(voter, Y) for voter in (BOB, CAROL, DAVE)))
    assert alice.fetched() == [Y]
    assert alice.voting.valid is None
    alice.holds(Y, acceptable=False)
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, Y)]


def test_quorum_seen_too_late_raises_valid_but_not_the_lock() -> None:
    alice = Seat().holds(X, Y).hears(prevote(BOB, Y), prevote(CAROL, Y))
    alice.waits_for(TimerKind.PREVOTE).hears(prevote(DAVE, Y))
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, ZERO)]
    assert (alice.voting.lock, alice.voting.valid) == (None, (0, Y))


def test_quorum_for_an_unknown_block_raises_valid_when_the_block_comes_too_late() -> None:
    alice = Seat().holds(X).hears(*(prevote(voter, Y) for voter in (BOB, CAROL, DAVE)))
    alice.waits_for(TimerKind.PREVOTE).holds(Y, acceptable=False)
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, ZERO)]
    assert alice.voting.valid == (0, Y)


def test_latest_quorum_is_the_valid_one_in_whatever_order_they_are_seen() -> None:
    alice = locked_on_x().holds(Z, acceptable=False).hears(prevote(BOB, Y, 1)).waits_for(TimerKind.PROPOSE, 1)
    alice.hears(prevote(CAROL, Y, 1)).waits_for(TimerKind.PREVOTE, 1).hears(prevote(DAVE, Y, 1))
    assert (alice.voting.lock, alice.voting.valid) == ((0, X), (1, Y))
    alice.hears(*(prevote(voter, Z) for voter in (BOB, CAROL, DAVE)))
    assert (alice.voting.lock, alice.voting.valid) == ((0, X), (1, Y))


# finalise


def test_quorum_of_precommits_finalises_with_its_certificate() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, X), prevote(CAROL, X), precommit(DAVE, X), precommit(BOB, X))
    assert alice.finalised() == [Finalise(X, Certificate(0, ((0, b"me"), (1, b"c\x02"), (3, b"c\x04"))))]
    assert alice.voting.finalised == X


def test_precommits_of_different_views_make_no_certificate() -> None:
    alice = Seat().holds(X).hears(precommit(BOB, X), precommit(CAROL, X), precommit(DAVE, X, 1))
    assert alice.voting.certified is None


def test_precommits_of_a_view_gone_by_finalise() -> None:
    alice = locked_on_x()
    alice.hears(precommit(BOB, X), precommit(DAVE, X))  # both also signed nil: liars, but her own word and theirs is q
    assert alice.finalised()[0].block_id == X


def test_precommits_of_a_view_far_ahead_finalise() -> None:
    alice = Seat().holds(X).hears(*(precommit(voter, X, 40) for voter in (BOB, CAROL, DAVE)))
    assert alice.finalised()[0].certificate.view == 40


def test_certificate_suffices_to_follow_and_its_unknown_block_is_fetched_once() -> None:
    alice = Seat().hears(*(precommit(voter, X) for voter in (BOB, CAROL, DAVE)))
    assert alice.voting.certified is not None
    assert alice.voting.certified[0] == X
    assert (alice.fetched(), alice.finalised()) == ([X], [])
    alice.holds(X, acceptable=False, complete=False)
    assert alice.fetched() == [X]
    assert [final.block_id for final in alice.finalised()] == [X]


def test_nothing_follows_a_finalised_block() -> None:
    alice = Seat().holds(X).hears(*(precommit(voter, X) for voter in (BOB, CAROL, DAVE)))
    done = len(alice.done)
    alice.holds(Y).hears(prevote(BOB, Y, 1), prevote(CAROL, Y, 1), precommit(BOB, Y, 1))
    alice.perform(alice.voting.on_timer(Timer(TimerKind.PREVOTE, 0)))
    assert alice.done[done:] == []


# next view


def test_precommit_time_leads_to_the_next_view() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, X), prevote(CAROL, X), precommit(BOB, ZERO), precommit(DAVE, X))
    assert alice.voting.view == 0
    assert alice.timers()[TimerKind.PRECOMMIT] == pytest.approx(0.3)
    alice.waits_for(TimerKind.PRECOMMIT)
    assert (alice.voting.view, alice.voting.step) == (1, Step.PREVOTE)


def test_all_precommits_in_lead_to_the_next_view_at_once() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, X), prevote(CAROL, X), precommit(BOB, X), precommit(DAVE, ZERO))
    assert alice.voting.view == 0
    alice.hears(precommit(CAROL, ZERO))
    assert alice.voting.view == 1


def test_quorum_of_nil_precommits_leads_to_the_next_view_at_once() -> None:
    assert Seat().hears(*(precommit(voter, ZERO) for voter in (BOB, CAROL, DAVE))).voting.view == 1


def test_quorum_of_nil_precommits_counts_though_a_liar_also_said_something_else() -> None:
    alice = Seat().hears(precommit(BOB, X), precommit(CAROL, X), precommit(BOB, ZERO), precommit(CAROL, ZERO))
    assert alice.voting.view == 0
    assert alice.hears(precommit(DAVE, ZERO)).voting.view == 1


def test_view_jumps_to_where_an_honest_member_must_be() -> None:
    alice = Seat().hears(prevote(BOB, X, 2**31))
    assert alice.voting.view == 0
    alice.hears(precommit(CAROL, ZERO, 5))
    assert alice.voting.view == 5
    assert alice.hears(prevote(DAVE, ZERO, 3)).voting.view == 5


def test_member_without_any_candidate_follows_to_higher_views() -> None:
    alice = Seat().hears(prevote(BOB, X, 1), prevote(CAROL, X, 1))
    assert alice.voting.view == 1
    alice.hears(*(precommit(voter, ZERO, 1) for voter in (BOB, CAROL, DAVE)))
    assert alice.voting.view == 2
    assert alice.cast() == []


# early


def test_split_prevotes_are_precommitted_nil_without_waiting() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, X), prevote(CAROL, Y))
    assert alice.cast() == [(PREVOTE, 0, X)]  # dave's could still make three for X
    alice.hears(prevote(DAVE, Y))
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, ZERO)]


def test_split_prevotes_are_precommitted_nil_before_my_own_prevote() -> None:
    alice = Seat().holds(Z, acceptable=False).hears(prevote(BOB, X), prevote(CAROL, Y), prevote(DAVE, ZERO))
    assert alice.cast() == [(PRECOMMIT, 0, ZERO)]


def test_precommits_that_no_block_can_win_lead_to_the_next_view_without_waiting() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, X), prevote(CAROL, X))  # alice precommits X
    assert alice.hears(precommit(BOB, ZERO)).voting.view == 0
    assert alice.hears(precommit(CAROL, ZERO)).voting.view == 1


# timers


def test_vote_timers_wait_for_a_quorum_of_any_kind() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, ZERO))
    assert alice.timers() == {}
    alice.hears(prevote(DAVE, X))
    assert set(alice.timers()) == {TimerKind.PREVOTE}
    alice.hears(precommit(BOB, X), precommit(CAROL, ZERO))
    assert TimerKind.PRECOMMIT not in alice.timers()
    alice.hears(precommit(DAVE, X))
    assert set(alice.timers()) == {TimerKind.PREVOTE, TimerKind.PRECOMMIT}


def test_cut_off_side_does_not_climb() -> None:
    alice = Seat().holds(X, acceptable=False).waits_for(TimerKind.PROPOSE)
    alice.hears(prevote(BOB, ZERO), precommit(BOB, ZERO))  # two nil of four: no block can have its three
    assert set(alice.timers()) == {TimerKind.PROPOSE}
    assert (alice.voting.view, alice.cast()) == (0, [(PREVOTE, 0, ZERO)])


def test_member_that_jumped_over_this_view_is_not_waited_for() -> None:
    alice = Seat().holds(X).hears(prevote(BOB, ZERO), prevote(DAVE, X, 2))
    assert TimerKind.PREVOTE in alice.timers()


def test_stale_timers_are_ignored() -> None:
    alice = seat_in_view_1(ALICE, X)
    for kind in TimerKind:
        assert alice.voting.on_timer(Timer(kind, 0)) == []
    assert (alice.voting.view, alice.cast()) == (1, [])


def test_timer_of_a_step_gone_by_is_ignored() -> None:
    alice = Seat().holds(X, complete=False).waits_for(TimerKind.GRACE).waits_for(TimerKind.PROPOSE)
    assert alice.cast() == [(PREVOTE, 0, X)]
    alice.hears(prevote(BOB, ZERO), prevote(CAROL, X)).hears(prevote(DAVE, X))
    alice.waits_for(TimerKind.PREVOTE)
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, X)]


def test_waits_grow_with_the_view_up_to_the_cap() -> None:
    alice = Seat().holds(X, acceptable=False).hears(prevote(BOB, X, 90), prevote(DAVE, X, 90))
    assert alice.timers(90) == {TimerKind.PROPOSE: WAITS.cap_s}


# who counts


def test_one_member_alone_finalises_its_own_block() -> None:
    alice = Seat(ALICE, (ALICE,), 1).holds(X)
    assert alice.cast() == [(PREVOTE, 0, X), (PRECOMMIT, 0, X)]
    assert alice.finalised() == [Finalise(X, Certificate(0, ((0, b"me"),)))]


def test_one_member_alone_passes_an_unacceptable_block_in_view_1() -> None:
    alice = Seat(ALICE, (ALICE,), 1).holds(X, acceptable=False).waits_for(TimerKind.PROPOSE)
    assert alice.finalised()[0].certificate.view == 1


def test_strangers_do_not_vote() -> None:
    alice = Seat().holds(X).hears(*(precommit(voter, X) for voter in (BOB, DAVE, EVE)))
    assert alice.finalised() == []
    assert EVE not in {vote.voter for vote in alice.voting.get_votes()}


def test_doubled_votes_count_once() -> None:
    again = Vote(PRECOMMIT, 4, 0, X, BOB, b"another signature over the same")
    alice = Seat().holds(X).hears(precommit(BOB, X), precommit(BOB, X), again, precommit(DAVE, X))
    assert alice.finalised() == []
    assert not any(isinstance(action, Equivocation) for action in alice.done)


def test_observer_follows_and_never_casts() -> None:
    eve = Seat(None).holds(X).hears(prevote(BOB, X), prevote(CAROL, X), prevote(DAVE, X))
    eve.hears(precommit(BOB, X), precommit(CAROL, X), precommit(DAVE, X))
    assert eve.cast() == []
    assert eve.finalised()[0].block_id == X


# equivocation and bounds


def test_equivocation_is_reported_once_and_both_votes_count() -> None:
    alice = Seat().holds(X, Y)
    alice.hears(prevote(BOB, Y), prevote(BOB, X), prevote(BOB, Z), prevote(BOB, X))
    reports = [action for action in alice.done if isinstance(action, Equivocation)]
    assert reports == [Equivocation(prevote(BOB, Y), prevote(BOB, X))]
    alice.hears(prevote(CAROL, X))
    assert alice.voting.lock == (0, X)


def test_quorum_with_a_third_vote_of_a_liar_still_counts() -> None:
    alice = Seat().holds(X, Y)
    alice.hears(precommit(BOB, ZERO), precommit(BOB, Z))  # his two places are taken
    alice.hears(precommit(CAROL, Y), precommit(DAVE, Y), precommit(BOB, Y))
    assert alice.finalised()[0].block_id == Y


def test_votes_held_are_bounded_whatever_liars_send() -> None:
    alice = Seat().holds(X)
    for view in (*range(200), *range(2**31, 2**31 + 200)):
        for block_id in (X, Y, Z, ZERO):
            alice.hears(prevote(BOB, block_id, view), precommit(BOB, block_id, view))
    votes = [vote for vote in alice.voting.get_votes() if vote.voter == BOB]
    assert len(votes) == 2 * 2 * (VIEW_WINDOW + 1) + 1
    assert max(vote.view for vote in votes) == 2**31 + 199
    assert alice.voting.view == 0


def test_window_moves_with_the_view() -> None:
    alice = Seat().hears(prevote(BOB, X, 0), prevote(BOB, X, 20), prevote(CAROL, Y, 20))
    assert alice.voting.view == 20
    assert set(alice.voting.get_votes()) == {prevote(BOB, X, 20), prevote(CAROL, Y, 20)}
    assert alice.voting.vote_bitmap(20, PREVOTE) == 0b0110
    assert alice.voting.get_bitmaps() == ((20, PREVOTE, 0b0110),)


def test_window_keeps_every_view_around_mine_in_full() -> None:
    alice = Seat().hears(prevote(BOB, X, 20), prevote(CAROL, X, 20))
    kept = [prevote(DAVE, ZERO, view) for view in range(20 - VIEW_WINDOW, 20 + VIEW_WINDOW + 1)]
    alice.hears(prevote(DAVE, ZERO, 20 - VIEW_WINDOW - 1), *kept)
    assert {vote for vote in alice.voting.get_votes() if vote.voter == DAVE} == set(kept)


def test_vote_without_room_counts_for_its_own_view_and_phase_only() -> None:
    alice = locked_on_x().hears(prevote(BOB, ZERO, 30), prevote(DAVE, ZERO, 30))
    alice.hears(precommit(BOB, Y, 5), precommit(CAROL, Y, 5), precommit(DAVE, Y, 6))
    alice.hears(prevote(BOB, Y, 5), prevote(CAROL, Y, 6), prevote(DAVE, Y, 6))
    assert (alice.voting.certified, alice.voting.valid) == (None, (0, X))
    assert alice.voting.vote_bitmap(5, PREVOTE) == 0b0010
    assert alice.voting.vote_bitmap(5, PRECOMMIT) == 0


def test_lock_yields_to_a_quorum_sent_after_its_view_left_the_window() -> None:
    alice = locked_on_x()
    alice.hears(prevote(BOB, ZERO, 30), prevote(DAVE, ZERO, 30))  # view 30 is carol's
    alice.hears(*(prevote(voter, Y, 5) for voter in (BOB, CAROL, DAVE)), prevote(CAROL, Y, 30))
    assert (PREVOTE, 30, Y) in alice.cast()


def test_votes_that_prove_the_valid_block_are_sent_however_old() -> None:
    alice = locked_on_x().hears(prevote(BOB, ZERO, 30), prevote(DAVE, ZERO, 30))
    assert {prevote(BOB, X), prevote(CAROL, X)} <= set(alice.voting.get_votes())


# restart


def test_restart_takes_up_the_highest_view_signed_and_the_latest_lock() -> None:
    voting = Voting(height=4, members=MEMBERS, quorum=3, me=ALICE, waits=WAITS)
    rows = [prevote(ALICE, X), precommit(ALICE, X), prevote(ALICE, ZERO, 1), precommit(ALICE, ZERO, 1)]
    proof = [prevote(voter, X) for voter in (ALICE, BOB, CAROL)]
    actions = voting.resume([*rows, prevote(ALICE, X, 2)], proof)
    assert (voting.view, voting.step) == (2, Step.PRECOMMIT)
    assert voting.lock == voting.valid == (0, X)
    assert not any(isinstance(action, Cast) for action in actions)
    assert set(voting.get_votes()) == {*rows, prevote(ALICE, X, 2), *proof}


def test_restart_signs_no_slot_again() -> None:
    alice = Seat()
    alice.voting = Voting(height=4, members=MEMBERS, quorum=3, me=ALICE, waits=WAITS)
    alice.perform(alice.voting.resume([prevote(ALICE, Y), precommit(ALICE, ZERO)], []))
    alice.holds(X).hears(*(prevote(voter, X) for voter in (BOB, CAROL, DAVE)))
    assert alice.cast() == []
    assert alice.voting.valid == (0, X)


def test_restart_keeps_the_lock() -> None:
    alice = Seat()
    alice.voting = Voting(height=4, members=MEMBERS, quorum=3, me=ALICE, waits=WAITS)
    proof = [prevote(voter, X) for voter in (ALICE, BOB, CAROL)]
    alice.perform(alice.voting.resume([prevote(ALICE, X), precommit(ALICE, X), prevote(ALICE, X, 1)], proof))
    alice.holds(X, Y, acceptable=False)
    alice.hears(*(precommit(voter, ZERO, 1) for voter in (BOB, CAROL, DAVE)), prevote(CAROL, Y, 2))
    assert (PREVOTE, 2, Y) not in alice.cast()


def test_all_of_a_quorum_restarted_finalise_what_they_were_locked_on() -> None:
    proof = [prevote(voter, X) for voter in (ALICE, BOB, CAROL)]
    bob = Seat(BOB)
    bob.voting = Voting(height=4, members=MEMBERS, quorum=3, me=BOB, waits=WAITS)
    bob.perform(bob.voting.resume([prevote(BOB, X), precommit(BOB, X)], proof))
    bob.holds(X, acceptable=False)
    bob.hears(precommit(ALICE, X), precommit(CAROL, X))  # each sends its own rows again
    assert bob.finalised()[0].block_id == X


def test_restarted_coordinator_proposes_its_lock_with_what_justified_it() -> None:
    bob = Seat(BOB)
    bob.voting = Voting(height=4, members=MEMBERS, quorum=3, me=BOB, waits=WAITS)
    proof = [prevote(voter, Y) for voter in (ALICE, BOB, CAROL)]
    bob.perform(bob.voting.resume([prevote(BOB, Y), precommit(BOB, Y)], proof))
    bob.hears(*(precommit(voter, ZERO) for voter in (ALICE, CAROL, DAVE)))
    assert bob.cast() == []  # the block itself is not back yet, and no other will do
    bob.holds(X, Y, acceptable=False)
    assert Cast(PREVOTE, 1, Y, (prevote(BOB, Y), prevote(ALICE, Y), prevote(CAROL, Y))) in bob.done


def test_stored_row_fed_back_in_place_of_the_cast_binds() -> None:
    voting = Voting(height=4, members=MEMBERS, quorum=3, me=ALICE, waits=WAITS)
    voting.on_candidate(X, acceptable=True, complete=True)
    voting.on_candidate(Y, acceptable=False, complete=False)
    for voter in (BOB, CAROL, DAVE):
        voting.on_vote(prevote(voter, X))
    assert voting.lock == (0, X)
    voting.on_vote(precommit(ALICE, Y))  # what an earlier life had signed here
    assert voting.lock == (0, Y)


def test_own_vote_of_a_forgotten_life_carries_the_view_forward() -> None:
    alice = Seat().holds(X, acceptable=False).hears(precommit(ALICE, X, 6))
    assert (alice.voting.view, alice.voting.step) == (6, Step.WAIT)
    assert alice.voting.lock == (6, X)
    assert alice.cast() == []
