"""The store keeps what it acknowledged, refuses to contradict itself, and names what was damaged."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chain.approvals import encode_approval, sign_approval
from chain.audit import verify_chain
from chain.block import ZERO, Answer, Block, Certificate, PayloadRef, Phase, Vote
from chain.codec import encode_block, encode_certificate, encode_contribution, encode_vote, sign_vote
from chain.errors import (
    BlobMissing,
    SlotTaken,
    StoreCorrupted,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreMismatch,
    UnknownParent,
    ValidationError,
    WrongHeight,
)
from chain.evidence import make_evidence
from chain.genesis import Genesis
from chain.store import consent_rows
from chain.store.interface import StoredBlock
from chain.store.sqlite import SqliteStore
from support.data.chains import (
    make_candidate,
    make_certificate,
    make_chain,
    make_contribution,
    make_digest,
    make_genesis,
    make_keys,
)

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS, rounds=0)
ME = KEYS[0]
CHAIN = make_chain(GENESIS, KEYS, 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        yield store


def fill(store: SqliteStore, count: int) -> None:
    for block, certificate in CHAIN[:count]:
        store.append(block, certificate)


def vote_for(block_id: bytes, *, phase: Phase = Phase.PREVOTE, view: int = 0, voter: int = 0, height: int = 1) -> Vote:
    return sign_vote(KEYS[voter], GENESIS.chain_id, phase=phase, height=height, view=view, block_id=block_id)


def prevotes(block: Block, view: int = 0) -> list[Vote]:
    return [vote_for(block.id, view=view, voter=i, height=block.height) for i in range(GENESIS.state.q)]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x01
    path.write_bytes(data)


def flip_in(path: Path, stored: bytes, at: int = 20) -> None:
    """Flip one bit of some stored bytes, wherever in the file they are."""
    offset = path.read_bytes().find(stored)
    assert offset >= 0
    flip(path, offset + at)


# Blocks


def test_a_new_directory_holds_block_zero(store: SqliteStore) -> None:
    assert store.head() == StoredBlock(GENESIS.block0, None)
    assert store.get_block_bytes(0) == (encode_block(GENESIS.block0), b"")
    assert store.get_block(1) is None
    assert store.get_block(-1) is None
    assert store.get_block(2**63) is None  # a peer may ask for any height


def test_what_was_appended_is_read_back_after_reopening(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        fill(store, 20)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.head() == StoredBlock(*CHAIN[-1])
        assert [s.block.height for s in store.blocks(3, 99)] == list(range(3, 21))
        assert store.find_block(CHAIN[6][0].id) == StoredBlock(*CHAIN[6])
        assert store.find_block(ZERO) is None
        assert store.get_block_bytes(7) == (encode_block(CHAIN[6][0]), encode_certificate(CHAIN[6][1]))


def test_several_blocks_are_appended_as_one(tmp_path: Path) -> None:
    steps: list[str] = []
    with SqliteStore.open(tmp_path, GENESIS, faults=steps.append) as store:
        store.append(*CHAIN[0])
        steps.clear()
        store.append_all(CHAIN[1:20])
        assert steps == ["append.begin", "append.written", "append.committed"]
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert verify_chain(GENESIS, store).last == 20


def test_of_several_blocks_that_do_not_follow_each_other_none_is_appended(store: SqliteStore) -> None:
    fill(store, 3)
    with pytest.raises(WrongHeight):
        store.append_all([CHAIN[3], CHAIN[5]])
    with pytest.raises(WrongHeight):
        store.append_all([CHAIN[2], CHAIN[3]])
    assert store.head() == StoredBlock(*CHAIN[2])
    assert store.get_block(4) is None


def test_long_ranges_are_read_across_batches(tmp_path: Path) -> None:
    keys = make_keys(1, "alone")
    genesis = make_genesis(keys, rounds=0, pow={"difficulty": 1, "min": 1, "max": 1, "target_ms": 100})
    with SqliteStore.open(tmp_path, genesis) as store:
        for block, certificate in make_chain(genesis, keys, 200):
            store.append(block, certificate)
        assert [row.height for row in store.read_rows(0, 10_000)] == list(range(201))


def test_heights_are_contiguous_and_linked(store: SqliteStore) -> None:
    fill(store, 2)
    with pytest.raises(WrongHeight, match="expected 3, got 5"):
        store.append(*CHAIN[4])
    with pytest.raises(WrongHeight, match="expected 3, got 2"):
        store.append(*CHAIN[1])
    stranger = make_candidate(GENESIS, make_candidate(GENESIS, CHAIN[0][0], KEYS, miner=3), KEYS)
    with pytest.raises(UnknownParent, match=CHAIN[1][0].id.hex()):
        store.append(stranger, make_certificate(GENESIS, stranger, KEYS))
    assert store.head() == StoredBlock(*CHAIN[1])


def test_a_block_and_its_round_are_one_transaction(store: SqliteStore) -> None:
    block, certificate = CHAIN[0]
    with pytest.raises(TypeError):  # a record that is not JSON
        store.append(block, certificate, round_record={"loss": object()})
    assert store.head_height == 0
    assert store.get_block(1) is None
    store.append(block, certificate, round_record={"loss": 0.5})
    assert store.get_round(1) == {"loss": 0.5}


# What this node signed


def test_signed_rows_come_back_as_they_were_put(tmp_path: Path) -> None:
    block = CHAIN[0][0]
    contribution = make_contribution(GENESIS, ME)
    votes = (vote_for(block.id), vote_for(ZERO, phase=Phase.PRECOMMIT), vote_for(ZERO, view=1))
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.get_contribution(1) is None
        assert store.get_candidate(1) is None
        assert store.put_contribution(contribution) == encode_contribution(contribution)
        assert store.put_candidate(block) == encode_block(block)
        for vote in reversed(votes):
            assert store.put_vote(vote) == encode_vote(vote)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.get_contribution(1) == contribution
        assert store.get_candidate(1) == block
        assert store.get_votes(1) == votes
        assert store.get_votes(2) == ()
        assert store.put_contribution(contribution) == encode_contribution(contribution)  # again is harmless


def test_a_slot_is_signed_once(store: SqliteStore) -> None:
    block = CHAIN[0][0]
    contribution, other = make_contribution(GENESIS, ME), make_contribution(GENESIS, ME, weight=2)
    store.put_contribution(contribution)
    with pytest.raises(SlotTaken, match="own contribution of height 1") as taken:
        store.put_contribution(other)
    assert taken.value.stored == encode_contribution(contribution)
    store.put_candidate(block)
    with pytest.raises(SlotTaken):
        store.put_candidate(make_candidate(GENESIS, GENESIS.block0, KEYS, authors=[0, 1, 2]))
    store.put_vote(vote_for(block.id))
    with pytest.raises(SlotTaken, match="height 1, view 0, phase 1"):
        store.put_vote(vote_for(ZERO))
    assert store.get_votes(1) == (vote_for(block.id),)
    assert store.get_contribution(1) == contribution


def test_signed_rows_outlive_their_height(store: SqliteStore) -> None:
    store.put_vote(vote_for(ZERO))
    fill(store, 3)
    with pytest.raises(SlotTaken):
        store.put_vote(vote_for(CHAIN[0][0].id))


def test_a_precommit_needs_its_block_and_prevotes_on_disk(tmp_path: Path) -> None:
    block = CHAIN[0][0]
    precommit = vote_for(block.id, phase=Phase.PRECOMMIT, view=2)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        with pytest.raises(ValueError, match="expected its block and prevotes"):
            store.put_vote(precommit)
        store.put_justification(1, block, prevotes(block, view=1))
        with pytest.raises(ValueError, match="expected its block and prevotes"):
            store.put_vote(precommit)
        store.put_justification(1, block, prevotes(block, view=2))
        store.put_vote(precommit)
        store.put_vote(vote_for(ZERO, phase=Phase.PRECOMMIT, view=3))  # nil rests on nothing
    with SqliteStore.open(tmp_path, GENESIS) as store:
        blocks, votes = store.get_justification(1)
        assert blocks == (block,)
        assert [vote.view for vote in votes] == [1] * GENESIS.state.q + [2] * GENESIS.state.q
        store.append(*CHAIN[0])
        assert store.get_justification(1) == ((), ())  # final: nothing is locked any more
        assert store.put_vote(precommit) == encode_vote(precommit)


def test_a_precommit_is_stored_with_all_that_it_rests_on_or_not_at_all(tmp_path: Path) -> None:
    block, steps = CHAIN[0][0], list[str]()

    def die(step: str) -> None:
        steps.append(step)
        if step == "justification.written" and steps.count(step) == 1:
            raise InterruptedError

    precommit = vote_for(block.id, phase=Phase.PRECOMMIT)
    with SqliteStore.open(tmp_path, GENESIS, faults=die) as store:
        with pytest.raises(InterruptedError):
            store.put_precommit(precommit, block, prevotes(block))
        assert store.get_votes(1) == ()
        assert store.get_justification(1) == ((), ())
        assert store.put_precommit(precommit, block, prevotes(block)) == encode_vote(precommit)
        assert steps[-3:] == ["justification.begin", "justification.written", "justification.committed"]
        assert store.put_precommit(precommit, block, prevotes(block)) == encode_vote(precommit)  # harmless
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.get_votes(1) == (precommit,)
        assert store.get_justification(1)[0] == (block,)
        assert store.describe_loss() is None


def test_a_precommit_is_stored_where_no_other_vote_was_and_for_its_own_prevotes(store: SqliteStore) -> None:
    block = CHAIN[0][0]
    nil = vote_for(ZERO, phase=Phase.PRECOMMIT)
    store.put_vote(nil)
    with pytest.raises(SlotTaken):
        store.put_precommit(vote_for(block.id, phase=Phase.PRECOMMIT), block, prevotes(block))
    assert store.get_votes(1) == (nil,)
    for vote in (vote_for(block.id), vote_for(block.id, phase=Phase.PRECOMMIT, view=1), nil):
        with pytest.raises(ValueError, match="expected a precommit for block"):
            store.put_precommit(vote, block, prevotes(block))


def test_a_justification_is_prevotes_of_one_view_for_the_block(store: SqliteStore) -> None:
    block = CHAIN[0][0]
    for votes in (
        [],
        [vote_for(ZERO)],
        [vote_for(block.id, phase=Phase.PRECOMMIT)],
        [vote_for(block.id), vote_for(block.id, view=1)],
    ):
        with pytest.raises(ValueError, match="expected prevotes of one view"):
            store.put_justification(1, block, votes)
    assert store.get_justification(1) == ((), ())


def test_evidence_rounds_and_meta_are_kept(tmp_path: Path) -> None:
    evidence = make_evidence(vote_for(ZERO, voter=2), vote_for(CHAIN[0][0].id, voter=2))
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.put_evidence(evidence, KEYS[2].id, 1)
        assert not store.put_evidence(evidence, KEYS[2].id, 1)
        store.put_round(1, {"accuracy": 0.5})
        store.put_round(1, {"accuracy": 0.75})
        store.put_round(2, {"accuracy": 0.8})
        store.put_meta("seen", ["alice", 3])
    with SqliteStore.open(tmp_path, GENESIS) as store:
        (stored,) = store.get_evidence()
        assert (stored.evidence, stored.author, stored.height) == (evidence, KEYS[2].id, 1)
        assert store.get_evidence(2) == ()
        assert list(store.rounds(1, 9)) == [(1, {"accuracy": 0.75}), (2, {"accuracy": 0.8})]
        assert store.get_round(3) is None
        assert store.get_meta("seen") == ["alice", 3]
        assert store.get_meta("unknown") is None


# Opening


def test_writes_are_durable_and_exclusive_by_setting(store: SqliteStore) -> None:
    connection = store.rows.connection
    settings = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "locking_mode")
    ]
    assert settings == [b"wal", 2, b"exclusive"]  # 2 is FULL


def test_another_genesis_is_refused_with_both_chain_ids(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path, GENESIS).close()
    other = make_genesis(KEYS, chain_name="other")
    for readonly in (False, True):
        with pytest.raises(StoreMismatch) as mismatch:
            SqliteStore.open(tmp_path, other, readonly=readonly)
        assert (mismatch.value.expected, mismatch.value.got) == (other.chain_id.hex(), GENESIS.chain_id.hex())
    SqliteStore.open(tmp_path, GENESIS).close()


@pytest.mark.parametrize("pragma", ["user_version", "application_id"])
def test_another_schema_is_refused(tmp_path: Path, pragma: str) -> None:
    SqliteStore.open(tmp_path, GENESIS).close()
    connection = sqlite3.connect(tmp_path / "chain.db")
    connection.execute(f"PRAGMA {pragma} = 99")
    connection.close()
    with pytest.raises(StoreMismatch, match=r"chain\.db: .*expected \d+, got 99"):
        SqliteStore.open(tmp_path, GENESIS)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_directory_of_the_first_protocol_is_refused_with_what_to_do(tmp_path: Path, readonly: bool) -> None:
    SqliteStore.open(tmp_path, GENESIS).close()
    connection = sqlite3.connect(tmp_path / "chain.db")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    refused = r"chain\.db: its chain is of protocol 1, .*releases up to 0\.2: .*begin a new chain in an empty data dir"
    with pytest.raises(StoreMismatch, match=refused):
        SqliteStore.open(tmp_path, GENESIS, readonly=readonly)
    with pytest.raises(StoreMismatch, match=refused):
        SqliteStore.stored_genesis(tmp_path)


def test_the_genesis_is_kept_in_the_directory(tmp_path: Path) -> None:
    assert SqliteStore.stored_genesis(tmp_path) is None
    SqliteStore.open(tmp_path, GENESIS).close()
    stored = SqliteStore.stored_genesis(tmp_path)
    assert stored is not None
    assert Genesis.from_mapping(stored) == GENESIS


TRY_TO_OPEN = """
import sys
from dataclasses import replace
from pathlib import Path
from chain.errors import StoreLocked
from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
path = Path(sys.argv[1])
try:
    SqliteStore.stored_genesis(path)
