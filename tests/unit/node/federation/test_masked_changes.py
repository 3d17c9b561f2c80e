"""Changes of a federation that runs masked sums, as their builders refuse or make them: members that would leave a sum
too few bits, and runs with and without masks that go on from each other."""

from __future__ import annotations

from typing import Any

import pytest

from chain.changes.members import AddMember, RemoveMember
from chain.genesis import Genesis
from chain.join_request import JoinRequest
from chain.state import State
from chain.tip import Tip
from ml.errors import SpecError
from node.errors import ChangeRefused
from node.federation.builders import Built, ChangeContext, ChangeRequest, build_change, check_site, list_warnings
from support.data.chains import make_genesis_mapping, make_keys
from support.data.changes import execute
from support.data.run_schemas import with_schema

KEYS = make_keys(6)
NEW = KEYS[5]
MASKED = {"name": "fedavg", "aggregation": "masked_sum"}
MODEL = {"name": "mlp", "hidden": [3]}


def make_genesis(num_members: int = 4, **overrides: Any) -> Genesis:
    given = {"method": MASKED, "model": MODEL, **overrides}
    return Genesis.from_mapping(with_schema(make_genesis_mapping(KEYS[:num_members], **given)))


GENESIS = make_genesis()
# Of four members 4 * 1000 * 4e12 < 2^54, which leaves 8 bits; of five it is more.
FULL = make_genesis(limits={"max_weight": 1000, "payload_mib": 16, "max_abs": 4e12})


def build(kind: str, *, genesis: Genesis = GENESIS, state: State | None = None, **terms: Any) -> Built:
    tip = Tip.at(state or genesis.state, (genesis.block0,))
    return build_change(ChangeRequest(kind, terms), ChangeContext(tip, KEYS[0].id))


def ask_to_join(genesis: Genesis) -> str:
    return JoinRequest.sign(NEW, genesis.chain_id, name="alice", address="a.example.org:7050", made_ms=0).encode()


# ---- members


def test_a_member_that_would_leave_a_sum_too_few_bits_is_not_taken() -> None:
    with pytest.raises(
        ChangeRefused, match=r"limits\.max_weight: expected limits that leave a sum of 5 members 8 bits"
    ):
        build("add_member", genesis=FULL, request=ask_to_join(FULL))
    assert build("add_member", request=ask_to_join(GENESIS)).after.n == 5


def test_nor_is_it_approved_where_another_member_has_proposed_it() -> None:
    kind = AddMember(NEW.id, "alice")
    with pytest.raises(SpecError, match="a sum of 5 members 8 bits"):
        check_site(kind, FULL.state, execute(FULL.state, kind), None)
    check_site(kind, GENESIS.state, execute(GENESIS.state, kind), None)


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "fedavg", "aggregation": "trimmed_mean"}])
def test_a_run_without_masks_has_no_such_limit(method: dict[str, Any]) -> None:
    plain = make_genesis(method=method, limits={"max_weight": 1000, "payload_mib": 16, "max_abs": 4e12})
    assert build("add_member", genesis=plain, request=ask_to_join(plain)).after.n == 5


def test_a_run_that_is_over_has_no_such_limit_either() -> None:
    ended = build("end_run", genesis=FULL).after
    kind = AddMember(NEW.id, "alice")
    check_site(kind, ended, execute(ended, kind, 2), None)


@pytest.mark.parametrize("kind", ["remove_member", "leave"])
def test_the_fourth_member_cannot_go_while_a_run_of_masked_sums_goes_on(kind: str) -> None:
    terms: dict[str, Any] = {"name": "node3"} if kind == "remove_member" else {}
    with pytest.raises(ChangeRefused, match="expected at least 4 with aggregation masked_sum, got 3"):
        build(kind, **terms)
    five = make_genesis(5)
    built = build(kind, genesis=five, **terms)
    assert isinstance(built.change.kind, RemoveMember)
    assert built.after.n == 4


# ---- runs


def test_a_run_of_masked_sums_goes_on_from_one_without_and_the_other_way_round() -> None:
    """Keys and what else masks need is no model's: it begins with them."""
    plain = make_genesis(method={"name": "fedavg"})
    masked = build("start_run", genesis=plain, set=["aggregation=masked_sum"], initial="continue")
    assert masked.after.run.is_masked
    assert "masked/keys" in masked.after.run.schema["aggregate"]
    assert "masked/keys" not in plain.run.schema["aggregate"]
    again = build("start_run", genesis=GENESIS, set=["lr=0.05"], initial="continue")
    assert again.after.run.schema == GENESIS.run.schema
    back = build("start_run", genesis=GENESIS, set=["aggregation=mean"], initial="continue")
    assert back.after.run.schema == plain.run.schema


