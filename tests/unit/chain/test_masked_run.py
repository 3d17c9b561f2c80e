"""A run of masked sums on the chain: honest members in every sum, whatever changes, and the blocks of its rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chain.calendar import Calendar, Place
from chain.changes.base import Kind
from chain.changes.members import AddMember, AddObserver, RemoveMember
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.errors import GenesisError, InvalidChange
from chain.state import State
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import execute

KEYS = make_keys(4)
NEW = make_keys(1, "new")[0].id
MASKED = {"name": "fedavg", "aggregation": "masked_sum"}
MODEL = make_digest("a model")
WAIT, EXTRA, MORE = (AddObserver(key.id, f"observer {i}") for i, key in enumerate(make_keys(3, "observer")))


def make_state(n: int = 4, **overrides: Any) -> State:
    return make_genesis(make_keys(n), **{"method": MASKED, "rounds": 2, **overrides}).state


STATE = make_state()


# ---- who is in every sum


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_than_four_members_are_refused(n: int) -> None:
    """One of three may lie, and the sum of the others would show each of them the other."""
    assert make_state(4).run.is_masked
    assert make_state(n, method={"name": "fedavg", "aggregation": "mean"}).n == n
    with pytest.raises(GenesisError, match=rf"^members: expected at least 4 with aggregation masked_sum, got {n}$"):
        make_state(n)


def test_members_are_four_at_least_until_the_run_is_over() -> None:
    assert execute(make_state(5), RemoveMember(4)).n == 4
    with pytest.raises(InvalidChange, match=r"remove_member: members: expected at least 4 .*, got 3"):
        execute(STATE, RemoveMember(3))
    assert execute(execute(STATE, EndRun(1)), RemoveMember(3), 2).n == 3


def test_three_members_start_no_run_of_masked_sums() -> None:
    terms = {name: value for name, value in STATE.run.to_terms().items() if name != "initial_model"}
    plain = make_state(3, method={"name": "fedavg"})
    with pytest.raises(InvalidChange, match="start_run: members: expected at least 4"):
        execute(plain, StartRun(2, terms, MODEL))


def test_a_quorum_of_a_simple_majority_is_refused() -> None:
    assert make_state(quorum="bft").q == 3
    assert make_state(quorum="majority", method={"name": "fedavg", "aggregation": "mean"}).q == 3
    with pytest.raises(GenesisError, match=r"^quorum: expected bft with aggregation masked_sum, got majority$"):
        make_state(quorum="majority")


@pytest.mark.parametrize("number", [1, 2])
def test_a_block_of_fewer_contributions_than_a_quorum_is_refused(number: int) -> None:
    assert make_state(min_contributions=number, method={"name": "fedavg"}).min_contributions == number
    problem = f"^min_contributions: expected a quorum with aggregation masked_sum, got {number}$"
    with pytest.raises(GenesisError, match=problem):
        make_state(min_contributions=number)


@pytest.mark.parametrize("number", [None, 3])
def test_a_block_of_a_quorum_is_taken(number: int | None) -> None:
    assert make_state(min_contributions=number).min_contributions == 3


@pytest.mark.parametrize("rules", [{"quorum": "majority"}, {"min_contributions": 1}])
def test_a_run_that_has_ended_hides_nothing_any_more(rules: dict[str, Any]) -> None:
    ended = replace(STATE, run=replace(STATE.run, is_ended=True))
    assert ended.run.is_masked
    assert replace(ended, rules=replace(ended.rules, **rules)).run.is_ended
    with pytest.raises(GenesisError, match=next(iter(rules))):
        replace(STATE, rules=replace(STATE.rules, **rules))


def test_a_state_that_was_stored_is_held_to_it_too() -> None:
    assert State.decode(STATE.chain_id, STATE.canonical) == STATE
    loose = STATE.canonical.replace(b'"min_contributions":null', b'"min_contributions":2')
    assert loose != STATE.canonical
    with pytest.raises(GenesisError, match="min_contributions"):
        State.decode(STATE.chain_id, loose)
    few = make_state(3, method={"name": "fedavg", "aggregation": "mean"})
    hidden = few.canonical.replace(b'"aggregation":"mean"', b'"aggregation":"masked_sum"')
    with pytest.raises(GenesisError, match=r"^members: expected at least 4"):
        State.decode(few.chain_id, hidden)


# ---- changes


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"quorum": ("bft", "majority")}, "set_rules: quorum: expected bft with aggregation masked_sum"),
        ({"min_contributions": (None, 2)}, "set_rules: min_contributions: expected a quorum"),
    ],
)
def test_rules_cannot_come_to_allow_fewer_while_it_runs(values: dict[str, tuple[Any, Any]], problem: str) -> None:
    with pytest.raises(InvalidChange, match=problem):
        execute(STATE, SetRules(values))
    assert execute(execute(STATE, EndRun(1)), SetRules(values), 2).run.is_ended


def test_a_number_that_was_a_quorum_is_refused_where_a_member_more_makes_it_fewer() -> None:
    assert execute(STATE, AddMember(NEW, "node4")).min_contributions == 4
    with pytest.raises(InvalidChange, match=r"add_member: min_contributions: expected a quorum .*, got 3"):
        execute(make_state(min_contributions=3), AddMember(NEW, "node4"))
    assert execute(make_state(5, min_contributions=4), RemoveMember(4)).min_contributions == 3


@pytest.mark.parametrize("rules", [{"quorum": "majority"}, {"min_contributions": 2}])
def test_a_run_that_follows_is_refused_under_rules_that_allow_fewer(rules: dict[str, Any]) -> None:
    plain, strict = make_state(method={"name": "fedavg"}, **rules), make_state(method={"name": "fedavg"})
    masked = StartRun(
        2, {name: value for name, value in STATE.run.to_terms().items() if name != "initial_model"}, MODEL
    )
    assert execute(strict, masked).run.is_masked
    with pytest.raises(InvalidChange, match=next(iter(rules))):
        execute(plain, masked)


# ---- the blocks of its rounds


@pytest.mark.parametrize(("rounds", "heights"), [(0, 0), (1, 3), (2, 5), (10, 21)])
def test_a_round_makes_two_blocks_after_one_of_keys(rounds: int, heights: int) -> None:
    run = replace(STATE.run, rounds=rounds)
    assert run.num_heights == run.count_heights(rounds) == heights
    plain = replace(run, method={"name": "fedavg"})
    assert plain.num_heights == rounds


def test_its_last_block_is_that_of_the_last_openings() -> None:
    assert [STATE.has_round(height) for height in (1, 4, 5, 6)] == [True, True, True, False]
    endless = replace(STATE, run=replace(STATE.run, rounds=0))
    assert endless.has_round(10**9)


def test_rounds_can_be_fewer_down_to_those_that_are_made() -> None:
    state = make_state(rounds=10)
    assert execute(state, SetRounds(1, 10, 1), 4).run.num_heights == 3
    with pytest.raises(InvalidChange, match="rounds: expected 0 or at least the 2 made, got 1"):
        execute(state, SetRounds(1, 10, 1), 5)
    assert execute(state, SetRounds(1, 10, 2), 5).run.num_heights == 5


# ---- what a change leaves of them


def follow(state: State, *changes: tuple[Kind, int]) -> State:
    """The state after these changes, each in the block of its height."""
    for kind, height in changes:
        state = execute(state, kind, height)
    return state


def number(state: State, height: int) -> tuple[int, bool]:
    """Which of the run's blocks a height is to be, and whether it is one of inputs."""
    return state.run.get_round(height), state.run.is_of_inputs(height)


