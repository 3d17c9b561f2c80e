"""One member's masks: keys that are durable before they are shown and forgotten once they are used, seeds that two
members share and nobody else, and nothing opened that would show what a member has sent."""

from __future__ import annotations

import hmac
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from chain.block import Block, PayloadRef
from chain.calendar import Calendar, Place
from chain.changes.base import Kind
from chain.changes.members import AddMember, AddObserver, RemoveMember
from chain.changes.runs import StartRun
from chain.genesis import Genesis
from chain.state import State
from chain.tip import Tip
from ml import payload
from ml.aggregation.masks import add_mask, commit, is_added
from ml.payload import Array, Arrays, decode_arrays, encode_arrays, from_rows
from ml.specs import AuthorPayloads, MaskedSpec, compute_aggregate, get_spec
from ml.specs.masked.aggregate import count_spoiled, drop_masked, read_roster, read_summed
from ml.specs.masked.spec import EMPTY_INPUT, EMPTY_INPUT_BYTES
from node.consensus.learning.masking import Masking
from node.consensus.learning.masks import (
    Masker,
    MaskingRefused,
    MaskKey,
    MaskKeys,
    RoundMasks,
    derive_seed,
    is_masked,
    is_opening,
)
from node.errors import NodeError
from node.runs.specs import RunRound, RunSpecs
from support.data.chains import make_contribution, make_digest, make_genesis, make_genesis_mapping, make_keys
from support.data.changes import LivingChain, extend_with
from support.data.changes import make_round as make_body
from support.data.run_schemas import with_schema

KEYS = make_keys(4)
NEW, ARCHIVE = make_keys(2, "new")
EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}
TERMS: Mapping[str, Any] = {
    "model": {"name": "mlp", "hidden": [2]},
    "classes": ["a", "b"],
    "input": {"shape": [3, 1, 1], "mean": [0.0], "std": [1.0]},
    "limits": {"max_weight": 1000, "payload_mib": 16},
    "pow": EASY,
}
METHOD = {"name": "fedavg", "aggregation": "masked_sum"}
GENESIS = Genesis.from_mapping(with_schema(make_genesis_mapping(KEYS, method=METHOD, **TERMS)))
INITIAL: Arrays = {"model/fc1.weight": np.zeros((2, 3), np.float32)}
ALL = (0, 1, 2, 3)


def make_spec(num_members: int = 4) -> MaskedSpec:
    spec = get_spec(METHOD, TERMS["model"], 2, (3, 1, 1), num_members=num_members, max_weight=1000)
    assert isinstance(spec, MaskedSpec)
    return spec


def find_round(state: State, height: int) -> RunRound:
    found = RunSpecs(Calendar([(0, state)])).find(height)
    assert found is not None
    return found


def make_mask_key(label: str) -> MaskKey:
    return MaskKey(X25519PrivateKey.from_private_bytes(make_digest(label)))


def get_secret(key: MaskKey) -> bytes:
    return key.private.private_bytes_raw()


def make_model(index: int) -> dict[str, Array]:
    rng = np.random.default_rng(index)
    arrays = make_spec().inner.schemas(1)["model"].arrays
    return {name: rng.standard_normal(tuple(map(int, of.shape)), np.float32) for name, of in arrays.items()}


