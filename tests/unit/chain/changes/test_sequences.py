"""Changes in any order: every node derives the same state, and each state can judge the next height."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from chain.block import Phase
from chain.changes.base import Kind, Place
from chain.changes.execution import execute_change
from chain.changes.members import (
    AddMember,
    AddObserver,
    Convict,
    Pardon,
    RemoveMember,
    RemoveObserver,
    ReplaceKey,
)
from chain.changes.rules import SetRules, Upgrade
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.codec import sign_vote
from chain.errors import InvalidChange
from chain.evidence import encode_evidence, make_evidence
from chain.state import State
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import MODEL, propose

FOUNDERS = make_keys(4)
POOL = [*FOUNDERS, *make_keys(4, "newcomer")]
STATE = make_genesis(FOUNDERS).state
TERMS = {name: value for name, value in STATE.run.to_terms().items() if name != "initial_model"}


def sign_twice(key: int, height: int) -> Convict:
    one, two = (
        sign_vote(POOL[key], STATE.chain_id, phase=Phase.PREVOTE, height=height, view=0, block_id=make_digest(name))
        for name in ("one", "two")
    )
    return Convict(encode_evidence(make_evidence(one, two)))


keys = st.sampled_from([key.id for key in POOL])
seats = st.integers(0, 6)
names = st.sampled_from(["node0", "node8", "node9"])
numbers = st.integers(0, 3)
rules = st.sampled_from(
    [
        {"quorum": ("bft", "majority")},
        {"quorum": ("majority", "bft")},
        {"evidence_heights": (100, 1)},
        {"evidence_heights": (100, 3000)},
        {"pow.difficulty": (4, 8)},
        {"waits.collect_s": (2, 3)},
    ]
)
kinds: st.SearchStrategy[Kind] = st.one_of(
    st.builds(AddMember, keys, names),
    st.builds(RemoveMember, seats),
    st.builds(ReplaceKey, seats, keys),
    st.builds(sign_twice, st.integers(0, 7), st.integers(1, 12)),
    st.builds(Pardon, seats),
    st.builds(AddObserver, keys, names),
    st.builds(RemoveObserver, keys),
    st.builds(StartRun, numbers, st.just(TERMS), st.just(MODEL)),
    st.builds(SetRounds, numbers, st.just(10), numbers),
    st.builds(EndRun, numbers),
    st.builds(SetRules, rules),
    st.builds(Upgrade, st.integers(2, 4)),
)
gaps = st.integers(1, 3) | st.sampled_from([99, 100, 999, 1000, 1001])


def try_to_execute(state: State, kind: Kind, height: int) -> State | str:
    try:
        return execute_change(state, propose(kind, made=height - 1), Place(height, MODEL))
    except InvalidChange as error:
        return str(error)


@settings(max_examples=150)
@given(st.lists(st.tuples(gaps, kinds), max_size=12))
def test_a_node_that_was_restarted_at_every_change_derives_the_same(steps: list[tuple[int, Kind]]) -> None:
    state, height = STATE, 0
    for gap, kind in steps:
        height += gap
        after = try_to_execute(state, kind, height)
        again = try_to_execute(State.decode(STATE.chain_id, state.canonical), kind, height)
        assert after == again
        if isinstance(after, State):
            check(state, after, height)
            state = after


def check(before: State, after: State, height: int) -> None:
    assert after.n >= 1
    assert 2 * after.q > after.n
    assert after.min_contributions <= after.q <= len(after.active_ids)
    assert len(after.executed) >= 1
    assert all(expires >= height for expires in after.executed.values())
    assert abs(after.n - before.n) <= 1
    assert after.num_seats >= before.num_seats
    if after.run.number == before.run.number and not after.run.is_ended:
        assert after.run.get_round(height + 1) == before.run.get_round(height)  # the change took no round
    for key in (key.id for key in POOL):
        member, judge = after.get_member(key), before.get_member(key)
        assert after.find_holder(key, height + 1) == (None if member is None else member.seat)
        assert after.find_holder(key, height) == (None if judge is None else judge.seat)


def test_what_is_compared_differs_where_states_do() -> None:
    assert try_to_execute(STATE, EndRun(1), 1) != try_to_execute(replace(STATE, protocol=3), EndRun(1), 1)