except StoreLocked as error:
    print(error)
"""


def test_a_second_process_is_kept_out_and_told_why(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS):
        for readonly in (False, True):
            with pytest.raises(StoreLocked, match="in use by another process"):
                SqliteStore.open(tmp_path, GENESIS, readonly=readonly)
        with pytest.raises(StoreLocked, match="in use by another process"):
            SqliteStore.reset(tmp_path)
        (tmp_path / "lock").unlink()  # without it SQLite's own lock still holds for other processes
        ran = subprocess.run([sys.executable, "-c", TRY_TO_OPEN, tmp_path], capture_output=True, text=True, check=True)
        assert ran.stdout == ""  # a copy without its lock is read as it lies
        with pytest.raises(StoreLocked, match="in use by another process"):
            SqliteStore.open(tmp_path, GENESIS)
    SqliteStore.open(tmp_path, GENESIS).close()


def test_another_process_hears_that_the_node_is_running(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS):
        ran = subprocess.run([sys.executable, "-c", TRY_TO_OPEN, tmp_path], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{tmp_path}: in use by another process; ask the running node, or stop it first\n"


def test_readers_share_a_stopped_directory_and_cannot_write(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        fill(store, 3)
    with (
        SqliteStore.open(tmp_path, GENESIS, readonly=True) as a,
        SqliteStore.open(tmp_path, GENESIS, readonly=True) as b,
    ):
        assert a.head() == b.head() == StoredBlock(*CHAIN[2])
        with pytest.raises(StoreError, match="read-only"):
            a.append(*CHAIN[3])
        with pytest.raises(StoreError, match="read-only"):
            a.put_blob(b"x")
        with pytest.raises(StoreLocked):
            SqliteStore.open(tmp_path, GENESIS)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        store.append(*CHAIN[3])


def test_reading_an_unused_directory_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"chain\.db: no such file"):
        SqliteStore.open(tmp_path / "unused", GENESIS, readonly=True)
    assert list(tmp_path.iterdir()) == []


def test_a_used_directory_without_its_database_is_not_started_anew(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path, GENESIS).close()
    (tmp_path / "chain.db").unlink()
    with pytest.raises(StoreCorrupted, match="what this node signed is lost"):
        SqliteStore.open(tmp_path, GENESIS)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "chain.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    for readonly in (False, True):
        with pytest.raises(StoreCorrupted, match=r"chain\.db.*not a database"):
            SqliteStore.open(tmp_path, GENESIS, readonly=readonly)


# Damage


def test_a_flipped_byte_of_any_stored_object_is_named(tmp_path: Path) -> None:
    block, certificate = CHAIN[6]
    contribution = make_contribution(GENESIS, ME, height=11)
    vote = vote_for(CHAIN[10][0].id, height=11)
    locked, prevote = CHAIN[10][0], prevotes(CHAIN[10][0])
    evidence = make_evidence(vote_for(ZERO, voter=2), vote_for(block.id, voter=2))
    with SqliteStore.open(tmp_path, GENESIS) as store:
        fill(store, 10)
        store.put_contribution(contribution)
        store.put_candidate(CHAIN[10][0])
        store.put_vote(vote)
        store.put_justification(11, locked, prevote)
        store.put_evidence(evidence, KEYS[2].id, 1)
        store.put_round(7, {"accuracy": 0.123456})
        store.put_meta("answer", "forty-two")
    database = tmp_path / "chain.db"
    whole = database.read_bytes()
    cases = {
        encode_block(block): "block 7: stored bytes do not match their digest",
        encode_certificate(certificate): "block 7: certificate: stored bytes do not match their digest",
        encode_block(CHAIN[9][0]): "block 10: stored bytes do not match their digest",
        encode_contribution(contribution): "own contribution of height 11: stored bytes",
        encode_vote(vote): "own vote of height 11, view 0, phase 1: stored bytes",
        encode_vote(prevote[1]): "justification of height 11: stored bytes",
        GENESIS.state.canonical: "state after block 0: stored bytes",
        b'{"accuracy":0.123456}': "round 7: stored bytes",
        b'"forty-two"': "user/answer: stored bytes",
        evidence.second: "evidence of height 1: stored bytes",
    }
    for stored, message in cases.items():
        database.write_bytes(whole)
        flip_in(database, stored, at=len(stored) // 2)
        with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
            report = verify_chain(GENESIS, store)
        assert not report.ok
        assert message in str(report.fault), stored
    database.write_bytes(whole)
    with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
        assert verify_chain(GENESIS, store).ok


def test_a_damaged_head_or_signed_row_keeps_the_node_from_starting(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        store.put_vote(vote_for(ZERO))
        fill(store, 3)
    database = tmp_path / "chain.db"
    whole = database.read_bytes()
    for stored, message in (
        (encode_block(CHAIN[2][0]), "block 3: stored bytes"),
        (encode_certificate(CHAIN[2][1]), "block 3: certificate: stored bytes"),
        (encode_vote(vote_for(ZERO)), "own vote of height 1, view 0, phase 1: stored bytes"),
        (GENESIS.canonical[:300], "genesis: stored bytes"),
        (GENESIS.state.canonical[-300:], "state after block [0-3]: stored bytes"),
    ):
        database.write_bytes(whole)
        flip_in(database, stored)
        with pytest.raises(StoreCorrupted, match=message):
            SqliteStore.open(tmp_path, GENESIS)


def test_a_head_that_lost_its_quorum_is_refused(tmp_path: Path) -> None:
    block, certificate = CHAIN[0]
    with SqliteStore.open(tmp_path, GENESIS) as store:
        store.append(block, Certificate(certificate.view, certificate.signatures[:-1]))
    with pytest.raises(StoreCorrupted, match=r"block 1: certificate signatures.*: expected at least 3, got 2"):
        SqliteStore.open(tmp_path, GENESIS)


def test_missing_rows_are_noticed(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        fill(store, 5)
        store.rows.connection.execute("DELETE FROM blocks WHERE height = 3")
    with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
        report = verify_chain(GENESIS, store)
        assert report.fault is not None
        assert (report.fault.height, str(report.fault)) == (3, "block 3: missing from the store")
    with pytest.raises(StoreCorrupted, match="blocks: expected 6 up to height 5, got 5"):
        SqliteStore.open(tmp_path, GENESIS)


def test_a_missing_state_is_noticed(tmp_path: Path) -> None:
    """What is gone leaves no damaged row behind: only the chain says that there was one."""
    with SqliteStore.open(tmp_path, GENESIS) as store:
        fill(store, 5)
        assert store.get_state(0) == store.get_state(5) == GENESIS.state
        store.rows.connection.execute("DELETE FROM states")
    with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
        assert str(verify_chain(GENESIS, store).fault).endswith("state after block 0: missing")
        assert str(verify_chain(GENESIS, store, first=4, last=5).fault).endswith("state after block 5: missing")
    with pytest.raises(StoreCorrupted, match=r"state after block [0-5]: missing"):
        SqliteStore.open(tmp_path, GENESIS)


def test_another_state_than_the_head_commits_to_is_noticed(tmp_path: Path) -> None:
    """Though its row is whole."""
    fewer = replace(GENESIS.state, members=GENESIS.state.members[:3])
    with SqliteStore.open(tmp_path, GENESIS) as store:
        fill(store, 5)
        store.rows.insert_state(5, fewer)
    refused = rf"state.*: expected {GENESIS.state.digest.hex()}, got {fewer.digest.hex()}"
    with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
        assert re.search(refused, str(verify_chain(GENESIS, store).fault))
    with pytest.raises(StoreCorrupted, match=refused):
        SqliteStore.open(tmp_path, GENESIS)


def test_a_cut_tail_is_noticed(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        fill(store, 5)
        store.rows.connection.execute("DELETE FROM blocks WHERE height = 5")
    with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
        assert str(verify_chain(GENESIS, store).fault) == "block 5: missing from the store"


def test_a_full_disk_leaves_the_chain_as_it_was(store: SqliteStore) -> None:
    connection = store.rows.connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFull, match=r"chain\.db: block \d+: .*full"):
        fill(store, 20)
    height = store.head_height
    assert store.head().block.height == height < 20
    connection.execute("PRAGMA max_page_count = 100000")
    for block, certificate in CHAIN[height:]:
        store.append(block, certificate)
    assert verify_chain(GENESIS, store).ok


# Blobs


def test_blobs_are_files_named_by_their_digest(store: SqliteStore, tmp_path: Path) -> None:
    digest = store.put_blob(b"payload")
    assert digest == hashlib.sha256(b"payload").digest()
    path = tmp_path / "blobs" / digest.hex()[:2] / digest.hex()
    assert store.blob_path(digest) == path
    assert path.read_bytes() == b"payload"
    assert store.has_blob(digest)
    assert store.blob_size(digest) == 7
    assert store.get_blob(digest) == b"payload"
    assert list(store.held_blobs()) == [digest]
    assert store.put_blob(b"payload") == digest
    assert store.delete_blob(digest)
    assert not store.delete_blob(digest)
    assert store.blob_size(digest) is None
    with pytest.raises(BlobMissing, match=digest.hex()):
        store.get_blob(digest)
    with pytest.raises(BlobMissing, match=digest.hex()):
        store.check_blob(digest)


def test_a_flipped_byte_in_a_blob_is_named_and_writing_it_again_repairs_it(store: SqliteStore) -> None:
    digest = store.put_blob(bytes(1000))
    flip(store.blob_path(digest), 500)
    for read in (store.get_blob, store.check_blob):
        with pytest.raises(StoreCorrupted, match=digest.hex()):
            read(digest)
    store.put_blob(bytes(1000))
    assert store.get_blob(digest) == bytes(1000)


def test_a_fetched_blob_resumes_and_must_have_its_digest(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"first second").digest()
    with SqliteStore.open(tmp_path, GENESIS) as store:
        path, offset = store.open_partial(digest)
        assert offset == 0
        path.write_bytes(b"first ")
    with SqliteStore.open(tmp_path, GENESIS) as store:
        path, offset = store.open_partial(digest)
        assert offset == 6
        with path.open("ab") as file:
            file.write(b"second")
        assert not store.has_blob(digest)
        store.commit_partial(digest)
        assert store.get_blob(digest) == b"first second"
        assert not path.exists()
        path, offset = store.open_partial(digest)
        path.write_bytes(b"something else")
        with pytest.raises(ValidationError, match=f"fetched blob: expected {digest.hex()}"):
            store.commit_partial(digest)
        assert store.open_partial(digest)[1] == 0
        store.drop_partial(digest)
        assert not path.exists()


def test_a_blob_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    def full(step: str) -> None:
        if step == "blob.written":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with SqliteStore.open(tmp_path, GENESIS, faults=full) as store:
        with pytest.raises(StoreFull, match="No space left"):
            store.put_blob(b"payload")
        assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


def test_a_finished_file_is_adopted_by_renaming_it(store: SqliteStore, tmp_path: Path) -> None:
    source = tmp_path / "made"
    source.write_bytes(b"made by another process")
    inode = source.stat().st_ino
    digest, size = store.adopt_blob(source)
    assert (digest, size) == (hashlib.sha256(b"made by another process").digest(), 23)
    assert store.blob_path(digest).stat().st_ino == inode
    assert store.get_blob(digest) == b"made by another process"
    assert not source.exists()


def test_a_file_adopted_twice_goes_and_repairs_what_was_damaged(store: SqliteStore, tmp_path: Path) -> None:
    source = tmp_path / "made"
    for damage in (lambda path: None, lambda path: flip(path, 0), lambda path: path.write_bytes(b"torn")):
        digest = store.put_blob(b"held already")
        damage(store.blob_path(digest))
        source.write_bytes(b"held already")
        assert store.adopt_blob(source) == (digest, 12)
        assert store.get_blob(digest) == b"held already"
        assert not source.exists()
    with pytest.raises(StoreError, match="made"):
        store.adopt_blob(source)


def test_partial_files_by_different_words_on_one_blob_do_not_meet(store: SqliteStore) -> None:
    digest = hashlib.sha256(b"whole").digest()
    paths = [store.open_partial(digest, tag)[0] for tag in ("", "one", "other")]
    assert len(set(paths)) == 3
    paths[1].write_bytes(b"whole")
    store.commit_partial(digest, "one")
    assert store.get_blob(digest) == b"whole"
    assert [path.exists() for path in paths] == [True, False, True]
    assert store.prune_blobs({digest}) == 0
    assert [path.exists() for path in paths] == [True, False, True]
    store.drop_partial(digest)
    assert [path.exists() for path in paths] == [False, False, False]


def test_pruning_keeps_what_is_named(store: SqliteStore) -> None:
    kept, dropped = store.put_blob(b"kept"), store.put_blob(b"dropped")
    kept_partial, dropped_partial = (hashlib.sha256(text).digest() for text in (b"a", b"b"))
    paths = [store.open_partial(digest)[0] for digest in (kept_partial, dropped_partial)]
    assert store.prune_blobs({kept, kept_partial}) == 1
    assert list(store.held_blobs()) == [kept]
    assert not store.has_blob(dropped)
    assert [path.exists() for path in paths] == [True, False]


def test_referenced_blobs_are_those_of_new_blocks_and_of_what_is_in_flight(store: SqliteStore) -> None:
    fill(store, 4)
    named = {
        height: {CHAIN[height - 1][0].header.aggregate}
        | {p.digest for c in CHAIN[height - 1][0].contributions for p in c.payloads}
        for height in range(1, 6)
    }
    assert store.referenced_blobs(3) == named[3] | named[4]
    store.put_contribution(make_contribution(GENESIS, ME, height=5, prev=CHAIN[3][0].id))
    own = {p.digest for c in CHAIN[4][0].contributions if c.author == ME.id for p in c.payloads}
    assert store.referenced_blobs(4) == named[4] | own
    store.put_justification(5, CHAIN[4][0], prevotes(CHAIN[4][0]))
    assert store.referenced_blobs(4) == named[4] | named[5]


# Reset


def test_reset_keeps_genesis_signed_rows_and_what_they_offered_last(tmp_path: Path) -> None:
    block = CHAIN[0][0]
    with SqliteStore.open(tmp_path, GENESIS) as store:
        blob, old = store.put_blob(b"offered"), store.put_blob(b"old")
        offer = [PayloadRef(1, blob, 7)]
        contribution = make_contribution(GENESIS, ME, height=4, prev=CHAIN[2][0].id, payloads=offer)
        store.put_vote(vote_for(block.id))
        fill(store, 3)
        store.put_contribution(contribution)
        store.put_round(1, {"accuracy": 1.0})
        store.put_meta("seen", 1)
    SqliteStore.reset(tmp_path)
    assert SqliteStore.stored_genesis(tmp_path) is not None
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.head() == StoredBlock(GENESIS.block0, None)
        assert store.get_round(1) is None
        assert store.get_meta("seen") is None
        assert store.has_blob(blob)
        assert not store.has_blob(old)
        assert store.get_contribution(4) == contribution
        with pytest.raises(SlotTaken):
            store.put_vote(vote_for(ZERO))
        fill(store, 3)
        assert verify_chain(GENESIS, store).ok


def test_a_damaged_chain_can_be_reset_but_not_damaged_signed_rows(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        store.put_vote(vote_for(ZERO))
        fill(store, 3)
    database = tmp_path / "chain.db"
    flip_in(database, encode_block(CHAIN[2][0]))
    SqliteStore.reset(tmp_path)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.get_votes(1) == (vote_for(ZERO),)
        fill(store, 3)
    flip_in(database, encode_vote(vote_for(ZERO)))
    before = database.read_bytes()
    with pytest.raises(StoreCorrupted, match="own vote of height 1"):
        SqliteStore.reset(tmp_path)
    assert database.read_bytes() == before


def test_of_the_newest_changes_that_were_open_it_is_kept_how_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent_rows, "MAX_ENDED", 3)
    changes = [make_digest(f"change {number}") for number in range(5)]
    with SqliteStore.open(tmp_path, GENESIS) as store:
        for height, change in enumerate(changes, 9):
            store.put_change(change, b"a change", sign_approval(ME, GENESIS.chain_id, change, Answer.YES))
            store.end_changes(height, {change: f"at {height}"})
        store.put_published(9, ())  # beside them
        assert store.get_changes() == ()
        kept = store.get_ended_changes()
        assert list(kept.items()) == [(changes[i], f"at {9 + i}") for i in (2, 3, 4)]
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.get_ended_changes() == kept
    flip_in(tmp_path / "chain.db", b"at 12")
    with SqliteStore.open(tmp_path, GENESIS) as store, pytest.raises(StoreCorrupted, match="an ended change"):
        store.get_ended_changes()


def test_a_reset_keeps_what_the_operator_has_answered(tmp_path: Path) -> None:
    change, late = make_digest("open"), make_digest("executed")
    with SqliteStore.open(tmp_path, GENESIS) as store:
        store.put_change(change, b"a change", sign_approval(ME, GENESIS.chain_id, change, Answer.YES), is_own=True)
        for answer in (Answer.YES, Answer.YES_WITHOUT_TRAINING):
            store.put_own_answer(sign_approval(ME, GENESIS.chain_id, late, answer))
        kept = store.get_own_answers()
    SqliteStore.reset(tmp_path)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.get_own_answers() == kept == {change: Answer.YES, late: Answer.YES_WITHOUT_TRAINING}
        assert store.get_changes() == ()
    own = encode_approval(sign_approval(ME, GENESIS.chain_id, late, Answer.YES_WITHOUT_TRAINING))
    flip_in(tmp_path / "chain.db", own)
    assert SqliteStore.reset(tmp_path) == (0, False)  # a site can answer again
