"""The retention of large blobs over many rounds: a node keeps those of the newest heights, whatever happens, and all it
needs.

What counts as large is set low, so that every payload is. Memory transport, virtual time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from chain.block import Block, Digest, PayloadRef
from chain.genesis import Genesis
from chain.signing import SigningKey
from chain.store import sqlite
from chain.store.signed_slots import get_block_digests
from chain.store.sqlite import SqliteStore
from ml.payload import KINDS
from node.consensus.learning import auditor
from node.payloads import retention
from node.payloads.retention import Retention
from node.runs.specs import RunSpecs
from support.data.chains import (
    make_candidate,
    make_certificate,
    make_contribution,
    make_digest,
    make_genesis,
    make_keys,
)
from support.faults.soak import connect_without_sync
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.pulling import MODEL, UAPDFL
from support.federation.virtual_time import run_virtual

ROUNDS = 100
TRAIN_S, LATE_TRAIN_S = 0.2, 3.0  # a contribution after the latter is left out: it comes after `collect_s`
LARGE_BYTES = 100
SMALL, LARGE = bytes(LARGE_BYTES), bytes(LARGE_BYTES + 1)
EARLY = tuple(f"node{i}" for i in range(6))
LATE = "node6"


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(sqlite, "connect", connect_without_sync)


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (retention, auditor):
        monkeypatch.setattr(module, "LARGE_BYTES", LARGE_BYTES)


def find_kept(net: Cluster, name: str) -> dict[str, str]:
    """Blobs of a node that it has no use for any more, and why they were here: the block or the signed row they are
    of, as far as there is one."""
    store = net[name].store
    assert store is not None
    head, keep = store.head_height, net.genesis.rules.keep_heights
    needed = store.referenced_blobs(head - keep + 1) | {net.genesis.run.initial_model} | get_offered(net)
    heights = {
        digest: f"block {stored.block.height}"
        for stored in store.blocks(1, head)
        for digest in get_block_digests(stored.block)
    }
    for height in range(1, head + 1):
        if (own := store.get_contribution(height)) is not None:
            heights |= {ref.digest: f"own, left out of {height}" for ref in own.payloads if ref.digest not in heights}
    held = (digest for digest in store.held_blobs() if digest not in needed)
    return {digest.hex()[:8]: heights.get(digest, "in no block") for digest in held}


def get_offered(net: Cluster) -> set[bytes]:
    """What the members have offered of late: it may be on its way into a block, or out of one."""
    offered: set[bytes] = set()
    for node in net.nodes.values():
        if node.store is not None:
            for height in range(node.height - net.genesis.rules.keep_heights, node.height + 2):
                if (own := node.store.get_contribution(height)) is not None:
                    offered |= {ref.digest for ref in own.payloads}
    return offered


def set_pace(net: Cluster, name: str, train_s: float) -> None:
    trainer = net[name].trainer
    assert isinstance(trainer, ScriptedTrainer)
    trainer.train_s = train_s


def count_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "blobs").rglob("*") if file.is_file())


def append(store: SqliteStore, genesis: Genesis, keys: Sequence[SigningKey], *refs: PayloadRef) -> Block:
    """The next block, with one contribution that names `refs`, of the second member."""
    parent = store.head().block
    height = parent.height + 1
    payloads = refs or [PayloadRef(1, make_digest(f"{height}"), 1)]
    one = make_contribution(genesis, keys[1], height=height, prev=parent.id, payloads=payloads)
    block = make_candidate(genesis, parent, keys, contributions=[one])
    store.append(block, make_certificate(genesis, block, keys))
    return block


def make_store(path: Path) -> tuple[list[SigningKey], Genesis, SqliteStore]:
    keys = make_keys(2)
    genesis = make_genesis(keys, min_contributions=1)
    return keys, genesis, SqliteStore.open(path / "data", genesis)


def test_a_large_blob_of_ones_own_that_came_too_late_goes(tmp_path: Path) -> None:
    keys, genesis, store = make_store(tmp_path)
    with store:
        kept = Retention(store, RunSpecs.load(store), keys[0].id)
        ref = PayloadRef(1, store.put_blob(LARGE), len(LARGE))
        parent = store.head().block
        store.put_contribution(make_contribution(genesis, keys[0], height=1, prev=parent.id, payloads=[ref]))
        for height in range(1, genesis.rules.keep_heights + 2):
            assert store.has_blob(ref.digest)
            assert kept.on_block(append(store, genesis, keys)) == (height > genesis.rules.keep_heights)
        assert not store.has_blob(ref.digest)


def test_what_was_pulled_before_a_crash_goes_too_whole_or_in_part(tmp_path: Path) -> None:
    keys, genesis, store = make_store(tmp_path)
    with store:
        pulled, broken_off = store.put_blob(LARGE), make_digest("in part")
        partial, _ = store.open_partial(broken_off)
        small = store.put_blob(b"small")
        kept = Retention(store, RunSpecs.load(store), keys[0].id)
        for _ in range(genesis.rules.keep_heights + 1):
            assert store.has_blob(pulled)
            kept.on_block(append(store, genesis, keys))
        assert not store.has_blob(pulled)
        assert not partial.exists()
        assert store.has_blob(small)


def test_what_was_half_gone_when_the_node_went_down_goes_when_it_is_back(tmp_path: Path) -> None:
    keys, genesis, store = make_store(tmp_path)
    with store:
        ref = PayloadRef(1, store.put_blob(LARGE), len(LARGE))
        kept = Retention(store, RunSpecs.load(store), keys[0].id)
        kept.on_block(append(store, genesis, keys, ref))
        for _ in range(genesis.rules.keep_heights - 1):
            kept.on_block(append(store, genesis, keys))
        append(store, genesis, keys)  # and it went down before anything else
        assert Retention(store, RunSpecs.load(store), keys[0].id).on_block(append(store, genesis, keys)) == 1
        assert not store.has_blob(ref.digest)


@pytest.mark.parametrize("restarts", [False, True], ids=["stays up", "restarts"])
@pytest.mark.parametrize("keep_heights", [1, 3])
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_blob_stays_keep_heights_from_the_last_block_it_may_be_taken_for(
    tmp_path: Path, staleness: int, keep_heights: int, restarts: bool
) -> None:
    """So that a node that is a block behind finds it, also at its greatest age."""
    keys = make_keys(4)
    genesis = make_genesis(keys, method={**UAPDFL, "staleness": staleness}, model=MODEL, keep_heights=keep_heights)
    with SqliteStore.open(tmp_path / "store", genesis) as store:
        runs = RunSpecs.load(store)
        digest = store.put_blob(SMALL)
        keeper, held = Retention(store, runs, keys[0].id), list[int]()
        for height in range(1, 10):
            refs = [PayloadRef(KINDS["g"], digest, len(SMALL))] if height == 1 else []
            keeper = Retention(store, runs, keys[0].id) if restarts else keeper
            keeper.on_block(append(store, genesis, keys, *refs))
            held += [height] if store.has_blob(digest) else []
        assert held == list(range(1, 1 + staleness + keep_heights))


def test_a_blob_that_came_after_its_height_was_old_goes_unless_it_is_small(tmp_path: Path) -> None:
    keys, genesis, store = make_store(tmp_path)
    with store:
        kept = Retention(store, RunSpecs.load(store), keys[0].id)
        small, large = (PayloadRef(i, hashlib.sha256(data).digest(), len(data)) for i, data in ((1, SMALL), (2, LARGE)))
        kept.on_block(append(store, genesis, keys, small, large))
        for _ in range(genesis.rules.keep_heights):
            kept.on_block(append(store, genesis, keys))
        late = [store.put_blob(data) for data in (SMALL, LARGE)]  # for an audit
        kept.on_block(append(store, genesis, keys), late=late)
        for _ in range(genesis.rules.keep_heights):
            kept.on_block(append(store, genesis, keys))
        assert [store.has_blob(digest) for digest in late] == [True, False]


def test_a_blob_that_came_while_its_block_was_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LARGE_BYTES", 1 << 20)

    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            service, store = net["node0"].service, net["node0"].store
            assert service is not None
            assert store is not None
            block = service.tip.block
            digests = get_block_digests(block)
            take_pulled = service.blobs.take_pulled
            ended = [frozenset(digests)]  # the pull ended once the block was no longer to be asked about it

            def take_late() -> frozenset[Digest]:
                return take_pulled() | (ended.pop() if ended else frozenset())

            service.blobs.take_pulled = take_late  # type: ignore[method-assign]
            await net.wait_for_height(block.height + net.genesis.rules.keep_heights + 3)
            assert all(map(store.has_blob, digests))

    run_virtual(story())


def test_whoever_says_that_a_small_blob_is_large_does_not_take_it_from_others(tmp_path: Path) -> None:
    keys, genesis, store = make_store(tmp_path)
    with store:
        kept = Retention(store, RunSpecs.load(store), keys[0].id)
        small = PayloadRef(1, store.put_blob(SMALL), len(SMALL))
        kept.on_block(append(store, genesis, keys, small))
        claimed = PayloadRef(1, small.digest, len(LARGE))
        tip = store.head().block
        lie = make_contribution(genesis, keys[0], height=2, prev=tip.id, payloads=[claimed])
        kept.on_block(append(store, genesis, keys), seen=[lie])
        for _ in range(2 * genesis.rules.keep_heights):
            kept.on_block(append(store, genesis, keys))
        assert store.has_blob(small.digest)


@pytest.mark.outer
def test_large_blobs_go_over_a_hundred_rounds_of_crashes_and_latecomers(tmp_path: Path) -> None:
    rng = Random(1)

    async def story() -> list[int]:
        trainers = [ScriptedTrainer(i, TRAIN_S) for i in range(7)]
        weights: list[int] = []
        async with cluster(tmp_path, 7, trainers=trainers, start=EARLY) as net:
            while net["node0"].height < ROUNDS:
                late, killed = rng.sample(EARLY[1:], 2)
                set_pace(net, late, LATE_TRAIN_S)
                await net.wait_for_height(net["node0"].height + 3, "node0")
                set_pace(net, late, TRAIN_S)
                await net.crash(killed)
                await net.wait_for_height(net["node0"].height + rng.randint(0, 3), "node0")
                net.start(killed)
                await net.wait_for_height(net["node0"].height + 2, *EARLY)
                weights.append(max(count_bytes(net[name].path) for name in EARLY))
            await net.wait_for_height(net["node0"].height + net.genesis.rules.keep_heights + 1, *EARLY)
            assert {name: find_kept(net, name) for name in EARLY} == {name: {} for name in EARLY}
            # all that is needed is there: for who comes late, and for who comes back
            net.start(LATE)
            await net.wait_for_height(ROUNDS + 3)
            await net.crash("node1")
            net.start("node1")
            height = net["node0"].height
            await net.wait_for_height(height + net.genesis.rules.keep_heights + 2)
            blocks = [net["node0"].get_block(at) for at in range(height + 1, net["node0"].height + 1)]
            # not in each of them: for some rounds nobody waits for a member that was often late
            authors = {one.author for block in blocks for one in block.contributions}
            assert authors >= {net.id(LATE), net.id("node1")}
            net.check_agreement()
            assert find_kept(net, LATE) == {}
        return weights

    weights = run_virtual(story())
    print("bytes of blobs on the fullest disk:", weights)
    assert max(weights[len(weights) // 2 :]) <= 1.5 * max(weights[: len(weights) // 2])