def test_three_members_start_no_run_of_masked_sums() -> None:
    few = make_genesis(3, method={"name": "fedavg"})
    with pytest.raises(ChangeRefused, match="expected at least 4 with aggregation masked_sum, got 3"):
        build("start_run", genesis=few, set=["aggregation=masked_sum"], initial="continue")


def test_limits_that_leave_a_sum_too_few_bits_are_refused() -> None:
    with pytest.raises(ChangeRefused, match="a sum of 4 members 8 bits"):
        build("set_rules", genesis=FULL, rules={"limits.max_weight": 2000})
    assert build("set_rules", genesis=FULL, rules={"limits.max_weight": 999}).after.rules.limits.max_weight == 999


def test_whoever_is_asked_to_agree_is_told_what_masked_sums_hide_and_what_not() -> None:
    plain = make_genesis(method={"name": "fedavg"})
    built = build("start_run", genesis=plain, set=["aggregation=masked_sum"], initial="continue")
    told = list_warnings(built.change.kind, plain.state, built.after)
    assert any("1 of 4 that collude see the sum of the others" in warning for warning in told)
    again = build("start_run", set=["aggregation=mean"], initial="continue")
    assert not any("masked" in warning for warning in list_warnings(again.change.kind, GENESIS.state, again.after))


@pytest.mark.parametrize(
    ("settings", "harm"),
    [
        (
            [],
            "one member that lies, whatever its weight, sets the mean to any model it likes, as the run has no",
        ),
        (
            ["masked_radius=0.05"],
            "one member that lies, whatever its weight, moves each number of the mean by up to 0.05",
        ),
    ],
)
def test_whoever_is_asked_to_agree_is_told_what_one_member_can_do(settings: list[str], harm: str) -> None:
    plain = make_genesis(method={"name": "fedavg"})
    built = build("start_run", genesis=plain, set=["aggregation=masked_sum", *settings], initial="continue")
    assert any(harm in warning for warning in list_warnings(built.change.kind, plain.state, built.after))


def test_statistics_behind_masks_are_a_run_of_one_round_whose_sums_one_member_can_move() -> None:
    plain = make_genesis(method={"name": "fedavg"})
    run = {
        "method": {"name": "local", "aggregation": "masked_sum"},
        "model": {"name": "linear"},
        "input": {"shape": plain.run.input["shape"], "normalize": "agreed", "class_counts": True},
    }
    asked: dict[str, Any] = {"run": run, "set": ["input.normalize=agreed"], "initial": "zeros"}
    built = build("start_run", genesis=plain, rounds=1, **asked)
    assert (built.after.run.is_masked, built.after.run.num_heights) == (True, 3)
    told = list_warnings(built.change.kind, plain.state, built.after)
    assert any("moves the sums to any that samples can have, or spoils the sum" in warning for warning in told)
    with pytest.raises((SpecError, ChangeRefused), match="expected 1 with local and aggregation masked_sum"):
        build("start_run", genesis=plain, rounds=2, **asked)
    with pytest.raises((SpecError, ChangeRefused), match="expected 1 with local and aggregation masked_sum"):
        build("set_rounds", genesis=plain, state=built.after, rounds=2)


def test_a_run_with_a_radius_goes_on_from_one_without_and_the_other_way_round() -> None:
    boxed = build("start_run", set=["masked_radius=0.05"], initial="continue").after
    assert boxed.run.schema["aggregate"].keys() - GENESIS.run.schema["aggregate"].keys() == {"masked/clipped"}
    genesis = make_genesis(method={**MASKED, "masked_radius": 0.05})
    back = build("start_run", genesis=genesis, run={"method": MASKED}, initial="continue").after
    assert back.run.schema == GENESIS.run.schema


def test_whoever_is_asked_to_agree_is_told_which_kinds_are_in_the_clear() -> None:
    told = "masks hide the model alone: everybody sees prototypes"
    for name, number in (("mpfedcl", 1), ("dfpl", 0)):
        plain = make_genesis(method={"name": name})
        built = build("start_run", genesis=plain, set=["aggregation=masked_sum"], initial="continue")
        warnings = list_warnings(built.change.kind, plain.state, built.after)
        assert sum(told in warning for warning in warnings) == number


def test_a_run_that_goes_on_from_one_with_a_pool_has_the_same_arrays() -> None:
    plain = make_genesis(method={"name": "mpfedcl"})
    masked = build("start_run", genesis=plain, set=["aggregation=masked_sum"], initial="continue").after.run
    assert masked.schema["aggregate"].keys() > plain.run.schema["aggregate"].keys()
    assert masked.schema["rounds"]["inputs"].keys() == {"masked", "prototypes"}
