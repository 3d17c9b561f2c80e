"""The state of a federation: its bytes, what it refuses to be, and what it says of keys, turns and rounds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from chain.changes.members import AddMember, AddObserver, RemoveMember, ReplaceKey
from chain.changes.runs import EndRun, SetRounds
from chain.errors import GenesisError
from chain.run import Run, encode_canonical
from chain.signing import encode_id
from chain.state import Member, Observer, RetiredKey, State
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import execute

KEYS = make_keys(4)
A, B, C, D = (key.id for key in KEYS)
E, F, G = (key.id for key in make_keys(3, "newcomer"))
GENESIS = make_genesis(KEYS)
STATE = GENESIS.state
RICH = replace(
    STATE,
    members=(replace(STATE.members[0], is_suspended=True), *STATE.members[1:]),
    observers=(Observer(E, "archive"),),
    retired=(RetiredKey(F, seat=0, first=0, last=7),),
    executed={make_digest("a change"): 90, make_digest("another"): 80},
    num_seats=5,
    pow_since=3,
)


def decode(mapping: Any) -> State:
    return State.decode(STATE.chain_id, encode_canonical(mapping))


def change_part(**parts: Any) -> dict[str, Any]:
    return {**json.loads(RICH.canonical), **parts}


# Its bytes


@pytest.mark.parametrize("state", [STATE, RICH])
def test_a_state_is_read_back_from_its_bytes(state: State) -> None:
    read = State.decode(STATE.chain_id, state.canonical)
    assert read == state
    assert read.members == state.members
    assert (read.observers, read.retired, read.executed) == (state.observers, state.retired, state.executed)
    assert (read.run.to_mapping(), read.rules) == (state.run.to_mapping(), state.rules)


def test_its_bytes_are_ascii_json_with_sorted_keys() -> None:
    assert RICH.canonical.isascii()
    assert b" " not in RICH.canonical.replace(b'"', b"")
    assert encode_canonical(json.loads(RICH.canonical)) == RICH.canonical


@pytest.mark.parametrize(
    "spelling",
    [
        RICH.canonical + b"\n",
        b" " + RICH.canonical,
        RICH.canonical.replace(b'"pow_since":3', b'"pow_since": 3'),
        RICH.canonical.replace(b'"pow_since":3', b'"pow_since":4,"pow_since":3'),
        RICH.canonical.replace(b'"name":"node1"', b'"name":"n\\u006fde1"'),
        RICH.canonical.replace(b'"delta_s":0.05', b'"delta_s":5e-2'),
        json.dumps(json.loads(RICH.canonical)).encode(),
        RICH.canonical.decode().encode("utf-16"),
    ],
)
def test_another_spelling_of_its_bytes_is_refused(spelling: bytes) -> None:
    with pytest.raises(GenesisError, match="canonical bytes"):
        State.decode(STATE.chain_id, spelling)


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"[]", b"NaN", b"null", b'{"members":1}', b"[" * 100_000])
def test_bytes_of_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(GenesisError):
        State.decode(STATE.chain_id, data)


@pytest.mark.parametrize("part", sorted(json.loads(STATE.canonical)))
def test_a_state_without_a_part_is_refused(part: str) -> None:
    mapping = change_part()
    del mapping[part]
    with pytest.raises(GenesisError):
        decode(mapping)


@pytest.mark.parametrize("wrong", [None, True, -1, 1.5, "x", [1], [None], {"x": 1}, {"0" * 64: "1"}, [[]]])
@pytest.mark.parametrize("part", sorted(json.loads(STATE.canonical)))
def test_a_part_of_another_type_is_refused_and_nothing_else_happens(part: str, wrong: Any) -> None:
    with pytest.raises(GenesisError):
        decode(change_part(**{part: wrong}))


@pytest.mark.parametrize(
    "other",
    [
        replace(RICH, chain_id=make_digest("another chain")),
        replace(RICH, protocol=3),
        replace(RICH, members=(replace(RICH.members[0], name="x"), *RICH.members[1:])),
        replace(RICH, members=(replace(RICH.members[0], seat=4), *RICH.members[1:])),
        replace(RICH, members=(replace(RICH.members[0], since=1), *RICH.members[1:])),
        replace(RICH, members=(replace(RICH.members[0], key_since=1), *RICH.members[1:])),
        replace(RICH, members=(replace(RICH.members[0], is_suspended=False), *RICH.members[1:])),
        replace(RICH, members=(replace(RICH.members[0], pardoned_at=1), *RICH.members[1:])),
        replace(RICH, members=RICH.members[:3]),
        replace(RICH, observers=()),
        replace(RICH, observers=(Observer(E, "another"),)),
        replace(RICH, run=replace(RICH.run, number=2)),
        replace(RICH, run=replace(RICH.run, first_height=2)),
        replace(RICH, run=replace(RICH.run, rounds=11)),
        replace(RICH, run=replace(RICH.run, is_ended=True)),
        replace(RICH, run=replace(RICH.run, initial_model=make_digest("another"))),
        replace(RICH, run=replace(RICH.run, schema={"aggregate": "w"})),
        replace(RICH, rules=replace(RICH.rules, quorum="majority")),
        replace(RICH, rules=replace(RICH.rules, min_contributions=1)),
        replace(RICH, num_seats=6),
        replace(RICH, pow_since=4),
        replace(RICH, retired=()),
        replace(RICH, retired=(RetiredKey(F, seat=0, first=0, last=8),)),
        replace(RICH, executed={make_digest("a change"): 90}),
        replace(RICH, executed={make_digest("a change"): 90, make_digest("another"): 81}),
    ],
)
def test_each_part_counts_in_the_digest(other: State) -> None:
    assert other.digest != RICH.digest
    assert other != RICH
    assert State.decode(other.chain_id, other.canonical) == other


def test_the_order_in_which_changes_were_executed_does_not_count() -> None:
    backwards = dict(reversed(list(RICH.executed.items())))
    assert list(backwards) != list(RICH.executed)
    assert replace(RICH, executed=backwards) == RICH
    assert hash(replace(RICH, executed=backwards)) == hash(RICH)


# What it refuses to be


def rename(state: State, index: int, **changes: Any) -> tuple[Member, ...]:
    return tuple(replace(m, **changes) if i == index else m for i, m in enumerate(state.members))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"protocol": 0}, "protocol: expected 1 to 65535, got 0"),
        ({"num_seats": 0}, "num_seats: expected 1 to"),
        ({"num_seats": 2**32}, "num_seats: expected 1 to"),
        ({"pow_since": -1}, "pow_since: expected 0 to"),
        ({"members": ()}, "number of members: expected 1 to"),
        ({"members": STATE.members[::-1]}, "members sorted by key"),
        ({"members": (STATE.members[0], *STATE.members)}, "one entry per key"),
        ({"members": rename(STATE, 1, name="node0")}, "expected each name once, got 'node0' again"),
        ({"members": rename(STATE, 1, name="")}, "printable characters"),
        ({"members": rename(STATE, 1, name="a\nb")}, "printable characters"),
        ({"members": rename(STATE, 1, seat=0)}, r"expected seats below 4, one each, got \[0, 0, 2, 3\]"),
        ({"members": rename(STATE, 1, seat=4)}, "expected seats below 4"),
        ({"members": rename(STATE, 1, seat=-1)}, "expected seats below 4"),
        (
            {"members": (replace(STATE.members[0], key=bytes(32)), *STATE.members[1:])},
            r"members\[0\].key: .*small-order",
        ),
        ({"members": (*STATE.members[:3], replace(STATE.members[3], key=b"\xff" * 32))}, "canonical encoding"),
        ({"observers": (Observer(A, "archive"),)}, "observers.*expected no member's key"),
        ({"observers": (Observer(E, "one"), Observer(E, "two"))}, "one entry per key"),
        ({"observers": tuple(Observer(key, "one") for key in sorted((E, F)))}, "each name once"),
        ({"observers": (Observer(bytes(32), "one"),)}, "small-order"),
    ],
)
def test_a_state_that_could_not_judge_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(GenesisError, match=message):
        replace(STATE, **parts)


@pytest.mark.parametrize(
    ("field", "value"), [("seat", 2**32), ("since", -1), ("key_since", 2**63), ("pardoned_at", -1), ("is_suspended", 0)]
)
def test_a_stored_member_out_of_range_is_refused(field: str, value: int) -> None:
    mapping = change_part(num_seats=2**33)
    mapping["members"][0][field] = value
    with pytest.raises(GenesisError, match=rf"members\[0\].{field}"):
        decode(mapping)


@pytest.mark.parametrize(("field", "value"), [("seat", -1), ("first", -1), ("last", 0), ("last", 2**63)])
def test_a_stored_retired_key_out_of_range_is_refused(field: str, value: int) -> None:
    mapping = change_part()
    mapping["retired"][0][field] = value
    with pytest.raises(GenesisError, match=rf"retired\[0\].{field}"):
        decode(mapping)


# Who decides


def test_a_member_is_found_by_its_key_and_by_its_seat() -> None:
    assert [STATE.index_of(key) for key in (A, D, E)] == [0, 3, None]
    assert STATE.get_member(B) == STATE.members[1] == STATE.get_seat(1)
    assert STATE.get_member(E) is None
    assert STATE.get_seat(4) is None


def test_the_suspended_are_members_and_not_active() -> None:
    assert RICH.member_ids == (A, B, C, D)
    assert RICH.active_ids == (B, C, D)
    assert [RICH.is_active(key) for key in (A, B, E)] == [False, True, False]
    assert (RICH.n, RICH.q) == (4, 3)


def test_active_ids_follow_the_order_of_keys_not_of_seats() -> None:
    after = execute(execute(STATE, ReplaceKey(3, E)), ReplaceKey(0, F), 2)
    assert list(after.active_ids) == sorted((B, C, E, F)) == [member.key for member in after.members]
    assert sorted(member.seat for member in after.members) == [0, 1, 2, 3]


@pytest.mark.parametrize(("given", "expected"), [(None, 3), (1, 1), (2, 2), (3, 3), (4, 3), (100, 3)])
def test_min_contributions_is_a_quorum_unless_the_rules_name_less(given: int | None, expected: int) -> None:
    state = replace(STATE, rules=replace(STATE.rules, min_contributions=given))
    assert state.min_contributions == expected


def test_min_contributions_above_a_quorum_counts_again_when_the_federation_grows() -> None:
    state = replace(STATE, rules=replace(STATE.rules, min_contributions=4))
    assert state.min_contributions == 3
    assert execute(state, AddMember(E, "node4")).min_contributions == 4


# Who held a key


def test_a_founder_held_its_key_from_height_one_on() -> None:
    assert [STATE.find_holder(B, height) for height in (0, 1, 2, 10**9)] == [None, 1, 1, 1]
    assert STATE.find_holder(E, 1) is None


def test_a_joiner_holds_its_key_from_the_height_after_its_block() -> None:
    after = execute(STATE, AddMember(E, "node4"), 5)
    assert [after.find_holder(E, height) for height in (4, 5, 6)] == [None, None, 4]


def test_a_key_change_divides_the_heights_between_both_keys() -> None:
    after = execute(STATE, ReplaceKey(1, E), 5)
    assert [after.find_holder(B, height) for height in (0, 1, 5, 6)] == [None, 1, 1, None]
    assert [after.find_holder(E, height) for height in (5, 6, 7)] == [None, 1, 1]
    again = execute(after, ReplaceKey(1, F), 8)
    assert [again.find_holder(E, height) for height in (5, 6, 8, 9)] == [None, 1, 1, None]
    assert [again.find_holder(F, height) for height in (8, 9)] == [None, 1]
    assert [again.find_holder(B, height) for height in (5, 6)] == [1, None]


def test_the_key_of_a_removed_member_is_remembered_up_to_its_last_height() -> None:
    after = execute(STATE, RemoveMember(1), 5)
    assert [after.find_holder(B, height) for height in (1, 5, 6)] == [1, 1, None]


def test_of_each_height_exactly_the_keys_in_force_have_a_holder() -> None:
    states = [STATE]
    for kind in (
        ReplaceKey(0, E),
        AddMember(F, "node4"),
        RemoveMember(1),
        ReplaceKey(0, G),
        AddObserver(make_keys(1, "observer")[0].id, "o"),
    ):
        states.append(execute(states[-1], kind, len(states)))
    for height in range(1, len(states) + 1):
        judge = states[height - 1]
        for key in (A, B, C, D, E, F, G):
            member = judge.get_member(key)
            assert states[-1].find_holder(key, height) == (None if member is None else member.seat)


# Its run


def test_rounds_count_from_the_first_height_of_their_run() -> None:
    run = replace(STATE.run, first_height=7, rounds=3)
    assert [run.get_round(height) for height in (7, 8, 9)] == [1, 2, 3]
    assert [run.has_round(height) for height in (7, 9, 10)] == [True, True, False]


def test_a_run_of_zero_rounds_has_no_end_but_by_a_change() -> None:
    run = replace(STATE.run, rounds=0)
    assert run.has_round(10**12)
    assert not replace(run, is_ended=True).has_round(1)


def test_a_change_block_takes_a_height_and_no_round() -> None:
    after = execute(STATE, AddObserver(E, "archive"), 4)  # three rounds were made
    assert after.run.first_height == 2
    assert after.run.get_round(5) == 4
    assert [after.has_round(height) for height in (11, 12)] == [True, False]  # round 10 makes block 11


def test_a_run_that_is_over_stays_over_whatever_changes_follow() -> None:
    assert not STATE.has_round(11)
    after = execute(STATE, AddObserver(E, "archive"), 11)
    assert not after.has_round(12)
    assert not execute(after, AddObserver(F, "second"), 12).has_round(13)


def test_rounds_can_be_added_to_a_run_that_was_over_and_had_changes_since() -> None:
    idle = execute(STATE, AddObserver(E, "archive"), 11)
    after = execute(idle, SetRounds(1, 10, 11), 12)
    assert after.run.get_round(13) == 11
    assert [after.has_round(height) for height in (13, 14)] == [True, False]


def test_an_ended_run_has_no_round_and_stays_in_the_state() -> None:
    after = execute(STATE, EndRun(1), 4)
    assert after.run.number == 1
    assert after.run.is_ended
    assert not after.has_round(5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("number", 0, "number: expected 1 to"),
        ("number", 2**32, "number"),
        ("first_height", 0, "first_height: expected 1 to"),
        ("first_height", 2**63, "first_height"),
        ("rounds", -1, "rounds: expected 0 to"),
        ("initial_model", bytes(31), "initial_model: expected 32 bytes, got 31"),
        ("method", {}, "method.name: expected a name"),
        ("model", {"name": ""}, "model.name: expected a name"),
        ("classes", (), "classes: expected at least one"),
        ("classes", ("a", "a"), r"classes\[1\]: expected each name once"),
        ("schema", {"arrays": "x" * 65_536}, "size of the schema: expected 2 to 65536"),
    ],
)
def test_a_run_that_could_not_be_trained_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(GenesisError, match=message):
        replace(STATE.run, **{field: value})


def test_a_run_is_read_back_from_what_is_hashed() -> None:
    run = replace(STATE.run, first_height=7, is_ended=True, schema={"aggregate": {"w": [2, 3]}})
    assert Run.from_mapping(json.loads(encode_canonical(run.to_mapping()))).to_mapping() == run.to_mapping()


def test_a_repr_names_no_key() -> None:
    assert encode_id(A) not in repr(STATE)
    assert repr(STATE).startswith(f"State({STATE.digest.hex()[:8]}, n=4, q=3, run=1)")
