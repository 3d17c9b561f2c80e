"""The chain above the store: what may follow the head, the audit that trusts genesis alone, and the exported form."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain.audit import VerifyReport, export_blocks, read_export, verify_chain, write_export
from chain.block import ZERO, Block, Body, Certificate, Digest, PayloadRef
from chain.codec import MAX_BLOCK_BYTES, encode_block, encode_certificate, make_block
from chain.errors import (
    ChainError,
    DecodeError,
    StoreCorrupted,
    ValidationError,
)
from chain.genesis import Genesis
from chain.pow import is_valid_work
from chain.state import State
from chain.store.interface import BlockRow, Damage
from chain.store.sqlite import SqliteStore
from chain.tip import NUM_HEADERS
from support.data.chains import (
    make_candidate,
    make_certificate,
    make_chain,
    make_contribution,
    make_digest,
    make_genesis,
    make_keys,
    mine,
)

KEYS = make_keys(4)
POW = {"difficulty": 4, "min": 1, "max": 2**32, "target_ms": 200}  # mining takes 100
GENESIS = make_genesis(KEYS, rounds=0, pow=POW)
LENGTH = 36  # two retargets, each to twice the difficulty
CHAIN = make_chain(GENESIS, KEYS, LENGTH)
BLOCKS = [GENESIS.block0, *(block for block, _ in CHAIN)]


class ListSource:
    """A store whose owner wrote what he liked, digests and all: only the chain's own rules stand against him."""

    def __init__(
        self,
        rows: Sequence[tuple[bytes, bytes]],
        blobs: dict[Digest, bool] | None = None,
        state: State = GENESIS.state,
    ) -> None:
        self._rows = rows
        self._blobs = blobs or {}
        self._state = state
        self.reads = 0
        self.states_read: list[int] = []

    @classmethod
    def of(
        cls,
        chain: Sequence[tuple[Block, Certificate]],
        blobs: dict[Digest, bool] | None = None,
        state: State = GENESIS.state,
    ) -> ListSource:
        rows = [(encode_block(GENESIS.block0), b"")]
        return cls(rows + [(encode_block(b), encode_certificate(c)) for b, c in chain], blobs, state)

    def changed(self, height: int, *, block: bytes | None = None, certificate: bytes | None = None) -> ListSource:
        rows = list(self._rows)
        old_block, old_certificate = rows[height]
        rows[height] = (
            old_block if block is None else block,
            old_certificate if certificate is None else certificate,
        )
        return ListSource(rows, self._blobs, self._state)

    @property
    def head_height(self) -> int:
        return len(self._rows) - 1

    def read_rows(self, first: int, last: int) -> Iterator[BlockRow]:
        for height in range(first, min(last, self.head_height) + 1):
            self.reads += 1
            yield BlockRow(height, *self._rows[height])

    def get_state(self, height: int) -> State:
        self.states_read.append(height)
        return self._state

    def find_damage(self) -> Iterator[Damage]:
        return iter(())

    def has_blob(self, digest: Digest) -> bool:
        return digest in self._blobs

    def check_blob(self, digest: Digest) -> None:
        if not self._blobs[digest]:
            raise StoreCorrupted.differs(f"blob {digest.hex()}", digest, ZERO)


SOURCE = ListSource.of(CHAIN)


def fault_of(report: VerifyReport) -> str:
    assert not report.ok
    assert report.fault is not None
    return str(report.fault)


# The audit


def test_a_sound_chain_is_verified_in_one_read() -> None:
    source = ListSource.of(CHAIN)
    report = verify_chain(GENESIS, source)
    assert report.ok
    assert report.fault is None
    assert (report.first, report.last, report.blocks, report.head) == (0, LENGTH, LENGTH + 1, BLOCKS[-1].id)
    assert report.signatures == LENGTH * (1 + 4 + GENESIS.state.q)
    assert (report.recomputed, report.not_held) == (0, [])
    assert source.reads == LENGTH + 1
    assert source.states_read == [0, LENGTH]  # they change nowhere in between


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 1), (1, 20), (16, 17), (17, 17), (30, 33), (36, 36)])
def test_any_range_can_be_verified(first: int, last: int) -> None:
    report = verify_chain(GENESIS, SOURCE, first=first, last=last)
    assert report.ok
    assert (report.blocks, report.head) == (last - first + 1, BLOCKS[last].id)