class Federation:
    """Members who mask and open what they send, on a chain that they all have, and its newest aggregate."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chain = LivingChain(GENESIS, [*KEYS, NEW])
        self.runs = RunSpecs(Calendar([(0, GENESIS.state)]))
        self.aggregate = INITIAL
        self.last: dict[bytes, Arrays] = {}  # what the newest block of contributions has
        self.maskers = [self.start(i) for i in ALL]

    def start(self, index: int) -> Masker:
        """A member's, as it is after a restart."""
        keys = MaskKeys(self.get_file(index))
        return Masker(keys, KEYS[index].id, GENESIS.chain_id, self.get_block, self.runs.find)

    def restart(self, index: int, *, forgets: bool = False) -> None:
        """It may have lost its file of keys meanwhile."""
        if forgets:
            self.get_file(index).unlink()
        self.maskers[index] = self.start(index)

    def get_file(self, index: int) -> Path:
        return self.path / f"{index}.json"

    def get_block(self, height: int) -> Block:
        return self.chain.blocks[height - 1][0]

    def change(self, kind: Kind) -> None:
        self.chain.add_change(kind)
        self.runs.calendar.add(self.chain.tip.height, self.chain.state)

    @property
    def round(self) -> RunRound:
        round_ = self.runs.find(self.chain.tip.height + 1)
        assert round_ is not None
        return round_

    # ---- one member

    def begin(self, index: int) -> str | None:
        return self.maskers[index].begin(self.round, self.aggregate)

    def owes_openings(self, index: int) -> bool:
        return self.maskers[index].owes_openings(self.round)

    def mask(self, index: int, weight: int = 1) -> Arrays:
        model = encode_arrays(make_model(index))
        data = self.maskers[index].mask(self.chain.tip, self.round, self.aggregate, model, weight)
        return decode_arrays(data, len(data))

    def open(self, index: int) -> Arrays:
        data = self.maskers[index].open(self.round, self.aggregate)
        return decode_arrays(data, len(data))

    # ---- all of them

    def add(self, payloads: Mapping[int, Arrays]) -> None:
        """The block of these contributions is final; validators have looked at them."""
        round_, tip = self.round, self.chain.tip
        given = [AuthorPayloads(KEYS[i].id, i + 1 if "values" in p else 1, {"masked": p}) for i, p in payloads.items()]
        for c in given:
            round_.spec.validate_payload("masked", c.payloads["masked"], round_.number)
        encoded = compute_aggregate(round_.spec, round_.number, given, self.aggregate)
        assert encoded is not None
        self.aggregate = decode_arrays(encoded, len(encoded))
        self.last = {KEYS[i].id: payload for i, payload in payloads.items()}
        self.chain.add(extend_with(tip, make_body(tip, [KEYS[i] for i in payloads]), self.chain.get_active()[0]))

    def open_all(self, *who: int) -> None:
        self.add({i: self.open(i) for i in who})

    def send_all(self, *who: int, empty: Sequence[int] = ()) -> None:
        for i in who:
            assert self.begin(i) is None
        self.add({i: self.mask(i, i + 1) for i in who} | dict.fromkeys(empty, EMPTY_INPUT))

    def get_mean(self, *who: int, num_members: int = 4) -> Arrays:
        """What would come of the same without masks."""
        given = [AuthorPayloads(KEYS[i].id, i + 1, {"model": make_model(i)}) for i in who]
        encoded = compute_aggregate(make_spec(num_members).inner, 1, given, None)
        assert encoded is not None
        return decode_arrays(encoded, len(encoded))

    def has_mean(self, *who: int, num_members: int = 4) -> bool:
        """To the last bit."""
        return encode_arrays(drop_masked(self.aggregate) or {}) == encode_arrays(
            self.get_mean(*who, num_members=num_members)
        )

    def has_initial(self) -> bool:
        return encode_arrays(drop_masked(self.aggregate) or {}) == encode_arrays(INITIAL)


