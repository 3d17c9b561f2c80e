"""Changes of the rules and of the protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chain.changes.base import Kind
from chain.changes.rules import SetRules, Upgrade
from chain.errors import GenesisError, InvalidChange
from chain.schema import Section
from chain.state import State
from support.data.chains import make_genesis, make_keys
from support.data.changes import execute

STATE = make_genesis(make_keys(4)).state


def refuse(kind: Kind, message: str, state: State = STATE) -> None:
    with pytest.raises(InvalidChange, match=message):
        execute(state, kind)


def test_rules_take_their_new_values_together() -> None:
    values = {"waits.collect_s": (2.0, 5), "keep_heights": (2, 3), "limits.max_weight": (1_000_000, 500_000)}
    rules = execute(STATE, SetRules(values)).rules
    assert (rules.waits.collect_s, rules.keep_heights, rules.limits.max_weight) == (5.0, 3, 500_000)
    limits, waits = replace(STATE.rules.limits, max_weight=500_000), replace(STATE.rules.waits, collect_s=5.0)
    assert rules == replace(STATE.rules, waits=waits, keep_heights=3, limits=limits)


def test_a_whole_number_of_seconds_gives_the_same_state_as_its_float() -> None:
    states = [execute(STATE, SetRules({"waits.collect_s": (2, new)})) for new in (5, 5.0)]
    assert states[0].rules == states[1].rules
    assert states[0].rules.to_mapping() == states[1].rules.to_mapping()
    assert b'"collect_s":5.0' in states[0].canonical
    assert b'"collect_s":5.0' in states[1].canonical


def test_the_quorum_rule_can_change() -> None:
    assert execute(STATE, SetRules({"quorum": ("bft", "majority")})).rules.compute_quorum(5) == 3


def test_min_contributions_can_be_set_and_unset() -> None:
    one = execute(STATE, SetRules({"min_contributions": (None, 1)}))
    assert one.min_contributions == 1
    assert execute(one, SetRules({"min_contributions": (1, None)}), 2).min_contributions == 3


def test_proof_of_work_begins_anew_where_its_rules_change_and_only_there() -> None:
    assert execute(STATE, SetRules({"pow.target_ms": (100, 200)}), 7).pow_since == 7
    assert execute(STATE, SetRules({"keep_heights": (2, 3)}), 7).pow_since == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_heights": (3, 4)}, "rules.keep_heights in force: expected 3, got 2"),
        ({"min_contributions": (3, 2)}, "rules.min_contributions in force: expected 3, got None"),
        ({"quorum": ("majority", "bft")}, "rules.quorum in force"),
        ({"nonsense": (1, 2)}, "rules.nonsense: there is no such rule"),
        ({"waits.nonsense": (1, 2)}, "there is no such rule"),
        ({"waits": (1, 2)}, "there is no such rule"),
        ({"": (1, 2)}, "there is no such rule"),
        ({".": (1, 2)}, "there is no such rule"),
        ({"quorum.x": ("bft", "majority")}, "there is no such rule"),
        ({"waits.delta_s.x": (1, 2)}, "there is no such rule"),
        ({"keep_heights": (2, 2)}, "rules: nothing changes"),
        ({"waits.collect_s": (2.0, 2)}, "rules: nothing changes"),
        ({"keep_heights": (2, 0)}, "keep_heights: expected 1 to"),
        ({"keep_heights": (2, 3.5)}, "keep_heights: expected a whole number"),
        ({"keep_heights": (2, True)}, "keep_heights: expected a whole number"),
        ({"keep_heights": (2, "3")}, "keep_heights: expected a whole number"),
        ({"keep_heights": (2, None)}, "keep_heights: expected a whole number"),
        ({"waits.collect_s": (2.0, "x")}, "waits.collect_s: expected a finite number"),
        ({"waits.collect_s": (2.0, -2.0)}, "waits.collect_s"),
        ({"quorum": ("bft", "unanimity")}, "quorum: expected one of bft, majority"),
        ({"quorum": ("bft", 1)}, "quorum: expected text"),
        ({"waits.cap_s": (6.0, 0.5)}, "waits.cap_s: expected at least propose_s"),
        ({"pow.min": (1, 5)}, "pow.min: expected 1 to 4"),
        ({"limits.max_weight": (1_000_000, 1_000_000.0)}, "limits.max_weight: expected a whole number"),
        ({"limits.payload_bytes": (16 * 2**20, 0)}, "at most 64 times"),
    ],
)
def test_rules_that_do_not_hold_are_refused(values: dict[str, tuple[Any, Any]], message: str) -> None:
    refuse(SetRules(values), message)


def test_an_old_value_of_true_is_not_one() -> None:
    one = execute(STATE, SetRules({"keep_heights": (2, 1)}))
    refuse(SetRules({"keep_heights": (True, 2)}), "in force", one)


@pytest.mark.parametrize(
    ("path", "old", "good", "bad"),
    [
        ("keep_heights", 2, 128, 129),
        ("evidence_heights", 100, 6400, 6401),
        ("pow.difficulty", 4, 256, 257),
        ("limits.payload_bytes", 16 * 2**20, 2**18, 2**18 - 1),
        ("waits.collect_s", 2.0, 128.0, 128.1),
        ("waits.collect_s", 2.0, 0.03125, 0.03124),
    ],
)
def test_a_number_moves_at_most_64_fold(path: str, old: float, good: float, bad: float) -> None:
    execute(STATE, SetRules({path: (old, good)}))
    refuse(SetRules({path: (old, bad)}), f"rules.{path}: expected at most 64 times more or less than")


def test_from_and_to_zero_counts_as_from_and_to_one() -> None:
    state = replace(STATE, rules=replace(STATE.rules, evidence_heights=64))
    none = execute(state, SetRules({"evidence_heights": (64, 0)}))
    assert none.rules.evidence_heights == 0
    assert execute(none, SetRules({"evidence_heights": (0, 64)}), 2).rules.evidence_heights == 64
    refuse(SetRules({"evidence_heights": (0, 65)}), "at most 64 times", none)
    refuse(SetRules({"evidence_heights": (100, 0)}), "at most 64 times")


def test_a_rule_has_one_path_so_that_one_change_moves_it_once() -> None:
    refuse(SetRules({".keep_heights": (2, 3)}), "there is no such rule")
    refuse(SetRules({".keep_heights": (2, 128), "keep_heights": (128, 8192)}), "there is no such rule")


@pytest.mark.parametrize(
    "given",
    [None, {}, [], 3, {"keep_heights": 3}, {"keep_heights": [1]}, {"keep_heights": [1, 2, 3]}, {"quorum": [[], {}]}],
)
def test_rules_are_pairs_of_plain_values_by_path(given: object) -> None:
    with pytest.raises(GenesisError):
        SetRules.read(Section("", {"rules": given}, ("rules",)))


# upgrade


def test_an_upgrade_changes_the_protocol_and_nothing_goes_back() -> None:
    after = execute(STATE, Upgrade(3), 7)
    assert after.protocol == 3
    assert replace(after, protocol=2, run=STATE.run, executed={}) == STATE
    refuse(Upgrade(2), "protocol: expected more than 2, got 2")
    refuse(Upgrade(1), "protocol: expected more than 2, got 1")
    refuse(Upgrade(2), "protocol: expected more than 3, got 2", after)


@pytest.mark.parametrize("protocol", [0, -1, 2**16, True, "3", None, 3.0])
def test_a_protocol_is_a_number_of_16_bits(protocol: object) -> None:
    with pytest.raises(GenesisError):
        Upgrade.read(Section("", {"protocol": protocol}, ("protocol",)))