def test_a_range_beyond_the_head_is_a_fault() -> None:
    report = verify_chain(GENESIS, SOURCE, first=30, last=40)
    assert fault_of(report) == "block 37: missing from the store"
    assert (report.blocks, report.head) == (7, BLOCKS[36].id)


def test_every_flipped_bit_of_a_block_or_certificate_is_found_at_its_height() -> None:
    height = 3
    block, certificate = encode_block(BLOCKS[height]), encode_certificate(CHAIN[height - 1][1])
    for name, data in (("block", block), ("certificate", certificate)):
        for bit in range(0, len(data) * 8, 5):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            source = SOURCE.changed(height, **{name: bytes(flipped)})
            report = verify_chain(GENESIS, source, first=height, last=height)
            assert report.fault is not None, (name, bit)
            assert report.fault.height == height


def test_the_first_fault_ends_the_audit() -> None:
    source = SOURCE.changed(5, block=b"\0").changed(2, certificate=b"\0")
    report = verify_chain(GENESIS, source)
    assert fault_of(report).startswith("block 2: certificate: expected at least")
    assert (report.blocks, report.head) == (2, BLOCKS[1].id)


def test_the_chain_of_another_genesis_is_refused() -> None:
    for other in (
        make_genesis(KEYS, rounds=0, pow=POW, initial_model=make_digest("other").hex()),
        make_genesis(KEYS, rounds=0, pow=POW, chain_name="other"),  # of the same model, rules and members
    ):
        report = verify_chain(other, SOURCE)
        assert report.fault is not None
        assert (report.fault.height, report.fault.expected) == (0, other.block0.id.hex())


def test_block_zero_has_no_certificate() -> None:
    assert fault_of(verify_chain(GENESIS, SOURCE.changed(0, certificate=b"x"))) == (
        "block 0: certificate: expected none, got 1 bytes"
    )


def forge(genesis: Genesis, at: int, forged: Block, certificate: Certificate | None = None) -> ListSource:
    certificate = certificate or make_certificate(genesis, forged, KEYS)
    return SOURCE.changed(at, block=encode_block(forged), certificate=encode_certificate(certificate))


def remake(block: Block, **changes: Any) -> Block:
    """The block with another header, its work and signature good again."""
    return mine(GENESIS, replace(block.header, **changes), block.contributions, KEYS[block.height % len(KEYS)])


def test_each_rule_is_named_even_where_a_quorum_signed() -> None:
    """Blocks of height 4 that q members certified and whose rows are whole: the audit still tells which rule broke."""
    parent, height = BLOCKS[3], 4
    good = BLOCKS[height]
    outsiders = make_keys(4, "stranger")
    stranger = make_contribution(GENESIS, outsiders[0], height=height, prev=parent.id)
    others = list(good.contributions[:3])
    unsigned = replace(good.contributions[0], signature=bytes(64))
    tries = (make_block(GENESIS.chain_id, good.header, nonce, good.body, KEYS[0]) for nonce in range(1000))
    weak = next(block for block in tries if not is_valid_work(block.id, good.header.difficulty))
    cases = {
        "block prev": make_candidate(GENESIS, make_candidate(GENESIS, BLOCKS[2], KEYS, miner=2), KEYS),
        "block height": BLOCKS[5],
        "block difficulty": make_candidate(GENESIS, parent, KEYS, difficulty=2),
        "block id": weak,
        "block time_ms": make_candidate(GENESIS, parent, KEYS, time_ms=parent.header.time_ms),
        "number of contributions": make_candidate(GENESIS, parent, KEYS, authors=[0, 1]),
        "contribution author": make_candidate(GENESIS, parent, KEYS, contributions=[*others, stranger]),
        "contribution height": make_candidate(GENESIS, parent, KEYS, contributions=BLOCKS[5].contributions),
        "signature": make_candidate(GENESIS, parent, KEYS, contributions=[unsigned, *good.contributions[1:]]),
        "digest of the body": Block(good.header, good.nonce, Body(good.contributions[:3]), good.signature, good.id),
        "header version": remake(good, version=1),
        "block state_next": remake(good, state_next=make_genesis(KEYS, rounds=7).state.digest),
        "miner": make_candidate(GENESIS, parent, outsiders, contributions=good.contributions),
    }
    for rule, block in cases.items():
        report = verify_chain(GENESIS, forge(GENESIS, height, block))
        assert fault_of(report).startswith(f"block {height}: "), rule
        assert rule in fault_of(report), rule
    too_few = Certificate(0, CHAIN[height - 1][1].signatures[:2])
    report = verify_chain(GENESIS, forge(GENESIS, height, good, too_few))
    assert "certificate signatures of 4 members: expected at least 3, got 2" in fault_of(report)


