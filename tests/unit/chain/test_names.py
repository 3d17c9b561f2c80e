"""Names that nobody can tell apart: what may be given from protocol 3 on, what folds to what, and that names which a
chain has from before stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain.changes.members import AddMember, AddObserver, RemoveMember, ReplaceKey
from chain.changes.rules import Upgrade
from chain.errors import GenesisError, InvalidChange
from chain.genesis import Genesis
from chain.names import check_new_name, fold_name
from chain.state import Observer, State
from support.data.chains import make_genesis, make_genesis_mapping, make_keys
from support.data.changes import execute
from support.data.run_schemas import with_schema

KEYS = make_keys(7)
NEW, OTHER = KEYS[5].id, KEYS[6].id
PLAIN, BEFORE = 3, 2  # protocols
UNSEEN = ("\u034f", "\ufe0f", "\u3164", "\u115f", "\u17b4", "\u2800")  # printable, by Python, and nothing to see


def make_state(protocol: int, *names: str) -> State:
    """Of five members, the first of which are called so."""
    state = make_genesis(KEYS[:5]).state
    members = tuple(replace(member, name=name) for member, name in zip(state.members, names, strict=False))
    return replace(state, protocol=protocol, members=(*members, *state.members[len(members) :]))


# ---- what may be given


@pytest.mark.parametrize("name", ["a", "9", "hospital-a", "St.Mary_2", "x" * 64])
def test_a_plain_name_is_taken(name: str) -> None:
    check_new_name("name", name, ())
    assert execute(make_state(PLAIN), AddMember(NEW, name)).get_member(NEW) is not None


@pytest.mark.parametrize(
    "name",
    ["", "x" * 65, "-a", ".a", "_a", "a b", "a\n", "a/b", "a=b", "a@b", "Zürich", "клиника", "\u0430", "\u0661"]
    + [f"node1{char}" for char in UNSEEN],
)
def test_another_is_refused_and_shown_in_ascii(name: str) -> None:
    with pytest.raises(GenesisError, match=r"^name: expected 1 to 64 of the characters A-Z a-z 0-9 . _ -") as caught:
        check_new_name("name", name, ())
    assert str(caught.value).isascii()


@pytest.mark.parametrize("char", UNSEEN)
def test_a_name_with_a_character_that_does_not_show_joins_under_no_protocol_but_the_old_one(char: str) -> None:
    for kind in (AddMember(NEW, f"node1{char}"), AddObserver(NEW, f"node1{char}")):
        execute(make_state(BEFORE), kind)
        with pytest.raises(InvalidChange, match="name: expected 1 to 64 of the characters"):
            execute(make_state(PLAIN), kind)


# ---- what folds to what


def test_the_table_of_folds() -> None:
    """As PROTOCOL has it, character by character."""
    assert fold_name("abcdefghijklmnopqrstuvwxyz") == "abcdefghljklmnopqrstuvwxyz"
    assert fold_name("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "abcdefghljklmnopqrstuvwxyz"
    assert fold_name("0123456789-_.") == "ol23456789-_."
    assert fold_name("".join(map(chr, range(0x20, 0x2000)))) == fold_name("".join(map(chr, range(0x20, 0x7F))))


@pytest.mark.parametrize("name", ["node1", "NODE1", "Node1", "nodel", "nodeI", "n0de1", "nOdei"])
def test_a_name_that_folds_to_a_members_is_refused(name: str) -> None:
    """Also to an observer's, and by an observer."""
    observed = replace(make_state(PLAIN, "x1", "x2"), observers=(Observer(OTHER, "Node1"),))
    for state in (make_state(PLAIN, "x1", "node1"), observed):
        for kind in (AddMember(NEW, name), AddObserver(NEW, name)):
            with pytest.raises(InvalidChange, match=r"name: expected a name that nobody takes for '[Nn]ode1'"):
                execute(state, kind)
    if name != "node1":  # which no protocol gives twice
        execute(make_state(BEFORE, "x1", "node1"), AddMember(NEW, name))


@pytest.mark.parametrize("name", ["node11", "node-1", "node_1", "node9", "mode1"])
def test_a_name_that_can_be_told_apart_is_taken(name: str) -> None:
    execute(make_state(PLAIN, "x1", "node1"), AddMember(NEW, name))


# ---- what a chain has from before


@pytest.mark.parametrize("char", UNSEEN)
def test_names_that_a_chain_has_stay_and_nobody_is_let_in_beside_them_that_looks_the_same(char: str) -> None:
    state = make_state(PLAIN, f"alice{char}", "Zürich")
    assert State.decode(state.chain_id, state.canonical) == state
    after = execute(execute(state, ReplaceKey(0, NEW)), AddMember(OTHER, "bob"), 2)
    assert [member.name for member in after.members if member.seat == 0] == [f"alice{char}"]
    with pytest.raises(InvalidChange, match="nobody takes for 'alice"):
        execute(state, AddMember(NEW, "alice"))


def test_an_upgrade_leaves_all_names_and_binds_those_to_come() -> None:
    state = make_state(BEFORE, "alice\u034f", "Zürich", "A1ice")
    after = execute(state, Upgrade(PLAIN))
    assert [member.name for member in after.members] == [member.name for member in state.members]
    with pytest.raises(InvalidChange, match="nobody takes for 'alice"):
        execute(after, AddMember(NEW, "alice"), 2)


def test_an_observer_takes_a_seat_under_its_own_name() -> None:
    observed = execute(make_state(PLAIN), AddObserver(NEW, "reader"))
    assert execute(observed, AddMember(NEW, "Reader"), 2).observers == ()
    with pytest.raises(InvalidChange, match="nobody takes for 'reader'"):
        execute(observed, AddMember(OTHER, "Reader"), 2)


def test_the_name_of_a_member_that_was_removed_is_free() -> None:
    state = make_state(PLAIN)
    gone = state.members[0]
    execute(execute(state, RemoveMember(gone.seat)), AddMember(NEW, gone.name), 2)


# ---- genesis


def make_named(protocol: int, *names: str) -> Genesis:
    mapping = with_schema(make_genesis_mapping(KEYS[: len(names)], protocol=protocol))
    members = [{**member, "name": name} for member, name in zip(mapping["members"], names, strict=True)]
    return Genesis.from_mapping({**mapping, "members": members})


def test_founders_of_a_new_chain_have_plain_names_that_can_be_told_apart() -> None:
    make_named(PLAIN, "alice", "bob", "carol", "dan")
    with pytest.raises(GenesisError, match=r"^members\[\d\]\.name: expected 1 to 64 of the characters .* '\\xfcber'"):
        make_named(PLAIN, "alice", "über", "carol", "dan")
    with pytest.raises(GenesisError, match=r"^members\[\d\]\.name: expected a name that nobody takes for '[aA]"):
        make_named(PLAIN, "alice", "bob", "A1ice", "dan")


def test_founders_of_an_old_chain_have_the_names_that_they_have() -> None:
    assert make_named(BEFORE, "alice", "über", "A1ice", "alice\u034f").state.n == 4