@pytest.fixture
def net(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


# ---- keys on disk


def test_a_key_that_is_kept_is_read_back_in_the_next_life(tmp_path: Path) -> None:
    path, one, other = tmp_path / "masks.json", make_mask_key("one"), make_mask_key("other")
    keys = MaskKeys(path)
    assert (len(keys), keys.newest, path.exists()) == (0, None, False)
    keys.keep([one, other])
    for held in (keys, MaskKeys(path)):
        assert len(held) == 2
        assert held.newest is not None
        assert held.newest.public == other.public
        found = held.find(one.public)
        assert found is not None
        assert get_secret(found) == get_secret(one)
        assert held.find(make_digest("a stranger")) is None


def test_of_what_is_not_kept_nothing_is_left(tmp_path: Path) -> None:
    path, one, other = tmp_path / "masks.json", make_mask_key("one"), make_mask_key("other")
    keys = MaskKeys(path)
    keys.keep([one])
    keys.keep([other])
    assert json.loads(path.read_bytes()) == {"keys": [get_secret(other).hex()]}
    assert list(tmp_path.iterdir()) == [path]
    keys.keep([])
    assert keys.newest is keys.find(other.public) is None
    assert (len(MaskKeys(path)), get_secret(other).hex().encode() in path.read_bytes()) == (0, False)


def test_the_file_of_keys_is_nobody_elses_business(tmp_path: Path) -> None:
    path = tmp_path / "masks.json"
    path.write_bytes(b'{"keys": []}')
    path.chmod(0o666)
    before = os.umask(0)
    try:
        MaskKeys(path).keep([make_mask_key("one")])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"keys": 3}',
        b'{"keys": null}',
        b'{"keys": [3]}',
        b'{"keys": ["zz"]}',
        b'{"keys": ["00"]}',
        b'{"keys": ["' + b"00" * 33 + b'"]}',
        b'{"keys": ""}',
        b'{"keys": {}}',
        pytest.param(b'{"keys": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep"),
    ],
)
def test_a_damaged_file_of_keys_is_refused_and_left_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "masks.json"
    path.write_bytes(data)
    with pytest.raises(NodeError, match=r"masks\.json: expected keys of masks, got something else"):
        MaskKeys(path)
    assert path.read_bytes() == data


def test_a_file_that_cannot_be_read_or_written_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="cannot be read"):
        MaskKeys(tmp_path)
    keys = MaskKeys(tmp_path / "gone" / "masks.json")
    with pytest.raises(NodeError, match="cannot be written"):
        keys.keep([make_mask_key("one")])
    assert (len(keys), keys.newest) == (0, None)


def test_two_keys_are_never_the_same() -> None:
    assert len({MaskKey.generate().public for _ in range(8)}) == 8


# ---- seeds

CHAIN, BEFORE = make_digest("chain"), make_digest("block")


def make_masks(index: int, keys: list[MaskKey], **terms: Any) -> RoundMasks:
    ids, publics = tuple(make_id(i) for i in range(len(keys))), tuple(key.public for key in keys)
    given = {"chain_id": CHAIN, "before": BEFORE, "members": ids, "keys": publics, **terms}
    return RoundMasks(me=make_id(index), key=keys[index], **given)


def make_id(index: int) -> bytes:
    return bytes([index + 1]) * 32


ROUND_KEYS = [make_mask_key(f"of member {i}") for i in ALL]


A, B, C = (bytes([letter]) * 32 for letter in b"abc")
K, L, M = (bytes([letter]) * 32 for letter in b"klm")


def test_a_seed_is_hkdf_of_the_secret() -> None:
    """RFC 5869, with SHA-256, no salt, and one block of output; members and their keys in the order of members."""
    info = b"fn1.mask seed".ljust(16, b"\0") + CHAIN + BEFORE + A + L + B + K
    key = hmac.digest(bytes(32), b"secret", "sha256")
    expected = hmac.digest(key, info + b"\x01", "sha256")
    assert derive_seed(b"secret", CHAIN, BEFORE, {B: K, A: L}) == expected


def test_a_seed_is_another_for_any_other_secret_chain_block_member_or_key() -> None:
    seeds = [
        derive_seed(b"secret", CHAIN, BEFORE, {A: K, B: L}),
        derive_seed(b"secre7", CHAIN, BEFORE, {A: K, B: L}),
        derive_seed(b"secret", make_digest("another"), BEFORE, {A: K, B: L}),
        derive_seed(b"secret", CHAIN, make_digest("another"), {A: K, B: L}),
        derive_seed(b"secret", BEFORE, CHAIN, {A: K, B: L}),
        derive_seed(b"secret", CHAIN, BEFORE, {A: K, C: L}),
        derive_seed(b"secret", CHAIN, BEFORE, {A: K, B: M}),
        derive_seed(b"secret", CHAIN, BEFORE, {A: L, B: K}),
        derive_seed(b"secret", CHAIN, BEFORE, {A: K, B: K}),
        derive_seed(b"secret", CHAIN, BEFORE, {K: A, L: B}),
        derive_seed(b"secret", CHAIN, BEFORE, {A: K}),
        derive_seed(b"secret", CHAIN, BEFORE, {}),
    ]
    assert len(set(seeds)) == len(seeds)


