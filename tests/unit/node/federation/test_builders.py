"""Builders of changes: seats, keys and old values are filled in, and what cannot hold is refused with its sentence."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.changes.change import Change, read_change
from chain.changes.members import AddMember, AddObserver, Convict, Pardon, RemoveMember, RemoveObserver, ReplaceKey
from chain.changes.rules import SetRules, Upgrade
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.genesis import FIRST_PROTOCOL, PROTOCOL_VERSION, Genesis
from chain.join_request import JoinRequest
from chain.signing import encode_id
from chain.state import Observer, State
from chain.tip import Tip
from ml.payload import encode_arrays
from ml.specs import get_spec
from ml.specs.architectures import parameter_shapes
from node.errors import ChangeRefused
from node.federation.builders import (
    Built,
    ChangeContext,
    ChangeRequest,
    build_change,
    find_member,
    list_warnings,
    warn_of_key_in_use,
)
from node.federation.diff import compute_differences
from support.data.chains import make_digest, make_genesis_mapping, make_keys
from support.data.changes import LivingChain, propose
from support.data.run_schemas import with_schema

KEYS = make_keys(6)
MODEL = {"name": "mlp", "hidden": [3]}
GENESIS = Genesis.from_mapping(
    with_schema(make_genesis_mapping(KEYS[:4], method={"name": "fedavg", "lr": 0.1}, model=MODEL, rounds=10))
)
NEW, OTHER = KEYS[4], KEYS[5]
DIGEST = make_digest("a model").hex()
OBSERVED = replace(GENESIS.state, observers=(Observer(OTHER.id, "registry"),))


def make_tip(state: State = GENESIS.state) -> Tip:
    return Tip.at(state, (GENESIS.block0,))


def build(
    kind: str, *, state: State = GENESIS.state, data: dict[str, Any] | None = None, me: int = 0, **terms: Any
) -> Built:
    return build_change(ChangeRequest(kind, terms), ChangeContext(make_tip(state), KEYS[me].id, data))


def refuse(kind: str, problem: str, **terms: Any) -> None:
    with pytest.raises(ChangeRefused) as caught:
        build(kind, **terms)
    assert problem in str(caught.value)


def get_kind(kind: str, **terms: Any) -> Any:
    built = build(kind, **terms)
    assert read_change(built.change.data) == built.change  # as the others will read it
    return built.change.kind


# ---- the envelope


def test_a_change_is_made_at_the_head_and_stays_open_for_500_heights() -> None:
    change = build("end_run", me=2).change
    assert (change.by, change.made, change.first, change.expires, change.note) == (2, 0, 1, 500, "")
    wish = ChangeRequest("end_run", {}, "enough", first=40, num_heights=10)
    later: Change = build_change(wish, ChangeContext(make_tip(), KEYS[0].id)).change
    assert (later.first, later.expires, later.note) == (40, 49, "enough")


def test_an_observer_or_a_stranger_proposes_nothing() -> None:
    with pytest.raises(ChangeRefused, match="this node is no member"):
        build_change(ChangeRequest("end_run"), ChangeContext(make_tip(), NEW.id))


def test_a_change_that_would_stay_open_for_too_long_is_refused() -> None:
    with pytest.raises(ChangeRefused, match="expires: expected 1 to 1000"):
        build_change(ChangeRequest("end_run", num_heights=1001), ChangeContext(make_tip(), KEYS[0].id))
    with pytest.raises(ChangeRefused, match="note: expected up to 500 printable"):
        build_change(ChangeRequest("end_run", note="x" * 501), ChangeContext(make_tip(), KEYS[0].id))


@pytest.mark.parametrize("kind", ["", "convict", "AddMember"])
def test_what_nobody_proposes_by_hand_is_refused(kind: str) -> None:
    assert Convict.name == "convict"
    refuse(kind, "kind: expected one of add_member, ")


# ---- members


def test_a_member_is_added_by_its_request() -> None:
    request = f"hospital-d={encode_id(NEW.id)}@d.example.org:7050"
    assert get_kind("add_member", request=request) == AddMember(NEW.id, "hospital-d")
    assert get_kind("add_observer", request=f"registry={encode_id(NEW.id)}") == AddObserver(NEW.id, "registry")


@pytest.mark.parametrize(
    ("request_line", "problem"),
    [
        ("hospital-d", "request: expected fednode-join-1:… or NAME=ID, got 'hospital-d'"),
        ("fednode-join-1:e30", "request"),
        (f"node1={encode_id(NEW.id)}", "expected each name once, got 'node1' again"),
        (f"d={encode_id(KEYS[1].id)}", "expected one that is no member's"),
        (f"d={encode_id(NEW.id)[:-1]}", "id"),
    ],
)
def test_a_request_that_is_none_is_refused(request_line: str, problem: str) -> None:
    refuse("add_member", problem, request=request_line)


def test_a_join_request_of_this_chain_is_taken_and_of_another_or_tampered_with_refused() -> None:
    def ask(chain: str | None = None) -> str:
        chain_id = GENESIS.chain_id if chain is None else make_digest(chain)
        return JoinRequest.sign(NEW, chain_id, name="d", address="d.example.org:7050", made_ms=0).encode()

    assert get_kind("add_member", request=ask()) == AddMember(NEW.id, "d")
    assert get_kind("replace_key", name="node1", request=ask()).new == NEW.id
    line = ask()
    tampered = line[:60] + ("A" if line[60] != "A" else "B") + line[61:]
    for request in (ask("another chain"), tampered, line[:-4]):
        refuse("add_member", "request", request=request)
        refuse("replace_key", "request", name="node1", request=request)
    refuse("add_member", "chain: expected", request=ask("another chain"))


def test_members_are_found_by_name_or_id_and_by_no_beginning_of_one() -> None:
    member, key = GENESIS.state.members[2], encode_id(KEYS[2].id)
    for text in ("node2", key):
        assert find_member(GENESIS.state, text) == member
        assert get_kind("remove_member", name=text) == RemoveMember(member.seat)
    for kind in ("remove_member", "pardon"):
        refuse(kind, f"no member is called '{key[:8]}', but so begins the id of node2 {key}. Members: ", name=key[:8])
    refuse("replace_key", "so begins the id of node2", name=key[:51], request=f"node2={encode_id(NEW.id)}")
    refuse("remove_member", "no member is called 'nod2'. Did you mean 'node2'?. Members: node0, node1", name="nod2")


def test_whose_name_is_the_id_of_another_is_not_taken_for_it() -> None:
    of_node0 = encode_id(KEYS[0].id)
    members = (*GENESIS.state.members[:3], replace(GENESIS.state.members[3], name=of_node0))
    one, two = sorted((OTHER.id, NEW.id))
    state = replace(
        GENESIS.state, members=members, observers=(Observer(one, encode_id(two)), Observer(two, "registry"))
    )
    for kind, text in (("remove_member", of_node0), ("remove_observer", encode_id(two))):
        with pytest.raises(ChangeRefused, match="is the id of one"):
            build(kind, state=state, name=text)


def test_leaving_is_removing_ones_own_seat() -> None:
    assert get_kind("leave", me=3) == RemoveMember(3)
    refuse("leave", "unknown key", name="node1")


def test_a_key_is_replaced_on_the_seat_of_a_name() -> None:
    kind = get_kind("replace_key", name="node1", request=f"node1={encode_id(NEW.id)}")
    assert kind == ReplaceKey(1, NEW.id)


def test_only_who_is_suspended_is_pardoned() -> None:
    refuse("pardon", "node1 is not suspended", name="node1")
    members = tuple(replace(m, is_suspended=m.name == "node1") for m in GENESIS.state.members)
    assert get_kind("pardon", name="node1", state=replace(GENESIS.state, members=members)) == Pardon(1)


def test_an_observer_is_removed_by_name() -> None:
    assert get_kind("remove_observer", name="registry", state=OBSERVED) == RemoveObserver(OTHER.id)
    refuse("remove_observer", "no observer is called 'x'. Observers: registry", name="x", state=OBSERVED)


# ---- rules


def test_old_values_of_rules_are_filled_in_and_whole_numbers_are_seconds_too() -> None:
    old = GENESIS.rules.waits.collect_s
    kind = get_kind("set_rules", rules={"waits.collect_s": 5, "keep_heights": 3})
    assert kind == SetRules({"waits.collect_s": (old, 5.0), "keep_heights": (2, 3)})
    assert get_kind("set_rules", rules={"limits.payload_mib": 32}) == SetRules(
        {"limits.payload_bytes": (16 << 20, 32 << 20)}
    )
    assert get_kind("set_rules", set=["waits.collect_s=5", "keep_heights=3"]) == kind
    assert get_kind("set_rules", rules={"min_contributions": 2}) == SetRules({"min_contributions": (None, 2)})


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({}, "rules: expected PATH=VALUE"),
        ({"waits.colect_s": 5}, "rules.waits.colect_s: there is no such rule. Did you mean 'waits.collect_s'?"),
        ({"waits": 5}, "rules.waits: there is no such rule"),
        ({"keep_heights": True}, "rules.keep_heights: expected text or a number, got True"),
        ({"keep_heights": 2}, "nothing changes"),
        ({"keep_heights": 2000}, "at most 64 times more or less than 2"),
        ({"keep_heights": 0}, "expected 1 to"),
        ({"quorum": "most"}, "quorum: expected"),
        ({"limits.payload_bytes": 1 << 19}, "at most 64"),
    ],
)
def test_rules_that_cannot_hold_are_refused(rules: dict[str, Any], problem: str) -> None:
    if "limits.payload_bytes" in rules:
        rules = {"limits.payload_bytes": 1 << 10}
    refuse("set_rules", problem, rules=rules)


def test_a_limit_that_the_run_in_force_could_not_keep_to_is_refused() -> None:
    wide = {"name": "mlp", "hidden": [4000]}  # of about a MiB
    mapping = make_genesis_mapping(KEYS[:4], method={"name": "fedavg"}, model=wide)
    state = Genesis.from_mapping(with_schema(mapping)).state
    refuse("set_rules", "expected at least 2, for a model of fedavg", state=state, rules={"limits.payload_mib": 1})


def test_an_upgrade_that_this_release_does_not_speak_is_refused() -> None:
    refuse("upgrade", f"protocol {PROTOCOL_VERSION + 1}: this release speaks", protocol=PROTOCOL_VERSION + 1)
    refuse("upgrade", f"expected more than {FIRST_PROTOCOL}", protocol=FIRST_PROTOCOL)
    assert Upgrade.name == "upgrade"


# ---- runs


def test_rounds_and_the_end_are_those_of_the_run_in_force() -> None:
    assert get_kind("set_rounds", rounds=200) == SetRounds(1, 10, 200)
    assert get_kind("end_run") == EndRun(1)
    refuse("set_rounds", "there are 10 already", rounds=10)


def test_a_run_is_the_one_in_force_with_other_settings() -> None:
    built = build("start_run", set=["lr=0.05"], rounds=100, initial="continue")
    kind = built.change.kind
    assert isinstance(kind, StartRun)
    assert (kind.number, kind.initial, kind.terms["rounds"]) == (2, None, 100)
    assert (kind.terms["method"]["name"], kind.terms["method"]["lr"]) == ("fedavg", 0.05)
    assert kind.terms["method"]["momentum"] == 0.0  # defaults are written out, whatever a later version's are
    assert kind.terms["schema"] == GENESIS.run.schema
    assert (built.after.run.number, built.after.run.initial_model) == (2, GENESIS.block0.header.aggregate)


def test_a_schedule_is_a_difference_that_an_operator_sees() -> None:
    built = build("start_run", set=["schedule=cosine", "lr_min=0.01", "warmup_rounds=2"], rounds=20, initial="continue")
    shown = {each.path: each.new for each in compute_differences(GENESIS.state, built.after)}
    assert (shown["run.method.schedule"], shown["run.method.lr_min"], shown["run.method.warmup_rounds"]) == (
        "cosine",
        0.01,
        2,
    )


def test_rounds_that_a_schedule_cannot_do_without_are_not_taken_from_it() -> None:
    falling = build("start_run", set=["schedule=cosine"], rounds=20, initial="continue").after
    assert build("set_rounds", state=falling, rounds=30).after.run.rounds == 30
    with pytest.raises(ChangeRefused, match="cosine expects a number of rounds"):
        build("set_rounds", state=falling, rounds=0)


def test_a_file_takes_the_place_of_whole_sections() -> None:
    kind = get_kind(
        "start_run", run={"method": {"name": "moon", "lr": 0.2}, "rounds": 7}, set=["momentum=0.5"], initial="continue"
    )
    assert (kind.terms["method"]["name"], kind.terms["method"]["lr"], kind.terms["method"]["momentum"]) == (
        "moon",
        0.2,
        0.5,
    )
    assert (kind.terms["rounds"], kind.terms["model"]) == (7, MODEL)


def test_a_run_of_numbers_follows_one_of_classes_and_the_other_way_round(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("".join(["f,dose\n", *(f"{i},{i / 2}\n" for i in range(10))]))
    data = {"format": "csv", "path": str(table), "columns": {"label": "dose"}}
    run: dict[str, Any] = {"task": "regression", "classes": ["dose"], "target": {"mean": [2.0], "std": [1.0]}}
    run |= {"input": {"shape": [1, 1, 1], "resize": None, "mean": [0.0], "std": [1.0]}}
    built = build("start_run", run=run, initial=DIGEST, data=data)
    assert (built.after.run.task, built.after.run.target) == ("regression", {"mean": [2.0], "std": [1.0]})
    assert any(
        "task" in line and "regression" in line for line in map(str, compute_differences(GENESIS.state, built.after))
    )
    columns = [{"name": "f", "values": ["a", "b"]}, {"name": "g"}]
    agreed = run["input"] | {"shape": [3, 1, 1], "columns": columns, "missing": "zero"}
    kind = get_kind("start_run", run=run | {"input": agreed}, initial=DIGEST)
    assert kind.terms["input"]["columns"] == columns
    back = build("start_run", state=built.after, set=["task=classification", "classes=[a,b]"], initial=DIGEST)
    assert (back.after.run.task, back.after.run.target) == ("classification", None)
    with pytest.raises(ChangeRefused, match=r"this site's data do not fit: .*expected 2 columns, dose, weight, got 1"):
        build("start_run", run=run | {"classes": ["dose", "weight"], "target": None}, initial=DIGEST, data=data)
    refuse("start_run", "dfpl trains classification alone", run={**run, "method": {"name": "dfpl"}}, initial=DIGEST)


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"initial": "continue", "set": ["lrr=0.05"]}, "method.lrr: unknown key"),
        ({"initial": "continue", "set": ["lr=-1"]}, "method.lr: expected a number in (0, 1e38]"),
        ({"initial": "continue", "set": ["lr"]}, "expected KEY=VALUE"),
        ({"initial": "continue", "run": {"methods": {}}}, "methods: unknown key. Did you mean 'method'?"),
        ({"initial": "continue", "run": {"method": {"name": "fedavgg"}}}, "unknown method 'fedavgg'"),
        ({"initial": "continue", "run": {"method": None}}, "method"),
        ({"initial": "continue", "set": ["model.hidden=[4]"]}, "not one this run can continue from"),
        ({"initial": "continue", "run": {"method": {"name": "dfpl"}}}, "not one this run can continue from"),
        ({"initial": "continue", "set": ["model.hidden=[9000000]"]}, "model"),
        (
            {"initial": DIGEST, "set": ["model.hidden=[60000]"]},
            "limits.payload_mib: expected at least",
        ),
        ({"initial": "something"}, "initial: expected continue, a file, or a digest"),
        ({"initial": "g" * 64}, "initial: expected 64 lower-case hex digits"),
        ({}, "initial: is missing"),
        ({"initial": "/nowhere/model.safetensors"}, "cannot be read by the node (No such file or directory)"),
    ],
)
def test_runs_that_cannot_be_are_refused(terms: dict[str, Any], problem: str) -> None:
    refuse("start_run", problem, **terms)


def freeze_first(method: dict[str, Any]) -> State:
    """A federation whose first run freezes the first layer."""
    model = {**MODEL, "frozen": ["fc1.*"]}
    return Genesis.from_mapping(
        with_schema(make_genesis_mapping(KEYS[:4], method=method, model=model, rounds=10))
    ).state


def test_a_run_goes_on_with_more_or_less_that_trains() -> None:
    frozen = freeze_first({"name": "fedavg"})
    more = build("start_run", state=frozen, set=["model.frozen=[]"], initial="continue")
    assert more.after.run.model == MODEL
    less = build("start_run", set=["model.frozen=[fc1.*]"], initial="continue")
    assert less.after.run.model == {**MODEL, "frozen": ["fc1.*"]}
    assert set(less.after.run.schema["aggregate"]) == {"model/fc2.weight", "model/fc2.bias"}


@pytest.mark.parametrize(("one", "other"), [("fedavg", "feddbe"), ("feddbe", "fedavg"), ("feddbe", "fedala")])
def test_a_run_goes_on_from_one_that_has_agreed_on_a_mean_or_has_not(one: str, other: str) -> None:
    """FedDBE agrees on another in each run."""
    mapping = make_genesis_mapping(KEYS[:4], method={"name": one}, model=MODEL, rounds=10)
    before = Genesis.from_mapping(with_schema(mapping)).state
    built = build("start_run", state=before, run={"method": {"name": other}}, initial="continue")
    assert built.after.run.method["name"] == other


@pytest.mark.parametrize(
    ("method", "settings", "problem"),
    [
        ("fednova", ["model.frozen=[]"], "fednova goes by the aggregate in force, which has no 'model/fc1."),
        ("fedavg", ["model.hidden=[3,4]", "model.frozen=[fc1.*,fc3.*]"], "not one this run can continue from"),
        ("dfpl", ["model.hidden=[4,3]", "model.frozen=[]"], "run 1 has no 'fc1.weight' to continue with; name a model"),
    ],
)
def test_a_run_does_not_continue_with_what_nobody_has(method: str, settings: list[str], problem: str) -> None:
    with pytest.raises(ChangeRefused) as caught:
        build("start_run", state=freeze_first({"name": method}), set=settings, initial="continue")
    assert problem in str(caught.value)


def make_model(hidden: int = 3) -> dict[str, Any]:
    shapes = parameter_shapes({"name": "mlp", "hidden": [hidden]}, (1, 8, 8), 10)
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_a_run_begins_from_a_model_in_a_file(tmp_path: Path) -> None:
    """As genesis has it beside it, or as a model is exported."""
    beside_genesis = encode_arrays({f"model/{name}": array for name, array in make_model().items()})
    for data in (beside_genesis, encode_arrays(make_model())):
        file = tmp_path / "model.safetensors"
        file.write_bytes(data)
        built = build("start_run", initial=str(file), rounds=5)
        assert isinstance(built.change.kind, StartRun)
        assert built.blob == beside_genesis
        assert built.change.kind.initial == hashlib.sha256(beside_genesis).digest()
        assert built.after.run.initial_model == built.change.kind.initial


@pytest.mark.parametrize("data", [b"no arrays", encode_arrays(make_model(hidden=4))])
def test_a_model_of_another_network_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(data)
    refuse("start_run", "not the initial parameters of mlp", initial=str(file))


@pytest.mark.timeout(20)
def test_what_is_no_file_or_too_large_for_the_model_is_never_read(tmp_path: Path) -> None:
    """A device or a pipe has no end: the node that reads it dies of it, or waits for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        refuse("start_run", "expected a file that the node can read", initial=str(path))
    large = tmp_path / "large.safetensors"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    refuse("start_run", "as of mlp, got 1099511627776", initial=str(large))


