"""Crashes of a store: at whatever moment a node dies, and whatever is torn, its store is a prefix of its past (PROTOCOL
§11.5)."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chain.approvals import sign_approval, sign_readiness
from chain.audit import verify_chain
from chain.block import ZERO, Approval, Contribution, PayloadRef, Phase, Readiness, Vote
from chain.changes.members import RemoveMember
from chain.codec import encode_block, encode_contribution, encode_vote, sign_vote
from chain.errors import SlotTaken, StoreCorrupted, StoreError
from chain.evidence import make_evidence
from chain.store.interface import FILE_STEPS, STEPS, Faults, StoredBlock
from chain.store.sqlite import SqliteStore
from support.data.blobs import put_rows
from support.data.chains import make_candidate, make_chain, make_contribution, make_genesis, make_keys
from support.data.changes import propose

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
ME = KEYS[0]
HEIGHTS = 3
CHAIN = make_chain(GENESIS, KEYS, HEIGHTS)
DIED = 42
SEEDS = 150

Acknowledge = Callable[[str], None]


def blob_of(height: int) -> bytes:
    return f"payload of height {height} ".encode() * 100


def file_of(height: int) -> bytes:
    return b"of a file, " + blob_of(height)


def row_of(height: int) -> bytes:
    return b"of a row, " + blob_of(height)


def lock_of(height: int) -> bytes:
    """What is made durable with a precommit."""
    return b"of a lock, " + blob_of(height)


def own_contribution(height: int, digest: bytes) -> Contribution:
    offer = [PayloadRef(1, digest, len(blob_of(height)))]
    return make_contribution(GENESIS, ME, height=height, prev=CHAIN[height - 1][0].header.prev, payloads=offer)


def own_vote(height: int, phase: Phase, block_id: bytes) -> Vote:
    return sign_vote(ME, GENESIS.chain_id, phase=phase, height=height, view=0, block_id=block_id)


def prevotes(height: int) -> list[Vote]:
    block_id = CHAIN[height - 1][0].id
    return [
        sign_vote(key, GENESIS.chain_id, phase=Phase.PREVOTE, height=height, view=0, block_id=block_id)
        for key in KEYS[: GENESIS.state.q]
    ]


def live(path: Path, faults: Faults | None, acknowledge: Acknowledge) -> None:
    """A node's life at the store, from wherever it stands to the last height; each durable step is acknowledged."""
    with SqliteStore.open(path, GENESIS, faults=faults) as store:
        acknowledge("open")
        for height in range(store.head_height + 1, HEIGHTS + 1):
            block, certificate = CHAIN[height - 1]
            store.put_blob(file_of(height))
            acknowledge(f"blob {height}")
            put_rows(store, [row_of(height)])
            acknowledge(f"blobs {height}")
            digest = hashlib.sha256(blob_of(height)).digest()
            store.put_contribution(own_contribution(height, digest), [blob_of(height)])
            acknowledge(f"contribution {height}")
            store.put_candidate(block)
            acknowledge(f"candidate {height}")
            store.put_vote(own_vote(height, Phase.PREVOTE, block.id))
            acknowledge(f"prevote {height}")
            precommit = own_vote(height, Phase.PRECOMMIT, block.id)
            store.put_precommit(precommit, block, prevotes(height), [lock_of(height)])
            acknowledge(f"justification {height}")
            acknowledge(f"precommit {height}")
            store.put_evidence(
                make_evidence(*(own_vote(height, Phase.PREVOTE, other) for other in (ZERO, block.id))), ME.id, height
            )
            acknowledge(f"evidence {height}")
            store.append(block, certificate, round_record={"height": height})
            acknowledge(f"block {height}")
            store.put_round(height, {"height": height, "accuracy": 0.5})
            acknowledge(f"round {height}")
            store.put_meta("height", height)
            acknowledge(f"meta {height}")
            change, approvals, ready = open_change(height)
            store.put_change(approvals[0].change_id, change, approvals[0])
            acknowledge(f"change {height}")
            store.put_approval(approvals[1])
            acknowledge(f"approval {height}")
            store.put_readiness(ready)
            acknowledge(f"readiness {height}")
            store.drop_changes([open_change(height - 1)[1][0].change_id])
            acknowledge(f"close {height}")