def test_two_members_come_to_the_same_seed_and_no_two_pairs_do() -> None:
    masks = [make_masks(i, ROUND_KEYS) for i in ALL]
    seeds = {(i, j): masks[i].derive(make_id(j)) for i in ALL for j in ALL}
    assert all(seeds[i, j] == seeds[j, i] for i, j in seeds)
    assert len(set(seeds.values())) == 4 + 6  # each one's own, and one of each pair


@pytest.mark.parametrize("terms", [{"before": make_digest("another")}, {"chain_id": make_digest("another")}])
@pytest.mark.parametrize("other", ALL)
def test_for_another_block_or_chain_all_seeds_are_others(terms: dict[str, bytes], other: int) -> None:
    one, another = make_masks(0, ROUND_KEYS), make_masks(0, ROUND_KEYS, **terms)
    assert one.derive(make_id(other)) != another.derive(make_id(other))


def test_a_member_commits_to_what_it_opens() -> None:
    spec, masks = make_spec(), make_masks(1, ROUND_KEYS)
    payload = masks.mask(spec, make_model(1), 2)
    spec.validate_payload("masked", payload, 2)
    committed = from_rows(payload["commitments"])
    for summed, opened in (([1, 2, 3], [1, 0]), ([0, 1], [1, 2, 3]), (list(ALL), [1])):
        seeds = masks.open([make_id(i) for i in summed])
        assert [commit(seed) for seed in seeds] == [committed[i] for i in opened]


def test_what_is_masked_is_behind_its_own_mask_and_three_that_are_shared() -> None:
    spec, masks = make_spec(), make_masks(1, ROUND_KEYS)
    values = masks.mask(spec, make_model(1), 2)["values"].copy()
    for other in ALL:
        bare = spec.coding.encode(make_model(1), 2, spec.fraction_bits)
        assert not (values == bare).any()
        add_mask(values, masks.derive(make_id(other)), subtract=other != 0)  # of the lower key it was subtracted
    assert (values == bare).all()


COPIED = tuple(ROUND_KEYS[i].public for i in (0, 1, 2, 0))  # member 3 has shown what member 0 did


def test_who_shows_a_copy_of_a_members_key_and_sends_nothing_has_none_of_its_seeds_opened() -> None:
    """Of a member that is in no sum all others open what they share with it, which with what member 0 opens itself
    would be all that hides its input."""
    masks = [replace(make_masks(i, ROUND_KEYS), keys=COPIED) for i in (0, 1, 2)]
    opened = [seed for one in masks for seed in one.open([make_id(i) for i in (0, 1, 2)])]
    assert len(opened) == len(set(opened)) == 6
    for other in (1, 2):
        assert masks[0].derive(make_id(other)) not in opened


def test_an_input_stays_hidden_behind_all_that_is_opened_where_one_has_copied_its_key() -> None:
    """As an onlooker would try: member 0's own mask, what members 1 and 2 share with the copy taken for what they share
    with member 0, and what that shares with the copy."""
    spec = make_spec()
    masks = [replace(make_masks(i, ROUND_KEYS), keys=COPIED) for i in (0, 1, 2)]
    values = masks[0].mask(spec, make_model(0), 1)["values"].copy()
    own, with_copy = masks[0].open([make_id(i) for i in (0, 1, 2)])
    add_mask(values, own, subtract=True)
    add_mask(values, with_copy, subtract=is_added(make_id(0), make_id(3)))
    for i in (1, 2):
        _, taken = masks[i].open([make_id(i) for i in (0, 1, 2)])
        add_mask(values, taken, subtract=is_added(make_id(0), make_id(i)))
    assert not (values == spec.coding.encode(make_model(0), 1, spec.fraction_bits)).any()


def test_a_member_whose_key_was_copied_shares_other_seeds_with_the_copy_than_with_itself() -> None:
    masks = replace(make_masks(0, ROUND_KEYS), keys=COPIED)
    seeds = [masks.derive(make_id(other)) for other in ALL]
    assert len(set(seeds)) == 4