def test_a_stored_state_is_taken_only_if_the_block_it_follows_commits_to_it() -> None:
    """A walk from the middle begins with a stored state: not with whatever the store's owner has put there."""
    height = NUM_HEADERS + 1
    chain = make_chain(GENESIS, KEYS, height)
    source = ListSource.of(chain)
    assert verify_chain(GENESIS, source, first=height - 1, last=height).ok
    assert source.states_read == [height]  # so far down it begins with genesis' own
    assert verify_chain(GENESIS, source, first=height, last=height).ok
    assert source.states_read[1:] == [1, height]
    fewer = replace(GENESIS.state, members=GENESIS.state.members[:3])
    forged = ListSource.of(chain, state=fewer)
    report = verify_chain(GENESIS, forged, first=height, last=height)
    assert report.fault is not None
    assert (report.fault.height, report.fault.what) == (1, "block 1: stored state")
    assert (report.fault.expected, report.fault.got) == (GENESIS.state.digest.hex(), fewer.digest.hex())
    assert fault_of(verify_chain(GENESIS, forged)).startswith("block 0: stored state: expected")


def test_a_wrong_difficulty_after_a_retarget_is_found() -> None:
    parent = BLOCKS[16]
    retargeted = BLOCKS[17].header.difficulty
    forged = make_candidate(GENESIS, parent, KEYS, difficulty=retargeted + 1)
    for first in (0, 17):
        report = verify_chain(GENESIS, forge(GENESIS, 17, forged), first=first, last=17)
        assert report.fault is not None
        assert report.fault.what == "block 17: block difficulty"
        assert (report.fault.expected, report.fault.got) == (str(retargeted), str(retargeted + 1))


# The audit with blobs


def test_aggregates_are_recomputed_where_their_blobs_are_held() -> None:
    def recompute(block: Block, state: State) -> Digest | None:
        return None if block.height % 2 else block.header.aggregate

    report = verify_chain(GENESIS, SOURCE, last=5, recompute=recompute)
    assert report.ok
    assert (report.recomputed, report.not_held) == (2, [1, 3, 5])


def test_a_wrong_aggregate_is_named_with_both_digests() -> None:
    wrong = make_digest("wrong")
    report = verify_chain(GENESIS, SOURCE, recompute=lambda b, _: wrong if b.height == 7 else b.header.aggregate)
    assert report.fault is not None
    assert report.fault.height == 7
    assert "aggregate" in report.fault.what
    assert {report.fault.expected, report.fault.got} == {wrong.hex(), BLOCKS[7].header.aggregate.hex()}


@pytest.mark.parametrize("error", [StoreCorrupted("blob abc: changed"), ValueError("weights are not finite")])
def test_blobs_that_cannot_be_used_are_a_fault(error: Exception) -> None:
    def recompute(block: Block, state: State) -> Digest | None:
        if block.height == 2:
            raise error
        return None

    report = verify_chain(GENESIS, SOURCE, recompute=recompute)
    assert report.fault is not None
    assert report.fault.height == 2
    assert str(error) in fault_of(report)