def test_classes_that_this_sites_data_lack_are_refused() -> None:
    ten = [str(digit) for digit in range(10)]
    digits = {"format": "digits"}
    run = {"classes": ten[:5]}
    spec = get_spec({"name": "fedavg"}, MODEL, 5, (1, 8, 8))
    assert spec.task.num_classes == 5
    with pytest.raises(ChangeRefused, match=r"this site's data do not fit: .*is not one of genesis' classes"):
        build("start_run", run=run, initial=DIGEST, data=digits)
    assert build("start_run", run={"classes": [*ten, "ten"]}, initial=DIGEST, data=digits).blob is None


# ---- warnings


def test_an_operator_is_told_that_nobody_may_be_away() -> None:
    built = build("remove_member", name="node3")
    assert (built.after.n, built.after.q) == (3, 3)
    assert list_warnings(built.change.kind, GENESIS.state, built.after) == [
        "all 3 members have to vote then: one that is away stops the federation"
    ]
    harmless = build("set_rules", rules={"keep_heights": 3})
    assert list_warnings(harmless.change.kind, GENESIS.state, harmless.after) == []


def test_where_all_have_to_agree_an_operator_is_told_that_the_lost_key_has_to() -> None:
    """Else one waits for approvals that cannot come."""
    three = build("remove_member", name="node3").after
    assert (three.n, three.q) == (3, 3)
    replaced = build("replace_key", state=three, name="node2", request=f"x={encode_id(NEW.id)}")
    (warning,) = list_warnings(replaced.change.kind, three, replaced.after)
    assert warning.startswith("node2, with its old key, has to agree, as all 3 members have to: where that key is gone")
    removed = build("remove_member", state=three, name="node2")
    assert "node2 has to agree, as all 3 members have to" in list_warnings(removed.change.kind, three, removed.after)[0]
    harmless = build("replace_key", name="node2", request=f"x={encode_id(NEW.id)}")
    assert list_warnings(harmless.change.kind, GENESIS.state, harmless.after) == []


