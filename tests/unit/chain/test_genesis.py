"""Genesis: what defines a chain, and that a file that does not is refused by name."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.block import ZERO, Body
from chain.codec import compute_block_id, compute_body_digest, compute_seal, decode_block, encode_block
from chain.errors import GenesisError
from chain.genesis import GENESIS_TAG, Founder, Genesis
from chain.layout import WEIGHT_LIMIT
from chain.rules import MIB, PowRules, compute_quorum
from chain.schema import format_time
from chain.signing import encode_id
from chain.state import Observer, State
from chain.waits import PROFILES
from support.data.chains import make_digest, make_genesis, make_genesis_mapping, make_keys

KEYS = make_keys(4)
MAPPING = make_genesis_mapping(KEYS)
GENESIS = Genesis.from_mapping(MAPPING)


def change(path: str, value: Any) -> dict[str, Any]:
    """The mapping with one field, named by a dotted path, set; Ellipsis removes it."""
    mapping: Any = copy.deepcopy(MAPPING)
    mapping.setdefault("waits", {})
    place = mapping
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    result: dict[str, Any] = mapping
    return result


def refuse(mapping: Any) -> GenesisError:
    with pytest.raises(GenesisError) as caught:
        Genesis.from_mapping(mapping)
    return caught.value


# What it says


def test_canonical_bytes_are_sorted_ascii_json_without_spaces() -> None:
    text = GENESIS.canonical.decode("ascii")
    again = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert text == again
    assert " " not in text
    assert GENESIS.chain_id == hashlib.sha256(b"fn1.genesis".ljust(16, b"\0") + GENESIS.canonical).digest()
    assert b"fn1.genesis".ljust(16, b"\0") == GENESIS_TAG


def test_other_scripts_become_ascii_escapes() -> None:
    genesis = Genesis.from_mapping(change("chain_name", "Zürich 桜"))
    assert rb'"chain_name":"Z\u00fcrich \u685c"' in genesis.canonical
    assert Genesis.from_mapping(json.loads(genesis.canonical)) == genesis


def test_the_readable_form_and_the_canonical_bytes_both_give_the_same_chain_again() -> None:
    for genesis in (
        GENESIS,
        make_genesis(KEYS[:1], quorum="majority", profile="wide", waits={"collect_s": 7, "delta_s": 0.125}),
        make_genesis(KEYS, limits={"max_weight": 1, "payload_bytes": 12345}, rounds=0, min_contributions=1),
        make_genesis(KEYS, limits={"max_weight": 1, "payload_mib": 1, "max_abs": float(np.finfo(np.float32).max)}),
        make_genesis(KEYS, created_at="2026-11-20T14:00:00.250+01:00", input={"shape": [3, 32, 32], "mean": [1, 2, 3]}),
    ):
        for mapping in (genesis.to_mapping(), json.loads(json.dumps(genesis.to_mapping()))):
            again = Genesis.from_mapping(mapping)
            assert again.chain_id == genesis.chain_id
            assert again.rules.waits == genesis.rules.waits
        assert Genesis.from_mapping(json.loads(genesis.canonical)).chain_id == genesis.chain_id


def test_members_are_sorted_by_key_whatever_the_order_in_the_file() -> None:
    shuffled = change("members", MAPPING["members"][::-1])
    assert Genesis.from_mapping(shuffled).chain_id == GENESIS.chain_id
    assert GENESIS.state.member_ids == tuple(sorted(key.id for key in KEYS))
    assert [GENESIS.state.index_of(key.id) for key in KEYS] == [0, 1, 2, 3]
    assert GENESIS.state.index_of(ZERO) is None


def test_addresses_are_kept_but_not_hashed() -> None:
    with_address = Genesis.from_mapping(change("members.0.address", "127.0.0.1:7050"))
    assert with_address.chain_id == GENESIS.chain_id
    assert with_address == GENESIS
    assert hash(with_address) == hash(GENESIS)
    assert with_address.to_mapping()["members"][0]["address"] == "127.0.0.1:7050"
    assert Founder(ZERO, "a", "x") == Founder(ZERO, "a", "y")
    assert b"7050" not in with_address.canonical


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("chain_name", "other"),
        ("created_at", "2026-11-20T14:00:01Z"),
        ("members.0.name", "other"),
        ("method.lambda", 2.0),
        ("model.hidden", [64, 33]),
        ("classes.0", "other"),
        ("input.shape", [1, 8, 9]),
        ("initial_model", make_digest("other").hex()),
        ("rounds", 11),
        ("quorum", "majority"),
        ("profile", "site"),
        ("waits.collect_s", 2.5),
        ("pow.max", 2**33),
        ("limits.max_weight", 999_999),
        ("limits.payload_mib", 17),
        ("limits.max_abs", 999_999),
        ("min_contributions", 2),
        ("keep_heights", 3),
        ("evidence_heights", 99),
        ("schema", {"model": 1}),
        ("observers", [{"key": encode_id(make_keys(1, "observer")[0].id), "name": "eve"}]),
    ],
)
def test_every_field_is_in_the_chain_id(path: str, value: Any) -> None:
    other = Genesis.from_mapping(change(path, value))
    assert other.chain_id != GENESIS.chain_id
    assert other != GENESIS


def test_defaults_are_the_same_chain_as_writing_them_out() -> None:
    mapping = change("min_contributions", None) | {"keep_heights": 2, "evidence_heights": 100}
    assert Genesis.from_mapping(mapping | {"waits": {"delta_s": 0.05}}) == GENESIS
    assert Genesis.from_mapping(mapping | {"observers": [], "schema": {}}) == GENESIS
    assert Genesis.from_mapping(change("limits.max_abs", 1_000_000)) == GENESIS
    assert Genesis.from_mapping(change("input", {"shape": [1, 8, 8]})) == GENESIS
    assert Genesis.from_mapping(change("input", {"shape": [1, 8, 8], "mean": [0], "std": [1]})) == GENESIS


def test_a_number_of_contributions_is_not_the_quorum_though_they_are_equal_now() -> None:
    """Null follows the quorum as members come and go; a number stays."""
    said = Genesis.from_mapping(change("min_contributions", GENESIS.state.q))
    assert said.state.min_contributions == GENESIS.state.min_contributions == 3
    assert said.chain_id != GENESIS.chain_id
    assert (said.rules.min_contributions, GENESIS.rules.min_contributions) == (3, None)
    assert "min_contributions" not in GENESIS.to_mapping()
    assert b'"min_contributions":null' in GENESIS.canonical


def test_waits_come_from_the_profile_and_each_may_be_set() -> None:
    assert GENESIS.rules.waits == PROFILES["local"]
    genesis = make_genesis(KEYS, profile="wide", waits={"collect_s": 5})
    assert genesis.rules.waits == replace(PROFILES["wide"], collect_s=5.0)
    assert make_genesis(KEYS, profile="wide", waits={"collect_s": 5.0}).chain_id == genesis.chain_id


@pytest.mark.parametrize(
    ("rule", "n", "q"),
    [
        *[("bft", 1, 1), ("bft", 2, 2), ("bft", 3, 3), ("bft", 4, 3), ("bft", 6, 5), ("bft", 7, 5), ("bft", 10, 7)],
        *[("majority", 1, 1), ("majority", 2, 2), ("majority", 3, 2), ("majority", 4, 3), ("majority", 7, 4)],
    ],
)
def test_quorum(rule: str, n: int, q: int) -> None:
    genesis = make_genesis(make_keys(n), quorum=rule)
    assert (genesis.state.n, genesis.state.q, genesis.state.min_contributions) == (n, q, q)


def test_two_quorums_always_share_more_members_than_may_lie() -> None:
    for n in range(1, 1000):
        assert 2 * compute_quorum("majority", n) - n > 0
        assert 2 * compute_quorum("bft", n) - n > (n - 1) // 3
        assert compute_quorum("bft", n) <= n - (n - 1) // 3  # and the rest can still decide


def test_times_are_read_with_their_zone() -> None:
    wanted = 1795183200000
    assert GENESIS.created_at_ms == wanted
    for value in (
        "2026-11-20T15:00:00+01:00",
        "2026-11-20T14:00:00.000Z",
        datetime(2026, 11, 20, 14, tzinfo=UTC),
        datetime(2026, 11, 20, 16, tzinfo=timezone(timedelta(hours=2))),
    ):
        assert Genesis.from_mapping(change("created_at", value)).created_at_ms == wanted
    assert Genesis.from_mapping(change("created_at", "2026-11-20T14:00:00.007Z")).created_at_ms == wanted + 7


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 253_402_300_799_999))
def test_a_time_survives_its_text(time_ms: int) -> None:
    assert Genesis.from_mapping(change("created_at", format_time(time_ms))).created_at_ms == time_ms


def test_the_first_state_follows_from_genesis() -> None:
    observer = make_keys(1, "observer")[0].id
    genesis = Genesis.from_mapping(change("observers", [{"key": encode_id(observer), "name": "eve"}]))
    state = genesis.state
    assert [(m.key, m.name, m.seat) for m in state.members] == [(k.id, f"node{i}", i) for i, k in enumerate(KEYS)]
    assert {(m.since, m.key_since, m.is_suspended, m.pardoned_at) for m in state.members} == {(0, 0, False, 0)}
    assert state.observers == (Observer(observer, "eve"),)
    assert (state.chain_id, state.protocol, state.rules) == (genesis.chain_id, 2, genesis.rules)
    assert (state.run.number, state.run.first_height, state.run.is_ended) == (1, 1, False)
    assert (state.num_seats, state.pow_since, state.retired, state.executed) == (4, 0, (), {})
    assert State.decode(genesis.chain_id, state.canonical) == state
    assert state.digest == hashlib.sha256(b"fn1.state".ljust(16, b"\0") + genesis.chain_id + state.canonical).digest()


def test_block_0_follows_from_genesis() -> None:
    block = GENESIS.block0
    assert block.height == 0
    assert (block.header.version, block.header.prev, block.header.miner) == (2, ZERO, ZERO)
    assert (block.body, block.contributions, block.change) == (Body(), (), None)
    assert block.header.aggregate == GENESIS.run.initial_model
    assert block.header.state_next == GENESIS.state.digest
    assert block.header.body == compute_body_digest(Body())
    assert block.header.start_ms == block.header.time_ms == GENESIS.created_at_ms
    assert (block.header.difficulty, block.nonce, block.signature) == (1, 0, bytes(64))
    assert block.id == compute_block_id(compute_seal(GENESIS.chain_id, block.header), 0)
    assert decode_block(GENESIS.chain_id, encode_block(block)) == block


def test_what_was_read_does_not_change_with_the_mapping_it_came_from() -> None:
    mapping = copy.deepcopy(MAPPING)
    genesis = Genesis.from_mapping(mapping)
    mapping["model"]["hidden"].append(1)
    genesis.to_mapping()["method"]["name"] = "other"
    assert genesis.run.model["hidden"] == [64, 32]
    assert genesis.run.method["name"] == "dfpl"


# What it refuses


@pytest.mark.parametrize("path", [*MAPPING, "pow.difficulty", "pow.target_ms", "limits.max_weight", "members.0.name"])
def test_a_missing_field_is_named(path: str) -> None:
    error = refuse(change(path, ...))
    assert error.path == path.replace("members.0", "members[0]")
    assert error.message == "is missing"
    assert str(error) == f"{error.path}: is missing"


@pytest.mark.parametrize(
    ("path", "value", "at", "message"),
    [
        ("chain_nam", "x", "chain_nam", "unknown key. Did you mean 'chain_name'?"),
        ("pow.dificulty", 1, "pow.dificulty", "unknown key. Did you mean 'difficulty'?"),
        ("waits.collect", 1, "waits.collect", "unknown key. Did you mean 'collect_s'?"),
        ("limits.zzz", 1, "limits.zzz", "unknown key"),
        ("members.1.adress", "x", "members[1].adress", "unknown key. Did you mean 'address'?"),
        ("input.shap", 1, "input.shap", "unknown key. Did you mean 'shape'?"),
        ("protocol", 6, "protocol", "expected 2 to 5, got 6"),
        ("protocol", 0, "protocol", "expected 2 to 5, got 0"),
        ("protocol", "1", "protocol", "expected a whole number, got '1'"),
        ("protocol", True, "protocol", "expected a whole number, got True"),
        ("chain_name", "", "chain_name", "expected 1 to 64 printable characters, got ''"),
        ("chain_name", "a\nb", "chain_name", "expected 1 to 64 printable characters, got 'a\\nb'"),
        ("chain_name", 7, "chain_name", "expected text, got 7 (quote it?)"),
        ("created_at", "yesterday", "created_at", "expected a time such as 2026-11-20T14:00:00Z, got 'yesterday'"),
        ("created_at", "2026-11-20T14:00:00", "created_at", "expected a time such as 2026-11-20T14:00:00Z"),
        ("created_at", "2026-13-20T14:00:00Z", "created_at", "expected a date of the calendar"),
        ("created_at", "1969-12-31T23:59:59Z", "created_at", "expected 0 to"),
        ("created_at", datetime(2026, 11, 20), "created_at", "expected a time such as"),
        ("created_at", date(2026, 11, 20), "created_at", "expected a time such as"),
        ("created_at", datetime(2026, 11, 20, 0, 0, 0, 1, tzinfo=UTC), "created_at", "expected whole milliseconds"),
        ("created_at", 5, "created_at", "expected a time such as"),
        ("members", [], "members", "expected at least one, got none"),
        ("members", {}, "members", "expected a list, got {}"),
        ("members.0", "x", "members[0]", "expected a mapping, got 'x'"),
        ("members.0.key", "x", "members[0].key", "node id: expected 52 characters"),
        ("members.0.key", encode_id(ZERO), "members[0].key", "small-order"),
        (
            "members.1.key",
            encode_id(KEYS[0].id),
            "members[1].key",
            "expected one entry per key, got that of members[0]",
        ),
        ("members.1.name", "node0", "members[1].name", "expected each name once, got 'node0' again"),
        ("members.2.name", "", "members[2].name", "expected 1 to 64 printable characters, got ''"),
        ("members.2.address", 7050, "members[2].address", "expected text, got 7050"),
        ("observers", {}, "observers", "expected a list, got {}"),
        ("observers", [{"key": "x", "name": "eve"}], "observers[0].key", "node id: expected 52 characters"),
        ("observers", [{"key": encode_id(KEYS[0].id)}], "observers[0].name", "is missing"),
        (
            "observers",
            [{"key": encode_id(KEYS[0].id), "name": "eve"}],
            "observers[0].key",
            "expected no member's key, got",
        ),
        ("schema", [], "schema", "expected a mapping, got []"),
        ("schema", {"note": ["x" * 60] * 1100}, "schema", "size of the schema: expected 2 to 65536, got"),
        ("method", "dfpl", "method", "expected a mapping, got 'dfpl'"),
        ("method.name", ..., "method.name", "expected a name, got None"),
        ("method.name", "", "method.name", "expected a name, got ''"),
        ("method.lr", float("nan"), "method.lr", "expected printable text or a finite number, got nan"),
        ("method.lr", float("inf"), "method.lr", "expected printable text or a finite number, got inf"),
        ("method.lr", b"x", "method.lr", "expected printable text or a finite number, got b'x'"),
        ("method.lr", 2**65, "method.lr", "expected printable text or a finite number"),
        ("method.lr", "\ud800", "method.lr", "expected printable text or a finite number"),
        ("method", {"name": "x", 1: 2}, "method", "expected printable text as key, got 1"),
        ("model.hidden", [64, object], "model.hidden[1]", "expected printable text or a finite number"),
        ("classes", [], "classes", "expected at least one, got none"),
        ("classes", ["a", "a"], "classes[1]", "expected each name once, got 'a' again"),
        ("classes", ["a", 1], "classes[1]", "expected text, got 1 (quote it?)"),
        ("input.shape", [], "input.shape", "expected 1 to 4 sizes, got 0"),
        ("input.shape", [1, 0, 8], "input.shape[1]", "expected 1 to 65536, got 0"),
        ("input.resize", [28], "input.resize", "expected 2 sizes, got 1"),
        ("input.mean", [0.0, 0.0], "input.mean", "expected 1 value or 1, got 2"),
        ("input.mean", ["x"], "input.mean[0]", "expected a finite number, got 'x'"),
        ("input.std", [0.0], "input.std[0]", "expected more than 0, got 0"),
        ("initial_model", "5A1E", "initial_model", "expected 64 lower-case hex digits, got '5A1E'"),
        ("rounds", -1, "rounds", "expected 0 to"),
        ("rounds", 1.5, "rounds", "expected a whole number, got 1.5"),
        ("quorum", "bff", "quorum", "expected one of bft, majority, got 'bff'. Did you mean 'bft'?"),
        ("profile", "locl", "profile", "expected one of local, site, wide, got 'locl'. Did you mean 'local'?"),
        ("waits.delta_s", 0, "waits.delta_s", "expected more than 0 to 86400 seconds, got 0"),
        ("waits.propose_step_s", -1, "waits.propose_step_s", "expected 0 to 86400 seconds, got -1"),
        ("waits.collect_s", float("inf"), "waits.collect_s", "expected a finite number, got inf"),
        ("waits.collect_s", 10**400, "waits.collect_s", "expected a finite number, got a number of 1329 bits"),
        ("waits.collect_s", "2", "waits.collect_s", "expected a finite number, got '2'"),
        ("waits.cap_s", 0.5, "waits.cap_s", "expected at least propose_s, got 0.5 with propose_s 1"),
        ("pow.difficulty", 0, "pow.difficulty", "expected 1 to"),
        ("pow.difficulty", 2**64, "pow.difficulty", "expected 1 to 18446744073709551615"),
        ("pow.min", 0, "pow.min", "expected 1 to 4, got 0"),
        ("pow.min", 5, "pow.min", "expected 1 to 4, got 5"),
        ("pow.max", 3, "pow.max", "expected 4 to 18446744073709551615, got 3"),
        ("pow.max", 2**64, "pow.max", "expected 4 to"),
        ("pow.target_ms", 0, "pow.target_ms", "expected 1 to"),
        ("pow", None, "pow", "expected a mapping, got None"),
        ("pow.adaptive", 1, "pow.adaptive", "expected true or false, got 1"),
        ("limits.max_weight", WEIGHT_LIMIT, "limits.max_weight", "expected 1 to 536870911, got 536870912"),
        ("limits.max_weight", 0, "limits.max_weight", "expected 1 to 536870911, got 0"),
        ("limits.payload_mib", 0, "limits.payload_mib", "expected 1 to"),
        ("limits.payload_mib", ..., "limits.payload_mib", "is missing"),
        ("limits.payload_bytes", 1, "limits.payload_bytes", "expected payload_mib or payload_bytes, got both"),
        ("limits.max_abs", 0, "limits.max_abs", "expected more than 0 to 3.40282e+38, got 0"),
        ("limits.max_abs", -1.5, "limits.max_abs", "expected more than 0 to 3.40282e+38, got -1.5"),
        ("limits.max_abs", 3.41e38, "limits.max_abs", "expected more than 0 to 3.40282e+38, got 3.41e+38"),
        ("limits.max_abs", float("nan"), "limits.max_abs", "expected a finite number, got nan"),
        ("limits.max_abs", "1e6", "limits.max_abs", "expected a finite number, got '1e6'"),
        ("min_contributions", 0, "min_contributions", "expected 1 to 4294967295, got 0"),
        ("min_contributions", 4, "min_contributions", "expected 1 to 3, got 4"),
        ("keep_heights", 0, "keep_heights", "expected 1 to"),
        ("evidence_heights", -1, "evidence_heights", "expected 0 to"),
    ],
)
def test_a_bad_value_is_refused_by_name(path: str, value: Any, at: str, message: str) -> None:
    error = refuse(change(path, value))
    assert error.path == at
    assert message in error.message


def test_a_genesis_of_the_first_protocol_is_refused_with_what_to_do() -> None:
    error = refuse(change("protocol", 1))
    assert error.path == "protocol"
    assert "releases up to 0.2" in error.message
    assert "'fednode genesis new'" in error.message


def test_what_is_no_mapping_at_all_is_refused() -> None:
    values: list[Any] = [None, [], "genesis", 7]
    for value in values:
        assert "expected a mapping" in refuse(value).message


def test_a_tree_that_never_ends_is_refused() -> None:
    loop: dict[str, Any] = {"name": "dfpl"}
    loop["self"] = loop
    assert "at most 8 levels" in refuse(change("method", loop) | {"method": loop}).message
    wide: Any = "x"
    for _ in range(6):
        wide = [wide] * 10  # a million values from sixty
    assert "10000 values" in refuse(change("model.hidden", wide)).message


def test_a_genesis_built_by_hand_is_checked_too() -> None:
    founders, rules = GENESIS.founders, GENESIS.rules
    tries: list[tuple[Callable[[], Genesis], str]] = [
        (lambda: replace(GENESIS, founders=founders[::-1]), "members[1].key"),
        (lambda: replace(GENESIS, founders=(founders[0], founders[0])), "members[1].key"),
        (lambda: replace(GENESIS, founders=(Founder(ZERO, "zero"),)), "members[0].key"),
        (lambda: replace(GENESIS, founders=()), "members"),
        (lambda: replace(GENESIS, observers=(Observer(founders[0].key, "eve"),)), "observers[0].key"),
        (lambda: replace(GENESIS, protocol=1), "protocol"),
        (lambda: replace(GENESIS, run=replace(GENESIS.run, initial_model=b"")), "initial_model"),
        (lambda: replace(GENESIS, rules=replace(rules, quorum="all")), "quorum"),
        (lambda: replace(GENESIS, rules=replace(rules, min_contributions=4)), "min_contributions"),
        (
            lambda: replace(GENESIS, rules=replace(rules, waits=replace(rules.waits, delta_s=float("nan")))),
            "waits.delta_s",
        ),
        (
            lambda: replace(GENESIS, rules=replace(rules, limits=replace(rules.limits, payload_bytes=0))),
            "limits.payload_bytes",
        ),
        (
            lambda: replace(GENESIS, rules=replace(rules, limits=replace(rules.limits, max_abs=float("nan")))),
            "limits.max_abs",
        ),
    ]
    for build, path in tries:
        with pytest.raises(GenesisError) as caught:
            build()
        assert caught.value.path == path


def test_replacing_a_field_gives_another_chain() -> None:
    other = replace(GENESIS, run=replace(GENESIS.run, rounds=11))
    assert other.chain_id != GENESIS.chain_id
    assert other.state != GENESIS.state
    assert other.block0.id != GENESIS.block0.id
    assert other.rules.limits.payload_bytes == 16 * MIB


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _paths(value: Any, prefix: str = "") -> list[str]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = []
    for key, item in items:
        path = f"{prefix}{key}"
        found += [path, *_paths(item, f"{path}.")]
    return found


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(_paths(MAPPING)), JSON_VALUES)
def test_any_value_anywhere_is_a_genesis_or_a_genesis_error(path: str, value: Any) -> None:
    build: Callable[[Any], Genesis] = Genesis.from_mapping
    try:
        genesis = build(change(path, value))
    except GenesisError:
        return
    assert build(genesis.to_mapping()).chain_id == genesis.chain_id
    assert build(json.loads(genesis.canonical)).chain_id == genesis.chain_id


@pytest.mark.parametrize(
    ("said", "low", "high"),
    [
        ({}, 1000, 1000),  # constant
        ({"adaptive": False}, 1000, 1000),
        ({"adaptive": True}, 15, 64_000),
        ({"adaptive": True, "max": 5000}, 15, 5000),
        ({"min": 10}, 10, 1000),
        ({"min": 10, "max": 2000}, 10, 2000),
    ],
)
def test_difficulty_stays_unless_it_may_adapt(said: dict[str, Any], low: int, high: int) -> None:
    genesis = make_genesis(make_keys(4), pow={"difficulty": 1000, "target_ms": 50, **said})
    assert genesis.rules.pow == PowRules(difficulty=1000, min=low, max=high, target_ms=50)
    assert genesis.to_mapping()["pow"] == {"difficulty": 1000, "min": low, "max": high, "target_ms": 50}


def test_bounds_of_adaptive_difficulty_fit_into_what_a_header_holds() -> None:
    genesis = make_genesis(make_keys(4), pow={"difficulty": 2**60, "target_ms": 50, "adaptive": True})
    assert (genesis.rules.pow.min, genesis.rules.pow.max) == (2**54, 2**64 - 1)
    assert make_genesis(make_keys(4), pow={"difficulty": 3, "target_ms": 50, "adaptive": True}).rules.pow.min == 1
