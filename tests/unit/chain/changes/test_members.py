"""Changes of who takes part: members that come and go, keys that are replaced, observers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain.changes.base import Kind
from chain.changes.execution import RETIRED_HEIGHTS
from chain.changes.members import (
    ROTATION_HEIGHTS,
    AddMember,
    AddObserver,
    Pardon,
    RemoveMember,
    RemoveObserver,
    ReplaceKey,
)
from chain.errors import InvalidChange
from chain.state import Member, Observer, RetiredKey, State
from support.data.chains import make_genesis, make_keys
from support.data.changes import execute

KEYS = make_keys(4)
A, B, C, D = (key.id for key in KEYS)
E, F = (key.id for key in make_keys(2, "newcomer"))
STATE = make_genesis(KEYS).state


def refuse(state: State, kind: Kind, message: str, height: int = 1) -> None:
    with pytest.raises(InvalidChange, match=message):
        execute(state, kind, height)


def suspend(state: State, *seats: int) -> State:
    return replace(state, members=tuple(replace(m, is_suspended=m.seat in seats) for m in state.members))


# add_member


def test_a_joiner_is_a_member_in_key_order_on_a_seat_of_its_own() -> None:
    after = execute(STATE, AddMember(E, "node4"), 5)
    assert after.member_ids == tuple(sorted((A, B, C, D, E)))
    assert after.get_member(E) == Member(E, "node4", seat=4, since=5, key_since=5)
    assert (after.n, after.q, after.num_seats) == (5, 4, 5)
    assert {m for m in after.members if m.key != E} == set(STATE.members)


def test_a_seat_is_never_given_twice() -> None:
    after = execute(execute(STATE, RemoveMember(3), 1), AddMember(E, "node4"), 2)
    assert sorted(m.seat for m in after.members) == [0, 1, 2, 4]
    again = execute(execute(after, RemoveMember(4), 3), AddMember(F, "node5"), 4)
    assert sorted(m.seat for m in again.members) == [0, 1, 2, 5]


def test_an_observer_that_joins_is_an_observer_no_more() -> None:
    observed = execute(STATE, AddObserver(E, "archive"))
    after = execute(observed, AddMember(E, "archive"), 2)
    assert after.observers == ()
    assert after.index_of(E) is not None


def test_who_cannot_join() -> None:
    refuse(STATE, AddMember(B, "node4"), "key: expected one that is no member's")
    refuse(STATE, AddMember(E, "node0"), "expected each name once, got 'node0' again")
    refuse(STATE, AddMember(bytes(32), "node4"), "small-order")
    refuse(STATE, AddMember(b"\xff" * 32, "node4"), "canonical encoding")


def test_a_removed_key_may_come_back_only_once_it_is_forgotten() -> None:
    removed = execute(STATE, RemoveMember(1), 5)
    refuse(removed, AddMember(B, "node1"), "one that never was a member's", height=6)
    assert removed.retired == (RetiredKey(B, seat=1, first=0, last=5),)
    last = 5 + RETIRED_HEIGHTS
    assert execute(removed, AddObserver(E, "x"), last).retired == removed.retired
    forgotten = execute(removed, AddObserver(E, "x"), last + 1)
    assert forgotten.retired == ()
    back = execute(forgotten, AddMember(B, "node1"), last + 2)
    assert back.get_member(B) == Member(B, "node1", seat=4, since=last + 2, key_since=last + 2)


def test_a_key_is_remembered_for_as_long_as_evidence_may_name_it() -> None:
    rules = replace(STATE.rules, evidence_heights=3000)
    removed = execute(replace(STATE, rules=rules), RemoveMember(1), 5)
    assert execute(removed, AddObserver(E, "x"), 3005).retired
    assert not execute(removed, AddObserver(E, "x"), 3006).retired


# remove_member


def test_a_removed_member_is_gone_and_the_others_keep_their_seats() -> None:
    after = execute(STATE, RemoveMember(1), 5)
    assert after.member_ids == (A, C, D)
    assert [m.seat for m in after.members] == [0, 2, 3]
    assert (after.n, after.q, after.num_seats) == (3, 3, 4)


def test_who_cannot_be_removed() -> None:
    refuse(STATE, RemoveMember(4), "seat 4: nobody sits there")
    refuse(STATE, RemoveMember(-1), "seat -1: nobody sits there")
    alone = make_genesis(KEYS[:1]).state
    refuse(alone, RemoveMember(0), "number of members: expected 1 to")


def test_no_member_goes_when_the_suspended_would_be_needed() -> None:
    refuse(suspend(STATE, 0), RemoveMember(1), "members not suspended: expected at least 3, got 2")
    after = execute(suspend(STATE, 0), RemoveMember(0))  # it is the suspended that may go
    assert after.active_ids == after.member_ids == (B, C, D)


# replace_key


def test_a_new_key_takes_the_seat_and_all_that_goes_with_it() -> None:
    held = replace(STATE, members=(replace(STATE.members[0], is_suspended=True, pardoned_at=3), *STATE.members[1:]))
    after = execute(held, ReplaceKey(0, E), 5)
    assert after.get_seat(0) == Member(E, "node0", 0, since=0, key_since=5, is_suspended=True, pardoned_at=3)
    assert after.index_of(A) is None
    assert after.member_ids == tuple(sorted((B, C, D, E)))
    assert after.retired == (RetiredKey(A, seat=0, first=0, last=5),)


def test_an_observers_key_may_take_a_seat_and_observes_no_more() -> None:
    observed = execute(execute(STATE, AddObserver(E, "archive")), AddObserver(F, "auditor"), 2)
    after = execute(observed, ReplaceKey(0, E), 3)
    assert after.get_seat(0) == Member(E, "node0", 0, since=0, key_since=3)
    assert after.observers == (Observer(F, "auditor"),)


def test_keys_that_cannot_take_a_seat() -> None:
    refuse(STATE, ReplaceKey(0, A), "key: expected one that is no member's")
    refuse(STATE, ReplaceKey(0, B), "key: expected one that is no member's")
    refuse(STATE, ReplaceKey(4, E), "seat 4: nobody sits there")
    refuse(STATE, ReplaceKey(0, bytes(32)), "small-order")
    rotated = execute(STATE, ReplaceKey(0, E))
    refuse(rotated, ReplaceKey(0, A), "one that never was a member's", height=2)
    refuse(rotated, ReplaceKey(1, A), "one that never was a member's", height=2)


def test_a_member_may_rotate_its_key_once_in_a_thousand_heights() -> None:
    kind = ReplaceKey(0, F)
    assert kind.may_rotate(STATE, 1)  # its first key may go at any time
    rotated = execute(STATE, ReplaceKey(0, E), 7)
    assert [kind.may_rotate(rotated, 7 + n) for n in (1, ROTATION_HEIGHTS - 1, ROTATION_HEIGHTS)] == [
        False,
        False,
        True,
    ]
    assert ReplaceKey(1, F).may_rotate(rotated, 8)


# add_observer, remove_observer


def test_observers_come_and_go() -> None:
    one = execute(STATE, AddObserver(E, "archive"))
    two = execute(one, AddObserver(F, "auditor"), 2)
    assert two.observers == tuple(sorted((Observer(E, "archive"), Observer(F, "auditor")), key=lambda o: o.key))
    assert two.members == STATE.members
    assert execute(two, RemoveObserver(E), 3).observers == (Observer(F, "auditor"),)


def test_who_cannot_observe_and_who_cannot_cease_to() -> None:
    refuse(STATE, AddObserver(A, "archive"), "key: expected one that is no member's")
    one = execute(STATE, AddObserver(E, "archive"))
    refuse(one, AddObserver(E, "second"), "is an observer already", height=2)
    refuse(one, AddObserver(F, "archive"), "expected each name once", height=2)
    refuse(one, RemoveObserver(F), "is no observer", height=2)
    refuse(one, RemoveObserver(A), "is no observer", height=2)
    refuse(STATE, AddObserver(bytes(32), "archive"), "small-order")


def test_a_pardon_is_for_the_suspended() -> None:
    refuse(STATE, Pardon(0), "node0 is not suspended")
    refuse(STATE, Pardon(4), "seat 4: nobody sits there")
    after = execute(suspend(STATE, 2), Pardon(2), 9)
    assert after.get_seat(2) == replace(STATE.members[2], pardoned_at=9)
    assert after.active_ids == after.member_ids
