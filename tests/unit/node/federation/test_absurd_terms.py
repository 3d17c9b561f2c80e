"""Terms that nobody could live with: refused in words where they are proposed, and by every member where a proposer has
left its own checks out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chain.approvals import sign_approval
from chain.block import Body
from chain.changes.base import Kind, Place
from chain.changes.change import Change, read_change
from chain.changes.execution import execute_change
from chain.changes.rules import SetRules, Upgrade
from chain.changes.runs import SetRounds, StartRun
from chain.errors import ChainError, GenesisError, InvalidChange
from chain.genesis import PROTOCOL_VERSION, Genesis
from chain.proposals import Proposals
from chain.run import encode_canonical
from chain.tip import Tip
from chain.validation import validate_candidate
from ml.errors import SpecError
from node.config.genesis_file import get_genesis_spec
from node.errors import ChangeRefused
from node.federation.builders import ChangeContext, ChangeRequest, build_change
from node.federation.run_terms import check_run
from support.data.chains import make_digest, make_genesis_mapping, make_keys
from support.data.changes import execute, extend_with, make_approved
from support.data.run_schemas import with_schema

KEYS = make_keys(10)
QUORUM = 7
METHOD = {"name": "fedavg", "lr": 0.1}
MAPPING = with_schema(
    make_genesis_mapping(
        KEYS, method=METHOD, model={"name": "mlp", "hidden": [3]}, rounds=10, protocol=PROTOCOL_VERSION
    )
)
GENESIS = Genesis.from_mapping(MAPPING)
TIP = Tip.at(GENESIS.state, (GENESIS.block0,))
MODEL = make_digest("a model")
IN_FORCE = GENESIS.rules.to_mapping()

HUGE = (1e9, 2**40)
NONE = (0, -1, 1e-12)
NO_NUMBERS = ("x", True, float("inf"), float("nan"), [1], 10**30)
RULES = {
    path: value
    for section, values in IN_FORCE.items()
    for path, value in (
        {f"{section}.{name}": value for name, value in values.items()}.items()
        if isinstance(values, dict)
        else [(section, values)]
    )
}
MAY_BE_0 = ("waits.propose_step_s", "waits.vote_step_s")

ABSURD_SETTINGS = [
    ("batch_size", 2**40),
    ("batch_size", 0),
    ("local_epochs", 2**40),
    ("local_iterations", -1),
    ("lr", 0),
    ("lr", 1e300),
    ("momentum", 1),
    ("decay", 0),
    ("weight_decay", -1),
    ("weight_cap", 0),
    ("clip", 0),
    ("clip_norm", 0),
    ("budget_s", 1e9),
    ("budget_s", 0),
    ("dp_noise", 0),
    ("dp_clip", 0),
    ("masked_radius", 0),
    ("warmup_rounds", 2**40),
]


def propose(kind: str, terms: dict[str, Any], **when: Any) -> None:
    build_change(ChangeRequest(kind, terms, **when), ChangeContext(TIP, KEYS[0].id))


def refuse_everywhere(kind: Kind, message: str, *, made: int = 0, first: int = 1, expires: int = 100) -> None:
    """Who hears of it keeps nothing, and a block of it is not valid though a quorum has signed it."""
    change = Change(kind, 0, made, first, expires)
    approval = sign_approval(KEYS[0], GENESIS.chain_id, change.compute_id(GENESIS.chain_id))
    book = Proposals(TIP)
    with pytest.raises(InvalidChange, match=message):
        book.add(change.data, approval)
    assert len(book) == 0
    body = Body(change=make_approved(TIP, change, KEYS[:QUORUM]))
    with pytest.raises(InvalidChange, match=message):
        validate_candidate(TIP, extend_with(TIP, body, KEYS[0], state_next=make_digest("any")))


# ---- rules


@pytest.mark.parametrize("path", RULES)
def test_an_absurd_rule_is_refused_in_words_where_it_is_proposed(path: str) -> None:
    for absurd in (*HUGE, *NONE, *NO_NUMBERS):
        if absurd == 0 and path in MAY_BE_0:
            continue
        with pytest.raises(ChangeRefused, match=rf"^(set_rules: |rules\.)?{path}: |^rules\.{path}: "):
            propose("set_rules", {"rules": {path: absurd}})


@pytest.mark.parametrize("path", RULES)
def test_nor_do_the_others_take_it(path: str) -> None:
    for absurd in (*HUGE, *NONE, "x", True):
        if absurd != 0 or path not in MAY_BE_0:
            refuse_everywhere(SetRules({path: (RULES[path], absurd)}), path)


@pytest.mark.parametrize("absurd", [float("inf"), float("nan"), [1], {"a": 1}, 10**30])
def test_what_is_no_plain_number_is_no_change(absurd: Any) -> None:
    good = encode_canonical(Change(SetRules({"keep_heights": (2, 3)}), 0, 0, 1, 100).to_mapping())
    with pytest.raises(InvalidChange, match="change: "):
        read_change(good.replace(b"[2,3]", f"[2,{json.dumps(absurd)}]".encode()))


@pytest.mark.parametrize(
    ("path", "absurd"),
    [
        *((path, absurd) for path in RULES if path.startswith("waits.") for absurd in (1e9, -1, float("inf"), "x")),
        *((path, absurd) for path in RULES if path.startswith("pow.") for absurd in (0, 2**64, -1, 0.5, "x")),
        *((path, absurd) for path in RULES if path.startswith("limits.") for absurd in (0, -1, 10**40, "x")),
        *(("min_contributions", absurd) for absurd in (0, -1, QUORUM + 1)),
        *(("keep_heights", absurd) for absurd in (0, -1, 2**40, 1.5)),
        *(("evidence_heights", absurd) for absurd in (-1, 2**40, 1.5)),
        *(("quorum", absurd) for absurd in (0, "all")),
    ],
)
def test_nor_does_a_genesis_have_it(path: str, absurd: Any) -> None:
    """Whatever the bound on one move is."""
    section, dot, name = path.rpartition(".")
    mapping = {**MAPPING, **json.loads(json.dumps(IN_FORCE))}
    (mapping[section] if dot else mapping)[name] = absurd
    with pytest.raises(GenesisError, match=section or name):
        Genesis.from_mapping(mapping)


# ---- runs


@pytest.mark.parametrize(("name", "absurd"), ABSURD_SETTINGS)
def test_an_absurd_setting_is_refused_in_words_where_a_run_is_proposed(name: str, absurd: Any) -> None:
    given = [f"{name}={absurd}", *(["aggregation=masked_sum"] if name == "masked_radius" else [])]
    with pytest.raises(ChangeRefused, match=rf"method\.{name}: expected"):
        propose("start_run", {"set": given, "initial": MODEL.hex(), "rounds": 10})
    with pytest.raises(SpecError, match=rf"method\.{name}: expected"):
        get_genesis_spec(Genesis.from_mapping({**MAPPING, "method": {**METHOD, name: absurd}}))


@pytest.mark.parametrize(("name", "absurd"), ABSURD_SETTINGS)
def test_nor_can_a_site_approve_it(name: str, absurd: Any) -> None:
    """The chain holds no method's code: a run begins by the consent of those who train in it, and `approve` asks
    `check_run`."""
    terms = {key: value for key, value in GENESIS.run.to_terms().items() if key != "initial_model"}
    method = {**terms["method"], name: absurd}
    after = execute(GENESIS.state, StartRun(2, {**terms, "method": method}, MODEL))
    with pytest.raises(ChangeRefused, match=rf"run 2: method\.{name}: expected"):
        check_run(after)


@pytest.mark.parametrize("hidden", [[2**40], [0], [], [65_536, 65_536]])
def test_a_model_that_no_site_could_hold_is_refused(hidden: list[int]) -> None:
    with pytest.raises(ChangeRefused, match=r"model\.hidden: expected|limits\.payload_mib: expected at least"):
        propose("start_run", {"set": [f"model.hidden={hidden}"], "initial": MODEL.hex()})


@pytest.mark.parametrize("rounds", [-1, 2**63, 1.5, True, "x"])
def test_rounds_are_a_number_of_rounds(rounds: Any) -> None:
    for kind, terms in (("start_run", {"initial": MODEL.hex(), "rounds": rounds}), ("set_rounds", {"rounds": rounds})):
        with pytest.raises(ChangeRefused, match="rounds: expected"):
            propose(kind, terms)


def test_rounds_without_end_are_refused_for_a_method_that_needs_their_number() -> None:
    with pytest.raises(ChangeRefused, match="rounds"):
        propose("start_run", {"initial": MODEL.hex(), "rounds": 0, "set": ["schedule=cosine"]})


def test_fewer_rounds_than_were_made_are_refused_by_all() -> None:
    with pytest.raises(InvalidChange, match="rounds: expected 0 or at least the 5 made, got 4"):
        execute_change(GENESIS.state, Change(SetRounds(1, 10, 4), 0, 5, 6, 100), Place(6, MODEL))


# ---- when


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"first": 0}, "from: expected 1 to 1000, got 0"),
        ({"first": -5}, "from: expected 1 to 1000, got -5"),
        ({"first": 2**70}, "from: expected 1 to 1000"),
        ({"num_heights": 0}, "expires: expected 1 to 1000, got 0"),
        ({"num_heights": -3}, "expires: expected 1 to 1000, got -3"),
        ({"num_heights": 10**30}, "expires: expected 1 to 1000"),
    ],
)
def test_a_change_is_for_heights_to_come(when: dict[str, int], message: str) -> None:
    with pytest.raises(ChangeRefused, match=message):
        propose("end_run", {}, **when)


@pytest.mark.parametrize(
    "when",
    [
        {"from": 0},
        {"from": -1},
        {"expires": 0},
        {"expires": 10**30},
        {"made": -1},
        {"made": 2**63},
        {"from": 1001, "expires": 1001},
        {"by": -1},
        {"by": 2**40},
    ],
)
def test_nor_is_one_read_that_is_not(when: dict[str, int]) -> None:
    mapping = {**Change(SetRules({"keep_heights": (2, 3)}), 0, 0, 1, 100).to_mapping(), **when}
    (name, *_) = when
    with pytest.raises(InvalidChange, match=f"change: {name}: expected"):
        read_change(encode_canonical(mapping))


def test_one_whose_time_is_over_is_refused_by_all() -> None:
    change = Change(SetRules({"keep_heights": (2, 3)}), 0, 0, 1, 4)
    with pytest.raises(InvalidChange, match="height of the change: expected 1 to 4, got 9"):
        execute_change(GENESIS.state, change, Place(9, MODEL))


@pytest.mark.parametrize("protocol", [0, 1, PROTOCOL_VERSION, 99, 2**40])
def test_a_protocol_is_one_that_is_spoken_and_newer(protocol: int) -> None:
    with pytest.raises(ChangeRefused, match="protocol"):
        propose("upgrade", {"protocol": protocol})
    if protocol <= PROTOCOL_VERSION:
        refuse_everywhere(Upgrade(protocol), "protocol: expected")


def test_a_time_before_the_calendar_is_no_beginning() -> None:
    for created_at in ("1969-12-31T23:59:59Z", "2026-13-01T00:00:00Z", "-1", 0, None):
        with pytest.raises(ChainError, match="created_at"):
            Genesis.from_mapping({**MAPPING, "created_at": created_at})
