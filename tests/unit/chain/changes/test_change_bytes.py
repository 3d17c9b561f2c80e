"""Changes as bytes: one spelling each, and whatever else a peer sends is an invalid change and nothing worse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.approvals import MAX_CHANGE_BYTES
from chain.changes.base import Kind, Place
from chain.changes.change import KINDS, MAX_NOTE_CHARS, Change, read_change
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
from chain.errors import GenesisError, InvalidChange
from chain.run import encode_canonical
from chain.signing import encode_id
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import MODEL, propose

STATE = make_genesis(make_keys(4)).state
KEY = make_keys(1, "newcomer")[0].id
TERMS = {name: value for name, value in STATE.run.to_terms().items() if name != "initial_model"}
EXAMPLES: list[Kind] = [
    AddMember(KEY, "node4"),
    RemoveMember(3),
    ReplaceKey(3, KEY),
    Convict(bytes(20)),
    Pardon(3),
    AddObserver(KEY, "archive"),
    RemoveObserver(KEY),
    StartRun(2, TERMS, None),
    StartRun(2, TERMS, MODEL),
    SetRounds(1, 10, 20),
    EndRun(1),
    SetRules({"keep_heights": (2, 3), "min_contributions": (None, 2), "quorum": ("bft", "majority")}),
    Upgrade(3),
]


def is_change(data: bytes) -> bool:
    """Whether these bytes are read as a change, which has no other bytes; InvalidChange alone says that they are
    not, in a line that a log can hold."""
    try:
        change = read_change(data)
    except InvalidChange as error:
        check_line(error)
        return False
    assert change.data == data
    assert Change.from_mapping(json.loads(data)).data == data
    try:
        execute_change(STATE, change, Place(1, MODEL))
    except InvalidChange as error:
        check_line(error)
    return True


def check_line(error: InvalidChange) -> None:
    text = str(error)
    assert len(text) <= 400
    assert text.isprintable()


def spell(**fields: Any) -> bytes:
    """A change to end run 1, with other fields."""
    return encode_canonical({**propose(EndRun(1)).to_mapping(), **fields})


def test_there_are_twelve_kinds() -> None:
    assert {kind.name for kind in EXAMPLES} == set(KINDS)
    assert len(KINDS) == 12


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_change_is_read_back_from_its_bytes(kind: Kind) -> None:
    change = propose(kind, by=2, made=7)
    assert change.data.isascii()
    assert encode_canonical(json.loads(change.data)) == change.data
    read = read_change(change.data)
    assert read == change
    assert read.compute_id(STATE.chain_id) == change.compute_id(STATE.chain_id)
    assert read.kind.get_new_key() == kind.get_new_key()


def test_its_bytes_are_those_of_the_document() -> None:
    assert propose(EndRun(1), by=2, made=7).data == (
        b'{"by":2,"change":"end_run","expires":107,"from":8,"made":7,"note":"","run":1}'
    )
    assert json.loads(propose(SetRules({"keep_heights": (2, 3)})).data)["rules"] == {"keep_heights": [2, 3]}
    assert json.loads(propose(ReplaceKey(3, KEY)).data)["new"] == encode_id(KEY)


@pytest.mark.parametrize("field", ["by", "change", "expires", "from", "made", "note", "run"])
def test_each_field_counts_and_none_may_lack(field: str) -> None:
    mapping = propose(EndRun(1)).to_mapping()
    others: dict[str, Any] = {"by": 3, "change": "pardon", "expires": 99, "from": 2, "made": 0, "note": "x", "run": 2}
    changed = {**propose(EndRun(1), made=1, first=3).to_mapping(), field: others[field]}
    if field == "change":
        changed["seat"] = changed.pop("run")
    other = Change.from_mapping(changed)
    assert other.compute_id(STATE.chain_id) != propose(EndRun(1), made=1, first=3).compute_id(STATE.chain_id)
    del mapping[field]
    assert not is_change(encode_canonical(mapping))


@pytest.mark.parametrize(
    "data",
    [
        propose(EndRun(1)).data + b" ",
        b" " + propose(EndRun(1)).data,
        propose(EndRun(1)).data.replace(b":", b": "),
        propose(EndRun(1)).data.replace(b'"run":1', b'"run":1,"run":1'),
        propose(EndRun(1)).data.replace(b'"run":1', b'"run":2,"run":1'),
        propose(EndRun(1)).data.replace(b'"run":1', b'"run":01'),
        propose(EndRun(1)).data.replace(b'"run":1', b'"run":1.0'),
        propose(EndRun(1)).data.replace(b'"run":1', b'"run":1e0'),
        propose(EndRun(1)).data.replace(b'"run":1', b'"run":true'),
        propose(EndRun(1)).data.replace(b"end_run", b"end\\u005frun"),
        propose(EndRun(1)).data.replace(b'"note":""', b'"note":"\xc3\xa9"'),
        propose(EndRun(1)).data.replace(b'"note":""', b'"note":"\\u00E9"'),
        propose(EndRun(1)).data.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + propose(EndRun(1)).data,
        propose(AddMember(KEY, "x")).data.replace(encode_id(KEY).encode(), encode_id(KEY).upper().encode()),
        propose(StartRun(2, TERMS, None)).data.replace(b'"mean":[0.0]', b'"mean":[0]'),
        propose(SetRules({"waits.cap_s": (6.0, 7.0)})).data.replace(b"7.0", b"7.00"),
    ],
)
def test_another_spelling_is_refused(data: bytes) -> None:
    assert not is_change(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'""',
        b"NaN",
        b"\xff" * 100,
        b"[" * MAX_CHANGE_BYTES,
        b'{"change":' * 9000,
        b'{"change":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"change":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"change":' + b"9" * 90_000 + b"}",
        b'{"change":"' + b"x" * 90_000 + b'"}',
        b'{"' + b"x" * 90_000 + b'":1}',
        bytes(MAX_CHANGE_BYTES + 1),
    ],
)
def test_other_bytes_are_no_change(data: bytes) -> None:
    assert not is_change(data)


@pytest.mark.parametrize("run", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 4000, b"9" * 5000, b"-1", b"1.5"])
def test_numbers_that_are_no_whole_ones_are_refused_wherever_they_stand(run: bytes) -> None:
    for kind in EXAMPLES:
        for old in (b":1}", b":1,", b":100,", b":0,", b":3,", b":2,", b"[10,", b"[2,", b",3]", b"[0.0]"):
            data = propose(kind).data
            if old in data:
                new = old[:1] + run + old[-1:] if not old.startswith(b"[0") else b"[" + run + b"]"
                changed = data.replace(old, new)
                assert is_change(changed) in (False, True)  # never another error


def test_a_whole_number_beyond_64_bits_is_no_number_of_a_change() -> None:
    for number in (2**64, -(2**64), 10**4000):
        assert not is_change(spell(run=number))
    assert is_change(spell(run=2**64 - 1))  # which no run has, as its execution says


def test_unknown_fields_are_refused_in_a_line_that_a_log_can_hold() -> None:
    assert not is_change(spell(more=1))
    assert not is_change(spell(**{"a\nforged line\n" * 100: 1}))
    assert not is_change(spell(**{"x" * 90_000: 1}))
    assert not is_change(encode_canonical({**propose(EndRun(1)).to_mapping(), "change": "end_runs"}))
    deep = {"k" * 10_000: {"k" * 10_000: {"k" * 10_000: {"\n": 1}}}}
    assert not is_change(
        encode_canonical(
            propose(StartRun(2, {**TERMS, "schema": {}}, MODEL)).to_mapping()
            | {"run": {"number": 2, **TERMS, "schema": deep}}
        )
    )


def test_rules_of_long_names_are_refused_in_a_line_that_a_log_can_hold() -> None:
    assert not is_change(spell_rules({"x" * 90_000: [1, 2]}))
    assert not is_change(spell_rules({"a\nforged line": [1, 2]}))
    assert not is_change(spell_rules({"x" * 90_000: 1}))
    assert is_change(spell_rules({"x" * 64: [1, 2]}))


def spell_rules(rules: Any) -> bytes:
    mapping = propose(SetRules({"keep_heights": (2, 3)})).to_mapping()
    return encode_canonical({**mapping, "rules": rules})


@pytest.mark.parametrize("note", ["a\nb", "\x00", "x" * (MAX_NOTE_CHARS + 1), "\ud800"])
def test_a_note_is_printable_and_short(note: str) -> None:
    with pytest.raises(GenesisError, match="note"):
        Change(EndRun(1), 0, 0, 1, 9, note)
    assert not is_change(spell(note=note))
    assert is_change(spell(note="é" * MAX_NOTE_CHARS))


def test_a_change_has_a_bounded_size() -> None:
    fits = {**TERMS, "schema": {"x": "y" * 65_000}}
    assert len(propose(StartRun(2, fits, MODEL)).data) < MAX_CHANGE_BYTES
    with pytest.raises(GenesisError, match="size of the schema"):
        propose(StartRun(2, {**TERMS, "schema": {"x": "y" * 65_536}}, MODEL)).kind.apply(STATE, Place(1, MODEL))
    with pytest.raises(GenesisError, match="change: size: expected 2 to 98304"):
        propose(StartRun(2, {**TERMS, "classes": ["y" * 60 + str(i) for i in range(2000)]}, MODEL))


def test_the_same_bytes_are_computed_once() -> None:
    change = read_change(propose(EndRun(1)).data)
    assert change.data is change.data  # a schema has thousands of values


def test_a_run_whose_paths_are_long_costs_no_more_than_its_size() -> None:
    """Each value below one long key: a path of its own for every value would be gigabytes of text."""
    schema: dict[str, Any] = {"k" * 40_000: [{}] * 7900}
    data = propose(StartRun(2, {**TERMS, "schema": schema}, MODEL)).data
    assert is_change(data)


# What Hypothesis finds

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from([encode_id(KEY), "continue", "00" * 32, MODEL.hex(), "bft", 2**64, -1, 10**400, float("nan")])
)
names = st.text(max_size=4) | st.sampled_from(["number", "method", "schema", "keep_heights", "name"])
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


@st.composite
def mutated_changes(draw: st.DrawFn) -> bytes:
    """A good change of any kind with some fields, at any depth, replaced, removed or added."""
    mapping = json.loads(propose(draw(st.sampled_from(EXAMPLES))).data)
    for _ in range(draw(st.integers(1, 3))):
        target: Any = mapping
        while True:
            places = list(target) if isinstance(target, dict) else list(range(len(target)))
            if not places:
                break
            place = draw(st.sampled_from(places))
            inner = target[place]
            if isinstance(inner, dict | list) and draw(st.booleans()):
                target = inner
                continue
            action = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
            if action == "replace":
                target[place] = draw(values)
            elif action == "remove":
                del target[place]
            elif isinstance(target, dict):
                target[draw(names)] = draw(values)
            else:
                target.append(draw(values))
            break
    return json.dumps(mapping, sort_keys=True, separators=(",", ":")).encode()


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_change_or_invalid(data: bytes) -> None:
    is_change(data)


@given(values.map(lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")).encode()))
def test_arbitrary_json_is_a_change_or_invalid(data: bytes) -> None:
    is_change(data)


@settings(max_examples=200)
@given(mutated_changes())
def test_a_change_with_any_field_of_any_type_is_a_change_or_invalid(data: bytes) -> None:
    is_change(data)


@settings(max_examples=200)
@given(st.sampled_from(EXAMPLES), st.data())
def test_a_change_with_any_byte_changed_is_a_change_or_invalid(kind: Kind, data: st.DataObject) -> None:
    good = propose(kind).data
    at = data.draw(st.integers(0, len(good) - 1))
    is_change(good[:at] + data.draw(st.binary(max_size=2)) + good[at + 1 :])


@given(
    kind=st.sampled_from(EXAMPLES),
    by=st.integers(0, 2**32 - 1),
    made=st.integers(0, 2**63 - 1002),
    open_for=st.tuples(st.integers(1, 1000), st.integers(0, 999)),
    note=st.text(max_size=20).filter(lambda text: text.isprintable()),
)
def test_any_envelope_is_read_back(kind: Kind, by: int, made: int, open_for: tuple[int, int], note: str) -> None:
    first = made + open_for[0]
    change = Change(kind, by, made, first, min(first + open_for[1], made + 1000), note)
    assert read_change(change.data) == change


def test_ids_depend_on_every_byte() -> None:
    assert len({propose(kind).compute_id(STATE.chain_id) for kind in EXAMPLES}) == len(EXAMPLES)
    assert propose(EndRun(1)).compute_id(STATE.chain_id) != propose(EndRun(1)).compute_id(make_digest("chain"))