# ---- a member, height by height


def test_members_come_to_the_mean_of_what_none_of_them_has_shown(net: Federation) -> None:
    net.open_all(*ALL)
    for who in ((0, 1, 2, 3), (0, 2, 3)):
        net.send_all(*who)
        net.open_all(*ALL)
        assert net.has_mean(*who)


def test_what_leaves_a_member_is_another_vector_each_time(net: Federation) -> None:
    net.open_all(*ALL)
    first = net.mask(0)["values"]
    net.send_all(*ALL)
    net.open_all(*ALL)
    assert not (net.mask(0)["values"] == first).any()
    assert not (first == make_spec().coding.encode(make_model(0), 1, make_spec().fraction_bits)).any()


def test_changes_in_the_place_of_openings_cost_nothing(net: Federation) -> None:
    net.open_all(*ALL)
    net.send_all(0, 1, 3)
    net.change(AddMember(NEW.id, "node4"))
    net.change(RemoveMember(4))
    assert [net.owes_openings(i) for i in ALL] == [True, True, False, True]
    net.open_all(*ALL)
    assert net.has_mean(0, 1, 3)


def test_a_change_that_comes_before_openings_keeps_the_sum_that_waits_whoever_has_come(net: Federation) -> None:
    """A sum of three of four is opened in a federation of five, whose quorum is four."""
    net.open_all(*ALL)
    net.send_all(0, 1, 2)
    net.change(AddMember(NEW.id, "node4"))
    assert net.chain.state.q == 4
    assert [net.owes_openings(i) for i in ALL] == [True, True, True, False]
    assert [len(net.open(i)["seeds"]) for i in ALL] == [2, 2, 2, 0]
    net.open_all(*ALL)
    assert net.has_mean(0, 1, 2)
    net.send_all(*ALL)
    net.open_all(*ALL)
    assert net.has_mean(*ALL, num_members=5)


def test_a_change_in_the_place_of_inputs_costs_that_round_and_keys_are_shown_anew(net: Federation) -> None:
    net.open_all(*ALL)
    early = net.mask(0, 1)
    first = MaskKeys(net.get_file(0)).newest
    net.change(AddObserver(ARCHIVE.id, "archive"))
    assert is_opening(net.round)
    assert not any(net.owes_openings(i) for i in ALL)
    assert net.open(0)["seeds"].shape == (0, 32)
    net.open_all(*ALL)
    assert net.has_initial()
    assert first is not None
    assert MaskKeys(net.get_file(0)).find(first.public) is None
    assert not (net.mask(0, 1)["values"] == early["values"]).any()
    net.send_all(*ALL)
    net.open_all(*ALL)
    assert net.has_mean(*ALL)


def test_a_member_that_shows_its_key_has_a_part_and_one_that_does_not_has_none(net: Federation) -> None:
    assert [net.begin(i) for i in ALL] == [None] * 4  # keys come first
    net.open_all(0, 1, 2)
    for i in (0, 1, 2):
        assert net.begin(i) is None
    assert net.begin(3) == "it has shown no key for this round in time, and does for the next"
    with pytest.raises(MaskingRefused, match="it has shown no key for this round in time"):
        net.mask(3)


def test_a_member_whose_key_came_too_late_has_no_part(net: Federation) -> None:
    openings = {i: net.open(i) for i in ALL}
    net.add({i: openings[i] for i in (0, 1, 2)})
    assert net.begin(3) == "it has shown no key for this round in time, and does for the next"
    with pytest.raises(MaskingRefused):
        net.mask(3)


LOST = "it has lost its key for this round, and shows another for the next"


def test_a_member_that_has_lost_its_key_has_no_part_until_it_has_shown_another(net: Federation) -> None:
    net.open_all(*ALL)
    net.restart(1, forgets=True)
    assert net.begin(1) == LOST
    with pytest.raises(MaskingRefused, match="it has lost its key"):
        net.mask(1)
    net.send_all(0, 2, 3, empty=[1])
    net.open_all(*ALL)
    assert net.has_mean(0, 2, 3)
    net.send_all(*ALL)
    net.open_all(*ALL)
    assert net.has_mean(*ALL)


