"""A database that has lost its end is noticed, and its node signs nothing that it may have signed already."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chain.audit import verify_chain
from chain.block import ZERO, Phase, Vote
from chain.codec import sign_vote
from chain.errors import SlotTaken, StoreError
from chain.store.sqlite import SqliteStore
from chain.store.watermark import WATERMARK, Mark, read_mark, write_mark
from support.data.chains import make_chain, make_contribution, make_genesis, make_keys

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
ME = KEYS[0]
CHAIN = make_chain(GENESIS, KEYS, 5)


def vote_for(block_id: bytes, height: int) -> Vote:
    return sign_vote(ME, GENESIS.chain_id, phase=Phase.PREVOTE, height=height, view=0, block_id=block_id)


@pytest.fixture
def old_copy(tmp_path: Path) -> Path:
    """A directory whose database is from height 1: since then two more were finalised and the fourth voted on."""
    path, kept = tmp_path / "data", tmp_path / "chain.db"
    with SqliteStore.open(path, GENESIS) as store:
        store.put_vote(vote_for(CHAIN[0][0].id, 1))
        store.append(*CHAIN[0])
    shutil.copyfile(path / "chain.db", kept)
    with SqliteStore.open(path, GENESIS) as store:
        store.append(*CHAIN[1])
        store.append(*CHAIN[2])
        store.put_vote(vote_for(CHAIN[3][0].id, 4))
    shutil.copyfile(kept, path / "chain.db")
    return path


def test_nothing_is_lost_where_nothing_was(tmp_path: Path) -> None:
    for height in (1, 2):
        with SqliteStore.open(tmp_path, GENESIS) as store:
            assert (store.silent_until, store.describe_loss()) == (0, None)
            store.put_vote(vote_for(ZERO, height))
            store.append(*CHAIN[height - 1])
        assert read_mark(tmp_path) == Mark(height, height, height)
    with SqliteStore.open(tmp_path, GENESIS, readonly=True) as store:
        assert verify_chain(GENESIS, store).ok


def test_an_old_copy_signs_nothing_until_it_is_past_what_it_may_have_signed(old_copy: Path) -> None:
    for _ in range(2):  # a restart forgets nothing
        with SqliteStore.open(old_copy, GENESIS) as store:
            assert store.silent_until == 4
            said = store.describe_loss()
            assert said is not None
            assert "expected height 3 and 2 signed rows" in said
            assert "got height 1 and 1" in said
            with pytest.raises(
                StoreError, match="own vote of height 4, view 0, phase 1: nothing is signed up to height 4"
            ):
                store.put_vote(vote_for(ZERO, 4))
            with pytest.raises(StoreError, match="nothing is signed up to height 4"):
                store.put_contribution(make_contribution(GENESIS, ME, height=2, prev=CHAIN[0][0].id))
            store.put_vote(vote_for(CHAIN[0][0].id, 1))  # what is there may be said again
            with pytest.raises(SlotTaken):
                store.put_vote(vote_for(ZERO, 1))
    with SqliteStore.open(old_copy, GENESIS) as store:
        for block, certificate in CHAIN[1:4]:  # from its peers
            assert store.silent_until == 4
            store.append(block, certificate)
        assert (store.silent_until, store.describe_loss()) == (0, None)
        store.put_vote(vote_for(ZERO, 5))
    assert read_mark(old_copy) == Mark(4, 5, 2)
    with SqliteStore.open(old_copy, GENESIS) as store:
        assert store.silent_until == 0


def test_the_audit_of_an_old_copy_says_what_it_lacks(old_copy: Path) -> None:
    with SqliteStore.open(old_copy, GENESIS, readonly=True) as store:
        fault = verify_chain(GENESIS, store).fault
    assert fault is not None
    assert "expected height 3 and 2 signed rows" in fault.what
    assert str(old_copy / "chain.db") in fault.what


def test_a_log_that_was_cut_short_is_noticed_wherever_it_was_cut(tmp_path: Path) -> None:
    path, cut = tmp_path / "data", tmp_path / "cut"
    with SqliteStore.open(path, GENESIS):
        pass
    store = SqliteStore.open(path, GENESIS)
    for height, pair in enumerate(CHAIN[:3], 1):
        store.put_vote(vote_for(pair[0].id, height))
        store.append(*pair)
    log = (path / "chain.db-wal").read_bytes()
    lost = 0
    for at in range(0, len(log), 5000):
        shutil.rmtree(cut, ignore_errors=True)
        shutil.copytree(path, cut, ignore=shutil.ignore_patterns("lock"))  # as after a kill
        (cut / "chain.db-wal").write_bytes(log[:at])
        with SqliteStore.open(cut, GENESIS) as torn:
            is_whole = torn.head_height == 3 and len(torn.get_votes(3)) == 1
            assert torn.silent_until == (0 if is_whole else 3)
            lost += not is_whole
    store.close()
    assert lost > 3


def test_a_reset_loses_the_chain_on_purpose_and_what_was_lost_before_stays_lost(old_copy: Path, tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path / "other", GENESIS) as store:
        store.put_vote(vote_for(ZERO, 1))
        store.append(*CHAIN[0])
    assert SqliteStore.reset(tmp_path / "other").signed_height == 1
    with SqliteStore.open(tmp_path / "other", GENESIS) as store:
        assert (store.head_height, store.silent_until) == (0, 0)
    assert SqliteStore.reset(old_copy).signed_height == 1
    with SqliteStore.open(old_copy, GENESIS) as store:
        assert (store.head_height, store.silent_until) == (0, 4)


WHOLE = Mark(9, 9, 9).encode()
TORN = {"empty": b"", "short": b"x", "cut": WHOLE[:-1], "zeros": bytes(len(WHOLE)), "long": WHOLE + b"\0"}


@pytest.mark.parametrize("data", TORN.values(), ids=TORN)
def test_a_torn_mark_says_nothing_and_is_written_anew(tmp_path: Path, data: bytes) -> None:
    SqliteStore.open(tmp_path, GENESIS).close()
    (tmp_path / WATERMARK).write_bytes(data)
    assert read_mark(tmp_path) is None
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.silent_until == 0
        store.append(*CHAIN[0])
    assert read_mark(tmp_path) == Mark(1, 0, 0)


def test_a_mark_that_a_power_cut_left_behind_says_nothing(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        store.append(*CHAIN[0])
        store.append(*CHAIN[1])
    write_mark(tmp_path, Mark(1, 0, 0))
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.silent_until == 0
    assert read_mark(tmp_path) == Mark(2, 0, 0)
