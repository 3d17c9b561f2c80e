"""The join file and the way to its checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chain.block import SealedHeader
from chain.changes.rules import SetRules
from chain.checkpoint import LEG_HEIGHTS, Checkpoint, get_marked
from chain.errors import InvalidJoinFile, OffTheWay
from chain.join_file import MAX_JOIN_FILE_BYTES, JoinFile
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import LivingChain

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)


def make_file() -> JoinFile:
    """Of a chain with one change in it."""
    chain = LivingChain(GENESIS, KEYS)
    chain.add_rounds(1)
    chain.add_change(SetRules({"keep_heights": (2, 3)}))
    block = chain.tip.block
    header = SealedHeader(block.header, block.nonce, block.signature, block.id)
    return JoinFile(GENESIS, header, (), chain.state, {KEYS[0].id: "fed.a.example:7050"})


FILE = make_file()


def change(**fields: Any) -> bytes:
    return json.dumps(json.loads(FILE.encode()) | fields).encode()


def test_a_file_is_read_as_it_was_written() -> None:
    read = JoinFile.decode(FILE.encode())
    assert read.canonical == FILE.canonical
    assert read.genesis == GENESIS
    assert read.checkpoint == Checkpoint(2, FILE.header.id)
    assert read.state.rules.keep_heights == 3
    assert read.addresses == {KEYS[0].id: "fed.a.example:7050"}


def test_its_hash_is_over_all_of_it_and_not_over_its_spelling() -> None:
    assert JoinFile.decode(json.dumps(json.loads(FILE.encode())).encode()).digest == FILE.digest
    assert JoinFile.decode(change(addresses={})).digest != FILE.digest
    groups = FILE.describe_digest().split()
    assert len(groups) == 16
    assert "".join(groups) == FILE.digest.hex()


def test_that_of_founders_begins_at_block_0() -> None:
    founders = JoinFile.decode(JoinFile.at_genesis(GENESIS).encode())
    assert founders.checkpoint == Checkpoint(0, GENESIS.block0.id)
    assert founders.state == GENESIS.state


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[" * 10_000, "expected JSON"),
        (b'{"fednode_join": 1, "fednode_join": 1}', "each key once"),
        (b" " * (MAX_JOIN_FILE_BYTES + 1), "at most"),
        (b"{}", "fednode_join: is missing"),
        (change(fednode_join=2), "fednode_join: expected 1, got 2"),
        (change(extra=1), "unknown key"),
        (change(genesis=None), "expected a mapping"),
        (change(header="00"), "sealed header"),
        (change(header="zz"), "expected hex"),
        (change(marks=["00" * 32]), "number of marks"),
        (change(marks="00"), "expected a list"),
        (change(state={}), "is missing"),
        (change(state=float("nan")), "expected JSON"),
        (change(state=json.loads(GENESIS.state.canonical)), "state after the checkpoint"),
        (change(addresses={"x": "a:1"}), "node id"),
        (change(addresses=[]), "expected a mapping"),
    ],
)
def test_what_is_no_join_file_is_refused_with_a_sentence(data: bytes, why: str) -> None:
    with pytest.raises(InvalidJoinFile, match=why):
        JoinFile.decode(data)


def test_a_header_of_another_chain_does_not_carry_its_state() -> None:
    other = make_genesis(KEYS, chain_name="another")
    with pytest.raises(InvalidJoinFile):
        JoinFile.decode(change(genesis=other.to_mapping()))


def test_a_block_0_of_its_own_is_refused() -> None:
    other = JoinFile.at_genesis(make_genesis(KEYS, created_at="2026-11-20T14:00:01Z"))
    founders = json.loads(JoinFile.at_genesis(GENESIS).encode())
    with pytest.raises(InvalidJoinFile, match="block 0"):
        JoinFile.decode(json.dumps(founders | {"header": json.loads(other.encode())["header"]}).encode())


def test_the_way_has_a_mark_for_each_leg() -> None:
    first, second, end = make_digest("1"), make_digest("2"), make_digest("end")
    way = Checkpoint(2 * LEG_HEIGHTS + 5, end, (first, second))
    assert list(get_marked(way.height)) == [128, 256]
    assert [way.get_next(height) for height in (0, 127, 128, 256, 260, 261, 300)] == [
        128,
        128,
        256,
        261,
        261,
        None,
        None,
    ]
    assert [way.get_last(height) for height in (0, 127, 128, 260, 261, 300)] == [0, 0, 128, 256, 261, 261]
    way.validate(7, make_digest("anything"))
    way.validate(128, first)
    way.validate(256, second)
    way.validate(261, end)
    way.validate(384, make_digest("beyond it"))
    for height in (128, 256, 261):
        with pytest.raises(OffTheWay, match="on the way to the checkpoint"):
            way.validate(height, make_digest("another history"))


@pytest.mark.parametrize(("height", "count"), [(0, 0), (1, 0), (128, 0), (129, 1), (256, 1), (257, 2)])
def test_no_mark_lies_where_the_checkpoint_does(height: int, count: int) -> None:
    assert len(get_marked(height)) == count