def test_a_member_that_holds_another_key_than_it_has_shown_has_no_part(net: Federation) -> None:
    """As one whose data were put back from a copy."""
    net.open_all(*ALL)
    MaskKeys(net.get_file(1)).keep([make_mask_key("another")])
    net.restart(1)
    assert net.begin(1) == LOST
    with pytest.raises(MaskingRefused, match="it has lost its key"):
        net.mask(1)


def test_a_member_without_the_aggregate_before_goes_by_blocks_and_by_whether_it_holds_a_key(net: Federation) -> None:
    net.open_all(0, 1, 2)
    MaskKeys(net.get_file(1)).keep([make_mask_key("another")])
    net.restart(1)
    net.restart(2, forgets=True)
    said = [masker.begin(net.round, None) for masker in net.maskers]
    assert said == [None, None, LOST, "it has shown no key for this round in time, and does for the next"]
    with pytest.raises(MaskingRefused, match="it has lost its key"):
        net.mask(1)


def test_a_member_that_has_lost_its_key_shows_another_and_costs_the_round_alone(
    net: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    net.open_all(*ALL)
    net.send_all(*ALL)
    net.open_all(*ALL)
    net.send_all(*ALL)
    net.restart(2, forgets=True)
    assert net.owes_openings(2)  # the others need not wait for longer than it takes to say that
    lost = net.open(2)
    assert "the key of what is to be opened is lost" in caplog.text
    assert lost["seeds"].shape == (0, 32)
    newest = MaskKeys(net.get_file(2)).newest
    assert newest is not None
    assert newest.public == lost["key"].tobytes()
    net.add({i: lost if i == 2 else net.open(i) for i in ALL})
    assert net.has_mean(*ALL)  # of the round before
    assert count_spoiled(net.aggregate) == 0
    assert "has not opened its last input" in (net.begin(2) or "")
    net.send_all(0, 1, 3, empty=[2])
    net.open_all(*ALL)
    assert net.has_mean(0, 1, 3)
    net.send_all(*ALL)
    net.open_all(*ALL)
    assert net.has_mean(*ALL)


def test_where_fewer_than_a_quorum_have_a_part_nothing_is_opened_and_all_have_one_in_the_next(net: Federation) -> None:
    net.open_all(*ALL)
    for i in (0, 3):
        net.restart(i, forgets=True)
    net.send_all(1, 2, empty=[0, 3])
    assert read_summed(net.aggregate) is None
    assert [len(net.open(i)["seeds"]) for i in ALL] == [0] * 4
    net.open_all(*ALL)
    assert net.has_initial()
    net.send_all(*ALL)
    net.open_all(*ALL)
    assert net.has_mean(*ALL)


def test_an_empty_input_is_taken_of_a_member_with_and_without_a_key(net: Federation) -> None:
    net.open_all(0, 1, 2)
    net.send_all(0, 1, empty=[2, 3])
    net.open_all(*ALL)
    net.send_all(0, 1, 2, empty=[3])
    summed = read_summed(net.aggregate)
    assert summed is not None
    assert summed.members == tuple(KEYS[i].id for i in (0, 1, 2))


def test_without_a_roster_in_the_aggregate_before_nothing_is_masked(net: Federation) -> None:
    with pytest.raises(MaskingRefused, match="it has shown no key"):
        net.mask(0)
    net.open_all(*ALL)
    net.send_all(*ALL)
    with pytest.raises(MaskingRefused, match="it has shown no key"):
        net.mask(0)


def follow(net: Federation) -> None:
    """Another run of masked sums, of the same model, goes on from the aggregate in force."""
    terms = {name: value for name, value in net.chain.state.run.to_terms().items() if name != "initial_model"}
    net.change(StartRun(2, terms, None))
    assert net.round.place == Place(2, 1)


def test_a_run_that_follows_opens_nothing_of_a_sum_that_waited_and_hides_by_keys_of_its_own(net: Federation) -> None:
    """Members that were in that sum would else show seeds in the place of first keys."""
    net.open_all(*ALL)
    net.send_all(*ALL)
    early = MaskKeys(net.get_file(0)).newest
    assert early is not None
    follow(net)
    assert read_summed(net.aggregate) is not None
    assert not any(net.owes_openings(i) for i in ALL)
    assert [len(net.open(i)["seeds"]) for i in ALL] == [0] * 4
    net.open_all(*ALL)
    assert net.has_initial()
    assert MaskKeys(net.get_file(0)).find(early.public) is None
    net.send_all(*ALL)
    net.open_all(*ALL)
    assert net.has_mean(*ALL)


def test_keys_that_were_shown_in_the_run_before_hide_nothing_in_the_next(net: Federation) -> None:
    net.open_all(*ALL)
    follow(net)
    assert [net.begin(i) for i in ALL] == [None] * 4  # keys come first
    net.open_all(0, 1, 2)
    assert net.begin(3) == "it has shown no key for this round in time, and does for the next"
    roster = read_roster(net.aggregate)
    assert roster is not None
    assert roster.members == tuple(KEYS[i].id for i in (0, 1, 2))


def test_only_members_in_the_sum_owe_openings(net: Federation) -> None:
    assert [net.owes_openings(i) for i in ALL] == [False] * 4
    net.open_all(*ALL)
    assert [net.owes_openings(i) for i in ALL] == [False] * 4
    net.send_all(0, 1, 2)
    assert [net.owes_openings(i) for i in ALL] == [True, True, True, False]


def test_who_is_in_no_sum_shows_a_key_and_opens_nothing(net: Federation) -> None:
    assert net.open(0)["seeds"].shape == (0, 32)
    net.open_all(*ALL)
    net.send_all(0, 1, 2)
    late = net.open(3)
    assert late["seeds"].shape == (0, 32)
    assert late["key"].tobytes() != net.open(0)["key"].tobytes()
    assert net.open(0)["seeds"].shape == (2, 32)


def test_the_key_that_is_shown_is_durable_before_it_is_sent(net: Federation) -> None:
    for _ in range(2):
        for i in ALL:
            shown = net.open(i)["key"].tobytes()
            held = MaskKeys(net.get_file(i)).newest
            assert held is not None
            assert held.public == shown


def test_a_key_stays_until_its_openings_are_final_and_no_longer(net: Federation) -> None:
    def count() -> int:
        return len(MaskKeys(net.get_file(0)))

    net.open_all(*ALL)
    first = MaskKeys(net.get_file(0)).newest
    assert first is not None
    net.send_all(*ALL)
    assert count() == 1
    openings = {i: net.open(i) for i in ALL}
    assert count() == 2  # what it opens is not final yet
    assert net.begin(0) is None
    assert count() == 2
    net.add(openings)
    assert net.begin(0) is None
    assert count() == 1
    assert MaskKeys(net.get_file(0)).find(first.public) is None
    assert get_secret(first).hex() not in net.get_file(0).read_text()


def test_a_member_that_starts_again_opens_what_it_has_masked(net: Federation) -> None:
    net.open_all(*ALL)
    net.maskers = [net.start(i) for i in ALL]
    net.send_all(*ALL)
    net.maskers = [net.start(i) for i in ALL]
    net.open_all(*ALL)
    assert net.has_mean(*ALL)


def test_what_a_member_opens_is_the_same_if_it_is_asked_again(net: Federation) -> None:
    net.open_all(*ALL)
    net.send_all(0, 1, 2)
    first, second = net.open(0), net.open(0)
    assert (first["seeds"] == second["seeds"]).all()
    assert (net.begin(0), len(MaskKeys(net.get_file(0)))) == (None, 2)


def test_in_a_federation_of_fewer_than_four_nothing_is_masked(net: Federation) -> None:
    """The chain has no such state while a run of masked sums goes on; whatever it came to have."""
    net.open_all(*ALL)
    few = Tip.at(make_genesis(KEYS[:3], **TERMS).state, (GENESIS.block0,))
    with pytest.raises(MaskingRefused, match="the federation has 3 members, too few to hide any of them in a sum"):
        net.maskers[0].mask(few, net.round, net.aggregate, encode_arrays(make_model(0)), 1)


def test_a_sum_of_two_is_not_opened_whatever_an_aggregate_says(
    net: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    """No validator makes such a one of four members: here one of two has."""
    net.open_all(*ALL)
    roster = net.aggregate
    net.send_all(0, 1)
    given = [AuthorPayloads(c.author, 1, {"masked": net.last[c.author]}) for c in net.chain.tip.block.contributions]
    encoded = compute_aggregate(make_spec(2), 2, given, roster)
    assert encoded is not None
    net.aggregate = decode_arrays(encoded, len(encoded))
    summed = read_summed(net.aggregate)
    assert summed is not None
    assert summed.members == tuple(KEYS[i].id for i in (0, 1))
    for i in ALL:
        assert net.open(i)["seeds"].shape == (0, 32)
    assert "is lost" not in caplog.text


def test_a_run_without_masks_is_no_maskers_business(net: Federation) -> None:
    plain = make_genesis(KEYS, **TERMS)
    round_ = find_round(plain.state, 1)
    assert not is_masked(round_)
    assert not is_masked(None)
    assert not is_opening(round_)
    assert not is_opening(None)
    assert not net.maskers[0].owes_openings(round_)
    net.open_all(*ALL)
    with pytest.raises(ValueError, match="expected a run of masked sums"):
        net.maskers[0].mask(net.chain.tip, round_, net.aggregate, encode_arrays(make_model(0)), 1)
    with pytest.raises(ValueError, match="expected a run of masked sums"):
        net.maskers[0].open(round_, net.aggregate)


def test_heights_at_which_seeds_are_opened_are_told_from_those_of_inputs() -> None:
    rounds = [find_round(GENESIS.state, height) for height in (1, 2, 3, 4)]
    assert all(map(is_masked, rounds))
    assert [is_opening(round_) for round_ in rounds] == [True, False, True, False]


# ---- no secret is shown


def test_no_repr_shows_a_secret(net: Federation) -> None:
    net.open_all(*ALL)
    keys = MaskKeys(net.get_file(0))
    key = keys.newest
    assert key is not None
    masks = RoundMasks(KEYS[0].id, key, CHAIN, BEFORE, (KEYS[0].id,), (key.public,))
    shown = [key, keys, masks, net.maskers[0], replace(masks, before=CHAIN), [key], {"key": key}]
    secrets = [get_secret(key), masks.derive(KEYS[0].id)]
    for text in (form(one) for one in shown for form in (repr, str)):
        for secret in secrets:
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text
    assert repr(key) == f"MaskKey({key.public.hex()[:8]})"
    assert repr(net.maskers[0]) == f"<Masker {KEYS[0].id.hex()[:8]}: 1 keys>"


def test_what_goes_wrong_shows_no_secret(tmp_path: Path) -> None:
    path, secret = tmp_path / "masks.json", get_secret(make_mask_key("one")).hex()
    path.write_text(json.dumps({"keys": [secret, secret + "zz"]}))
    with pytest.raises(NodeError) as caught:
        MaskKeys(path)
    assert secret not in str(caught.value)


@pytest.mark.parametrize(("masked", "is_empty"), [(EMPTY_INPUT_BYTES, True), (EMPTY_INPUT_BYTES + 1, False)])
@pytest.mark.parametrize("beside", [None, 160, 1 << 20])
def test_an_input_is_empty_by_what_is_behind_masks_whatever_is_beside_it(
    masked: int, is_empty: bool, beside: int | None
) -> None:
    """Prototypes of nobody have some bytes, too."""
    refs = [PayloadRef(payload.KINDS["masked"], make_digest("masked"), masked)]
    if beside is not None:
        refs.insert(0, PayloadRef(payload.KINDS["prototypes"], make_digest("beside"), beside))
    assert Masking.is_empty(make_contribution(GENESIS, KEYS[0], payloads=refs)) is is_empty