def test_an_operator_is_told_that_samples_leave_or_that_it_could_not_train() -> None:
    method = {"name": "fededs", "share_max": 10}
    shares = build("start_run", run={"method": method}, initial=DIGEST)
    (warning,) = list_warnings(shares.change.kind, GENESIS.state, shares.after)
    assert warning.startswith("fededs sends a learned transformation of each member's samples")
    unknown = replace(shares.after, run=replace(shares.after.run, method={"name": "of-a-later-release"}))
    (warning,) = list_warnings(shares.change.kind, GENESIS.state, unknown)
    assert warning.startswith("this site could not train in it: run 2: ")
    other = replace(shares.after, run=replace(shares.after.run, schema={"aggregate": {}}))
    (warning,) = list_warnings(shares.change.kind, GENESIS.state, other)
    assert "its schema is not that of fededs on mlp" in warning


def test_who_is_to_replace_a_key_is_told_that_it_is_in_use() -> None:
    chain = LivingChain(GENESIS, KEYS)
    lost, own = ReplaceKey(1, NEW.id), Change(ReplaceKey(1, NEW.id), 1, 0, 1, 100)
    assert warn_of_key_in_use(propose(lost), chain.tip) == []  # nobody has signed anything yet
    chain.add_rounds(2)
    (warning,) = warn_of_key_in_use(propose(lost), chain.tip)
    assert warning.startswith(
        "the key of node1 is in use: it signed for block 2, and the newest is 2. Ask node1 by voice"
    )
    assert warn_of_key_in_use(own, chain.tip) == []
    assert warn_of_key_in_use(propose(RemoveMember(1)), chain.tip) == []
    chain.add_change(EndRun(1))
    (warning,) = warn_of_key_in_use(propose(lost), chain.tip)
    assert "it signed for block 2, and the newest is 3" in warning
