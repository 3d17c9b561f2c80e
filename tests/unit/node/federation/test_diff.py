"""The difference that a change makes: what an operator reads before agreeing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chain.changes.base import Kind
from chain.changes.members import AddMember, AddObserver, RemoveMember, ReplaceKey
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.genesis import Genesis
from chain.signing import encode_id
from node.federation.diff import compute_differences
from node.federation.difference import Difference, format_difference
from support.data.chains import make_genesis_mapping, make_keys
from support.data.changes import execute
from support.data.run_schemas import with_schema

KEYS = make_keys(5)
NEW = KEYS[4]
STATE = Genesis.from_mapping(
    with_schema(
        make_genesis_mapping(KEYS[:4], method={"name": "fedavg", "lr": 0.1}, model={"name": "mlp", "hidden": [3]})
    )
).state
SUSPENDED = replace(STATE, members=tuple(replace(m, is_suspended=m.seat == 1) for m in STATE.members))


def show(kind: Kind) -> list[str]:
    return [str(each) for each in compute_differences(STATE, execute(STATE, kind))]


def make_terms(**changed: Any) -> dict[str, Any]:
    return {k: v for k, v in STATE.run.to_terms().items() if k != "initial_model"} | changed


def test_a_member_comes_and_more_have_to_agree() -> None:
    assert show(AddMember(NEW.id, "hospital-d")) == [
        f"+ members.hospital-d: {encode_id(NEW.id)}",
        "~ decides: 3 of 4 members -> 4 of 5 members",
        "~ contributes: 3 at least -> 4 at least",
    ]


def test_a_member_goes() -> None:
    assert show(RemoveMember(2))[0] == f"- members.node2: {encode_id(KEYS[2].id)}"


def test_a_key_changes_and_its_member_stays() -> None:
    assert show(ReplaceKey(1, NEW.id)) == [f"~ members.node1.key: {encode_id(KEYS[1].id)} -> {encode_id(NEW.id)}"]


def test_a_suspension_shows() -> None:
    assert [str(each) for each in compute_differences(STATE, SUSPENDED)] == [
        f"~ members.node1 ({encode_id(KEYS[1].id)[:4]}).suspended: false -> true"
    ]


def test_an_observer_comes() -> None:
    assert show(AddObserver(NEW.id, "registry")) == [f"+ observers.registry: {encode_id(NEW.id)}"]


def test_rules_move_by_their_paths() -> None:
    changed = SetRules({"keep_heights": (2, 3), "min_contributions": (None, 2)})
    assert show(changed) == [
        "+ rules.min_contributions: 2",
        "~ rules.keep_heights: 2 -> 3",
        "~ contributes: 3 at least -> 2 at least",
    ]


def test_a_run_that_grows_or_ends_says_no_more_than_that() -> None:
    """That the change itself takes a height is not to be seen."""
    assert show(SetRounds(1, 10, 20)) == ["~ run.rounds: 10 -> 20"]
    assert show(EndRun(1)) == ["~ run.is_ended: false -> true"]


def test_the_next_run_is_shown_by_what_is_other_in_it() -> None:
    terms = make_terms(method={"name": "fedavg", "lr": 0.05}, rounds=100)
    lines = show(StartRun(2, terms, bytes([7]) * 32))
    assert lines == [
        "~ run.number: 1 -> 2",
        "~ run.method.lr: 0.1 -> 0.05",
        "~ run.rounds: 10 -> 100",
        f"~ run.initial_model: {STATE.run.initial_model.hex()[:8]} -> 07070707",
    ]


@pytest.mark.parametrize(
    "schema", [{}, {"rounds": 3}, {"rounds": [1, {}]}, {"rounds": {"1": [2]}}, {"rounds": {"1..": {"model": 1}}}]
)
def test_a_schema_that_makes_no_sense_is_shown_all_the_same(schema: dict[str, Any]) -> None:
    """Any member may propose one."""
    assert show(StartRun(2, make_terms(schema=schema), bytes([7]) * 32))[0] == "~ run.number: 1 -> 2"


def test_a_difference_is_a_line() -> None:
    assert format_difference("a.b", None, {"x": 1}) == '+ a.b: {"x": 1}'
    assert str(Difference("a", [1, 2], None)) == "- a: [1, 2]"
    assert str(Difference("a", "x", "y")) == "~ a: x -> y"
