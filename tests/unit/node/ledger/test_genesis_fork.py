"""A genesis that goes on from a chain whose quorum is lost: what it holds, and when there is none."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chain.errors import GenesisError
from chain.genesis import Genesis
from chain.signing import SigningKey, encode_id
from chain.store.interface import SEEN
from chain.store.sqlite import SqliteStore
from ml.payload import decode_arrays, encode_arrays
from node.cli import main
from node.config.genesis_file import INITIAL_MODEL, load_genesis
from node.config.identity import open_identity
from node.config.node_config import load_config
from node.errors import ConfigError, NodeError, NotFound
from node.ledger.genesis_fork import HOUR_MS, fork_chain, restart_run
from node.testnet.layout import TestnetSpec, make_testnet
from support.data.changes import LivingChain, extend_with, make_round
from support.federation.runs import start_run

SPEC = TestnetSpec(num_nodes=4, method="fedavg", rounds=9, difficulty=1, settings=("model.hidden=[8]",))


class Old:
    """The stopped member of a chain of four that ends at height 3, two days ago; two of them go on."""

    def __init__(self, path: Path, spec: TestnetSpec = SPEC) -> None:
        self.path = path
        net = make_testnet(path / "net", spec)
        keys: list[SigningKey] = [open_identity(load_config(node.config_file)) for node in net.nodes]
        self.chain = LivingChain(net.genesis, keys)
        self.data_dir, self.members, self.out = path / "data", path / "members.txt", path / "new" / "genesis.yaml"
        self.out.parent.mkdir()
        self.initial = (net.directory / INITIAL_MODEL).read_bytes()
        model = {name: array + np.float32(1) for name, array in decode_arrays(self.initial, len(self.initial)).items()}
        self.model = encode_arrays(model)
        with SqliteStore.open(self.data_dir, net.genesis) as store:
            store.put_blob(self.initial)
            store.put_blob(self.model)
        self.grow(3, self.model)
        self.now_ms = self.chain.tip.header.time_ms + 48 * HOUR_MS
        first, second = net.genesis.founders[:2]
        text = f"# who goes on\n{encode_id(first.key)}@a.example:7050\n\nnew={encode_id(second.key)}  # moved\n"
        self.members.write_text(text)
        self.keys = (first, second)

    def grow(self, rounds: int, aggregate: bytes) -> None:
        """By rounds that give this aggregate, which the node holds."""
        with SqliteStore.open(self.data_dir, self.chain.genesis) as store:
            store.put_blob(aggregate)
            for _ in range(rounds):
                body, digest = make_round(self.chain.tip, self.chain.keys), hashlib.sha256(aggregate).digest()
                self.chain.add(extend_with(self.chain.tip, body, self.chain.keys[0], aggregate=digest))
                store.append(*self.chain.blocks[-1])

    def go_on(self) -> None:
        """The next run, from the aggregate in force."""
        self.chain.add_change(start_run(self.chain.state.run))
        with SqliteStore.open(self.data_dir, self.chain.genesis) as store:
            store.append(*self.chain.blocks[-1])

    def see(self, count: int, ago_ms: int = 0, noted_ago_ms: int = 0) -> None:
        """So many others were last heard of so long ago."""
        others = self.chain.state.members[1 : 1 + count]
        seen = {member.key.hex(): self.now_ms - ago_ms for member in others}
        with SqliteStore.open(self.data_dir, self.chain.genesis) as store:
            store.put_meta(SEEN, {"at": self.now_ms - noted_ago_ms, "members": seen})

    def fork(self, *, is_lost: bool = False) -> Genesis:
        made = fork_chain(self.data_dir, self.members, self.out, now_ms=self.now_ms, is_lost=is_lost)
        assert made.continues
        return made.genesis


@pytest.fixture
def old(tmp_path: Path) -> Old:
    return Old(tmp_path)


def test_statistics_that_a_run_has_inherited_are_agreed_on_anew(old: Old) -> None:
    run = old.chain.genesis.run
    agreed = {"shape": [1, 8, 8], "resize": None, "normalize": "agreed", "min_count": 7}
    second = replace(run, number=2, first_height=9, input={**agreed, "normalize": "inherited"})
    assert restart_run(second) == replace(run, input=agreed)
    assert restart_run(replace(run, number=2)) == run


def test_it_names_the_old_chain_and_begins_with_its_run_and_its_model(old: Old) -> None:
    old.see(1)
    made = old.fork()
    point = made.forked_from
    assert point is not None
    assert (point.chain_id, point.height, point.head) == (old.chain.genesis.chain_id, 3, old.chain.tip.id)
    read, model = load_genesis(old.out)
    assert read == made
    assert model.read_bytes() == old.model
    assert {founder.name for founder in read.founders} == {old.keys[0].name, "new"}
    run, before = read.run.to_terms(), old.chain.state.run.to_terms()
    assert {**run, "initial_model": None} == {**before, "initial_model": None}
    assert read.rules == old.chain.state.rules
    assert read.chain_id != replace(read, forked_from=None).chain_id


@pytest.mark.parametrize("ago_ms", [0, HOUR_MS - 1])
def test_it_is_refused_while_a_quorum_was_there_within_the_hour(old: Old, ago_ms: int) -> None:
    old.see(2, ago_ms=ago_ms)
    for is_lost in (False, True):
        with pytest.raises(NodeError, match="3 of 4 members were there within the last hour, which is a quorum of 3"):
            old.fork(is_lost=is_lost)
    assert not old.out.exists()


def test_members_last_heard_of_an_hour_ago_count_no_more(old: Old) -> None:
    old.see(3, ago_ms=HOUR_MS)
    old.fork()


def test_it_is_refused_where_the_head_is_young(old: Old) -> None:
    old.now_ms = old.chain.tip.header.time_ms + HOUR_MS - 1
    old.see(0)
    with pytest.raises(NodeError, match="a quorum made block 3 within the last hour"):
        old.fork(is_lost=True)


def test_where_nothing_is_known_the_operator_has_to_say_it(old: Old) -> None:
    for noted_ago_ms in (None, HOUR_MS):
        if noted_ago_ms is not None:
            old.see(3, ago_ms=2 * HOUR_MS, noted_ago_ms=noted_ago_ms)
        with pytest.raises(NodeError, match="--i-know-the-quorum-is-lost"):
            old.fork()
    old.fork(is_lost=True)


def test_where_the_head_holds_no_model_it_begins_with_that_of_the_run(old: Old) -> None:
    with SqliteStore.open(old.data_dir, old.chain.genesis) as store:
        store.delete_blob(hashlib.sha256(old.model).digest())
    made = fork_chain(old.data_dir, old.members, old.out, now_ms=old.now_ms, is_lost=True)
    assert not made.continues
    assert (old.out.parent / INITIAL_MODEL).read_bytes() == old.initial


def test_of_a_run_that_goes_on_from_prototypes_it_begins_with_the_model_of_the_first(tmp_path: Path) -> None:
    """Neither the head nor what its run began from holds one."""
    old = Old(tmp_path, replace(SPEC, method="dfpl"))
    for _ in range(2):
        old.grow(1, encode_arrays({"prototypes/classes": np.array([1]), "prototypes/prototypes": np.ones((1, 8))}))
        old.go_on()
    made = fork_chain(old.data_dir, old.members, old.out, now_ms=old.now_ms, is_lost=True)
    assert not made.continues
    assert made.genesis.run.number == 1
    assert (old.out.parent / INITIAL_MODEL).read_bytes() == old.initial


def test_what_the_aggregate_does_not_share_comes_from_what_the_run_began_with(tmp_path: Path) -> None:
    """As where adapters alone travel."""
    old = Old(tmp_path, replace(SPEC, settings=(*SPEC.settings, "model.frozen=[fc1.*]")))
    model = decode_arrays(old.model, len(old.model))
    shared = {name: array for name, array in model.items() if not name.startswith("model/fc1")}
    assert 0 < len(shared) < len(model)
    old.grow(1, encode_arrays(shared))
    old.fork(is_lost=True)
    written = (old.out.parent / INITIAL_MODEL).read_bytes()
    initial = decode_arrays(old.initial, len(old.initial))
    got = decode_arrays(written, len(written))
    assert got.keys() == initial.keys()
    assert all(np.array_equal(array, shared.get(name, initial[name])) for name, array in got.items())


def test_mistakes_are_told_and_nothing_is_written(old: Old) -> None:
    old.members.write_text("nobody\n")
    with pytest.raises(ConfigError, match=r"members.txt:1: member 'nobody': expected \[NAME=\]ID"):
        old.fork(is_lost=True)
    old.members.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="expected a line for each member"):
        old.fork(is_lost=True)
    with pytest.raises(NotFound, match="no node has run there"):
        fork_chain(old.path / "nope", old.members, old.out, now_ms=old.now_ms, is_lost=True)
    assert not old.out.exists()
    old.out.write_text("precious")
    with pytest.raises(ConfigError, match="nothing is written over"):
        old.fork(is_lost=True)
    assert old.out.read_text() == "precious"


@pytest.mark.parametrize(
    ("field", "value"),
    [("chain_id", "00"), ("height", 0), ("head", "x" * 64), ("certificate", ""), ("certificate", "0"), ("more", 1)],
)
def test_a_fork_point_that_is_none_is_refused(old: Old, field: str, value: object) -> None:
    mapping = old.fork(is_lost=True).to_mapping()
    mapping["forked_from"] |= {field: value}
    with pytest.raises(GenesisError, match="forked_from"):
        Genesis.from_mapping(mapping)


def test_the_command_prints_the_hash_to_compare(
    old: Old, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: old.now_ms * 1_000_000)
    arguments = ["genesis", "fork", "--data-dir", old.data_dir, "--members", old.members, "-o", old.out]
    assert main([str(argument) for argument in arguments]) == 1
    assert "--i-know-the-quorum-is-lost" in capsys.readouterr().err
    assert main([str(argument) for argument in (*arguments, "--i-know-the-quorum-is-lost")]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"compare with all who go on: {load_genesis(old.out).genesis.chain_id.hex()}\n")