@pytest.mark.parametrize("height", [1, 3, 5])
def test_a_change_in_the_place_of_keys_or_openings_puts_them_off_by_a_height(height: int) -> None:
    after = execute(STATE, WAIT, height)
    assert number(after, height + 1) == number(STATE, height) == (height, False)
    assert after.has_round(6)
    assert not after.has_round(7)


@pytest.mark.parametrize("height", [2, 4])
def test_a_change_in_the_place_of_inputs_takes_their_round_and_leaves_the_next_where_it_was(height: int) -> None:
    """Nobody has a key for inputs on the block of a change: the next height is one of openings, at which keys are
    shown."""
    after = execute(STATE, WAIT, height)
    assert after.run.first_height == STATE.run.first_height == 1
    assert number(after, height + 1) == (height + 1, False)
    assert [after.has_round(h) for h in (5, 6)] == [True, False]


def test_changes_one_after_the_other_take_one_round_at_most() -> None:
    after = follow(STATE, (WAIT, 2), (EXTRA, 3), (MORE, 4))
    assert number(after, 5) == (3, False)
    assert number(after, 6) == (4, True)


@pytest.mark.parametrize("height", [6, 8])
def test_a_change_after_the_last_round_takes_none_of_those_that_are_added_later(height: int) -> None:
    """It stands where inputs would, of a round that the run has not: keys that the last openings have shown hide those
    of the first round that is added."""
    idle = [(WAIT, 6), (EXTRA, 7)][: height - 6]
    state = follow(STATE, *idle)
    assert not state.has_round(height)
    longer = execute(state, SetRounds(1, 2, 3), height)
    assert longer.has_round(height + 1)
    assert number(longer, height + 1) == (6, True)


def test_a_change_of_a_run_that_is_over_takes_no_round_either() -> None:
    ended = execute(STATE, EndRun(1), 3)
    assert ended.run.first_height == 2
    assert [execute(ended, WAIT, height).run.first_height for height in (4, 5)] == [3, 3]


def test_in_a_run_without_masks_every_change_puts_its_round_off() -> None:
    plain = make_state(method={"name": "fedavg"})
    assert [execute(plain, WAIT, height).run.first_height for height in (1, 2, 3, 4)] == [2] * 4


def test_the_calendar_has_a_round_that_a_change_took_at_no_height() -> None:
    after = execute(STATE, WAIT, 2)
    calendar = Calendar([(0, STATE), (2, after)])
    assert [calendar.get_place(height) for height in range(1, 7)] == [
        Place(1, 1),
        None,
        Place(1, 3),
        Place(1, 4),
        Place(1, 5),
        None,
    ]
    assert [calendar.get_height(Place(1, block)) for block in range(1, 7)] == [1, None, 3, 4, 5, None]


def test_a_change_that_makes_a_run_shorter_takes_none_of_the_rounds_that_are_added_again() -> None:
    """It stands in the place of the inputs of round 2, which the run has no more then."""
    shorter = execute(make_state(), SetRounds(1, 2, 1), 4)
    assert not shorter.has_round(5)
    longer = execute(shorter, SetRounds(1, 1, 2), 5)
    assert number(longer, 6) == (4, True)