def open_change(height: int) -> tuple[bytes, tuple[Approval, ...], Readiness]:
    """A change made at this height, its proposer's approval and another, and somebody's readiness."""
    change = propose(RemoveMember(1), made=height)
    change_id = change.compute_id(GENESIS.chain_id)
    approvals = tuple(sign_approval(key, GENESIS.chain_id, change_id) for key in KEYS[:2])
    ready = sign_readiness(KEYS[3], GENESIS.chain_id, change_id, height=height, block_id=bytes([height]) * 32)
    return change.data, approvals, ready


def in_child(work: Callable[[Acknowledge], None]) -> tuple[int, list[str]]:
    """Run `work` in a forked process that never unwinds; its exit code and what it acknowledged."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            work(lambda text: void(os.write(writer, f"{text}\n".encode())))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        acknowledged = file.read().splitlines()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), acknowledged


def void(_: object) -> None:
    """Whatever an expression gave, nothing is made of it."""


def die_at(wanted: str, occurrence: int) -> Faults:
    """End the process, as SIGKILL would, when a step is reached for the n-th time."""
    seen = 0

    def reach(step: str) -> None:
        nonlocal seen
        if step == wanted:
            seen += 1
            if seen == occurrence:
                os._exit(DIED)

    return reach


def check_prefix(store: SqliteStore, acknowledged: list[str]) -> None:
    """What was acknowledged is there and whole, and nothing is there that was not done."""
    done = set(acknowledged)
    finalised = sum(text.startswith("block ") for text in acknowledged)
    assert store.head_height in (finalised, finalised + 1)
    assert [StoredBlock(*pair) for pair in CHAIN[: store.head_height]] == list(store.blocks(1, HEIGHTS))
    assert verify_chain(GENESIS, store).fault is None
    for height in range(1, HEIGHTS + 1):
        block = CHAIN[height - 1][0]
        votes = {vote.phase: vote for vote in store.get_votes(height)}
        for name, stored, expected in (
            ("candidate", store.get_candidate(height), block),
            ("prevote", votes.get(Phase.PREVOTE), own_vote(height, Phase.PREVOTE, block.id)),
            ("precommit", votes.get(Phase.PRECOMMIT), own_vote(height, Phase.PRECOMMIT, block.id)),
        ):
            assert stored in ((expected,) if f"{name} {height}" in done else (expected, None))
        contribution = store.get_contribution(height)
        assert contribution is not None or f"contribution {height}" not in done
        if contribution is not None:  # its blob came with it
            assert store.get_blob(contribution.payloads[0].digest) == blob_of(height)
        for name, blob in (("blob", file_of(height)), ("blobs", row_of(height)), ("precommit", lock_of(height))):
            if f"{name} {height}" in done or (name == "precommit" and Phase.PRECOMMIT in votes):
                assert store.get_blob(hashlib.sha256(blob).digest()) == blob
        if votes.get(Phase.PRECOMMIT) is not None and height > store.head_height:
            assert store.get_justification(height) == ((block,), tuple(sorted(prevotes(height), key=lambda v: v.voter)))
        if f"evidence {height}" in done:
            assert len(store.get_evidence(height)) >= 1
        if f"block {height}" in done:
            assert (store.get_round(height) or {})["height"] == height
        change, approvals, ready = open_change(height)
        held = next((stored for stored in store.get_changes() if stored.change == change), None)
        if held is not None:  # a change is never without its proposer's approval
            assert held.approvals in (approvals, approvals[:1])
            assert held.approvals == approvals or f"approval {height}" not in done
            assert held.readiness == ready or (held.readiness is None and f"readiness {height}" not in done)
        elif f"change {height}" in done:
            assert height < HEIGHTS  # it was closed at the next
        if f"close {height}" in done:
            assert all(stored.change != open_change(height - 1)[0] for stored in store.get_changes())


def check_no_second_signature(store: SqliteStore) -> None:
    """Every slot that holds a row refuses another one and gives the first back."""
    for height in range(1, HEIGHTS + 1):
        other = make_candidate(GENESIS, GENESIS.block0, KEYS, authors=[1, 2, 3], time_ms=2_000_000_000_000 + height)
        contribution, candidate = store.get_contribution(height), store.get_candidate(height)
        if contribution is not None:
            with pytest.raises(SlotTaken) as taken:
                store.put_contribution(make_contribution(GENESIS, ME, height=height, weight=7))
            assert taken.value.stored == encode_contribution(contribution)
        if candidate is not None and height == 1:
            with pytest.raises(SlotTaken) as taken:
                store.put_candidate(other)
            assert taken.value.stored == encode_block(candidate)
        for vote in store.get_votes(height):
            with pytest.raises(SlotTaken) as taken:
                store.put_vote(own_vote(height, vote.phase, ZERO))
            assert taken.value.stored == encode_vote(vote)


@pytest.mark.parametrize("occurrence", [1, 2, 4])
@pytest.mark.parametrize("step", STEPS)
def test_dying_at_any_step_keeps_what_was_acknowledged(tmp_path: Path, step: str, occurrence: int) -> None:
    code, acknowledged = in_child(lambda ack: live(tmp_path, die_at(step, occurrence), ack))
    assert code in (DIED, 0)  # 0: the step comes less often than that
    if occurrence == 1:
        assert code == DIED, f"{step} was never reached"
    with SqliteStore.open(tmp_path, GENESIS) as store:
        check_prefix(store, acknowledged)
        check_no_second_signature(store)
        assert list((tmp_path / "blobs" / "tmp").iterdir()) == []
    live(tmp_path, None, void)  # and the node goes on
    with SqliteStore.open(tmp_path, GENESIS) as store:
        check_prefix(
            store, [f"{name} {h}" for h in range(1, HEIGHTS + 1) for name in ("block", "prevote", "precommit")]
        )


def test_the_directory_of_a_killed_node_is_read_without_a_change(tmp_path: Path) -> None:
    code, acknowledged = in_child(lambda ack: live(tmp_path, die_at("append.committed", 3), ack))
    assert code == DIED
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(files[tmp_path / "chain.db-wal"]) > 0
    assert SqliteStore.stored_genesis(tmp_path) is not None
    with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
        check_prefix(store, acknowledged)
        assert store.head_height == 3  # from the log alone
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_a_node_killed_before_it_had_a_chain_starts_anew(tmp_path: Path) -> None:
    in_child(lambda ack: live(tmp_path, die_at("create.begin", 1), ack))
    assert (tmp_path / "chain.db").exists()
    assert SqliteStore.stored_genesis(tmp_path) is None
    SqliteStore.open(tmp_path, GENESIS).close()
    assert SqliteStore.stored_genesis(tmp_path) is not None


@pytest.mark.parametrize("step", ["reset.written", "reset.renamed"])
def test_dying_in_a_reset_leaves_the_old_or_the_new_store(tmp_path: Path, step: str) -> None:
    live(tmp_path, None, void)

    def reset(_: Faults) -> None:
        SqliteStore.reset(tmp_path, faults=die_at(step, 1))

    code, _ = in_child(reset)
    assert code == DIED
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.head_height == (HEIGHTS if step == "reset.written" else 0)
        assert len(store.get_votes(1)) == 2
        check_no_second_signature(store)
    SqliteStore.reset(tmp_path)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.head_height == 0
        check_no_second_signature(store)


@pytest.mark.parametrize("step", FILE_STEPS)
def test_dying_while_a_file_is_adopted_or_fetched_leaves_the_file_or_the_blob(tmp_path: Path, step: str) -> None:
    data = blob_of(1)
    digest = hashlib.sha256(data).digest()
    tmp = tmp_path / "data" / "blobs" / "tmp"
    is_fetched = step.startswith("fetch.")
    source = tmp / f"{digest.hex()}.part" if is_fetched else tmp_path / "data" / "finished"

    def adopt(faults: Faults | None) -> None:
        with SqliteStore.open(tmp_path / "data", GENESIS, faults=faults) as store:
            if is_fetched:
                store.commit_partial(digest)
            else:
                assert store.adopt_blob(source) == (digest, len(data))

    SqliteStore.open(tmp_path / "data", GENESIS).close()
    source.write_bytes(data)
    code, _ = in_child(lambda _: adopt(die_at(step, 1)))
    assert code == DIED, f"{step} was never reached"
    with SqliteStore.open(tmp_path / "data", GENESIS) as store:
        is_renamed = step.endswith((".renamed", ".durable"))
        assert (source.exists(), store.has_blob(digest)) == (not is_renamed, is_renamed)
        assert list(tmp.iterdir()) == ([source] if is_fetched and not is_renamed else [])  # to go on with
    source.write_bytes(data)  # made again, the same: what was acknowledged before is kept
    adopt(None)
    with SqliteStore.open(tmp_path / "data", GENESIS) as store:
        assert store.get_blob(digest) == data
    assert not source.exists()


# Torn files


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node killed at its last height: everything it did is in the log."""
    path = tmp_path_factory.mktemp("killed")
    code, _ = in_child(lambda ack: live(path, die_at("meta.committed", 3), ack))
    assert code == DIED
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node that stopped cleanly: everything it did is in the database."""
    path = tmp_path_factory.mktemp("stopped")
    live(path, None, void)
    return path


def torn_copies(original: Path, name: str, copy: Path, seeds: range) -> Iterator[random.Random]:
    """Copies of a data directory with one file cut, or one bit or one run of bytes changed, at seeded places."""
    data = (original / name).read_bytes()
    for seed in seeds:
        rng = random.Random(seed)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(original, copy)
        at = rng.randrange(len(data))
        if seed % 3 == 0:
            torn = data[:at]
        elif seed % 3 == 1:
            torn = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        else:
            torn = (data[:at] + rng.randbytes(rng.randrange(1, 5000)))[: len(data)].ljust(len(data), b"\0")
        (copy / name).write_bytes(torn)
        yield rng


def check_valid_prefix(store: SqliteStore) -> None:
    """Whatever is still there is what was written, and nothing else."""
    height = store.head_height
    assert [StoredBlock(*pair) for pair in CHAIN[:height]] == list(store.blocks(1, HEIGHTS))
    for h in range(1, HEIGHTS + 1):
        block = CHAIN[h - 1][0]
        assert store.get_candidate(h) in (block, None)
        assert set(store.get_votes(h)) <= {own_vote(h, phase, block.id) for phase in Phase}
        blocks, votes = store.get_justification(h)
        assert set(blocks) <= {block}
        assert set(votes) <= set(prevotes(h))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain.db-wal", "chain.db"])
def test_a_torn_file_is_refused_or_read_as_a_prefix(killed: Path, stopped: Path, tmp_path: Path, name: str) -> None:
    original = killed if name.endswith("-wal") else stopped
    copy = tmp_path / "copy"
    refused = audited = recovered = 0
    for _ in torn_copies(original, name, copy, range(SEEDS)):
        try:
            with SqliteStore.open(copy, GENESIS, readonly=True) as store:
                fault = verify_chain(GENESIS, store).fault
            if fault is None:
                with SqliteStore.open(copy, GENESIS, readonly=True) as store:
                    check_valid_prefix(store)
            else:
                audited += 1
        except StoreError:
            fault = None
        try:
            with SqliteStore.open(copy, GENESIS) as store:
                if fault is None:
                    check_valid_prefix(store)
                recovered += 1
        except StoreError:  # any other exception would be a traceback in front of the operator
            refused += 1
    assert recovered > 0
    assert refused > 0 or name.endswith("-wal")  # SQLite itself drops what is torn at the end of its log
    assert audited > 0 or name.endswith("-wal")


def test_a_torn_blob_is_never_given_out(tmp_path: Path) -> None:
    rng = random.Random(1)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        whole = rng.randbytes(5000)
        digest = store.put_blob(whole)
        path = store.blob_path(digest)
        for i in range(100):
            at = rng.randrange(len(whole))
            path.write_bytes(whole[:at] if i % 2 else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(StoreCorrupted, match=digest.hex()):
                store.get_blob(digest)
        store.put_blob(whole)
        assert store.get_blob(digest) == whole