@pytest.mark.parametrize("height", [0, 4])
def test_every_held_blob_is_hashed(height: int) -> None:
    """The initial model and aggregates too, though recomputing does not read them."""
    damaged = {BLOCKS[height].header.aggregate: False}
    report = verify_chain(GENESIS, ListSource.of(CHAIN, damaged), recompute=lambda block, _: block.header.aggregate)
    assert report.fault is not None
    assert report.fault.height == height
    assert BLOCKS[height].header.aggregate.hex() in fault_of(report)


def test_a_flipped_blob_in_a_data_directory_is_named(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        payload = store.put_blob(b"payload of node0")
        offers = [
            make_contribution(GENESIS, key, payloads=[PayloadRef(1, payload if key is KEYS[0] else key.id, 16)])
            for key in KEYS
        ]
        block = make_candidate(GENESIS, GENESIS.block0, KEYS, contributions=offers)
        store.append(block, make_certificate(GENESIS, block, KEYS))
        path = store.blob_path(payload)
    path.write_bytes(b"payload of node1")
    with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
        assert verify_chain(GENESIS, store).ok
        report = verify_chain(GENESIS, store, recompute=lambda block, state: None)
    assert report.fault is not None
    assert report.fault.height == 1
    assert str(path) in report.fault.what
    assert report.fault.expected == payload.hex()


# The exported form


def export_of(first: int, last: int) -> bytes:
    stream = io.BytesIO()
    assert write_export(stream, GENESIS.chain_id, export_blocks(SOURCE, first, last)) == last - first + 1
    return stream.getvalue()


def test_an_export_is_read_back() -> None:
    data = export_of(0, LENGTH)
    heights = list(read_export(io.BytesIO(data), GENESIS.chain_id))
    assert heights == [(row.height, row.block, row.certificate) for row in SOURCE.read_rows(0, LENGTH)]
    assert [height for height, _, _ in read_export(io.BytesIO(export_of(5, 9)), GENESIS.chain_id)] == [5, 6, 7, 8, 9]
    stream = io.BytesIO()
    assert write_export(stream, GENESIS.chain_id, []) == 0
    assert list(read_export(io.BytesIO(stream.getvalue()), GENESIS.chain_id)) == []


def test_an_export_of_another_chain_is_refused() -> None:
    with pytest.raises(ValidationError, match="chain id of the export"):
        list(read_export(io.BytesIO(export_of(0, 1)), ZERO))


def test_an_export_that_was_cut_or_changed_anywhere_is_refused() -> None:
    data = export_of(0, 2)
    for cut in range(0, len(data), 7):
        with pytest.raises(DecodeError, match="more bytes"):
            list(read_export(io.BytesIO(data[:cut]), GENESIS.chain_id))
    for at in range(0, len(data), 5):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(ChainError, match=r"export"):
            list(read_export(io.BytesIO(changed), GENESIS.chain_id))
    with pytest.raises(DecodeError, match="expected the end"):
        list(read_export(io.BytesIO(data + b"\0"), GENESIS.chain_id))


def test_no_frame_larger_than_a_block_is_read() -> None:
    head = export_of(0, 0)[:50]
    with pytest.raises(DecodeError, match=f"block 0: expected at most {MAX_BLOCK_BYTES} bytes, got 4294967295"):
        list(read_export(io.BytesIO(head + b"\xff" * 1000), GENESIS.chain_id))


def test_only_whole_consecutive_heights_are_exported() -> None:
    with pytest.raises(StoreCorrupted, match="block 37: missing"):
        list(export_blocks(SOURCE, 35, 37))
    with pytest.raises(ValueError, match="expected height 2, got 3"):
        write_export(io.BytesIO(), GENESIS.chain_id, [(1, b"a", b"b"), (3, b"a", b"b")])


def test_a_damaged_row_is_not_exported(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        for block, certificate in CHAIN[:3]:
            store.append(block, certificate)
        store.rows.connection.execute("UPDATE blocks SET certificate = x'00' WHERE height = 2")
        with pytest.raises(StoreCorrupted, match="block 2: certificate: stored bytes"):
            list(export_blocks(store, 0, 3))
