"""The late audit: blocks that were followed on a quorum's word are recomputed when their blobs arrive (PROTOCOL §9)."""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path

import pytest

from chain import codec
from chain.audit import write_export
from chain.block import Block, PayloadRef
from chain.genesis import Genesis
from chain.store.interface import IMPORTED
from chain.store.sqlite import SqliteStore
from ml.payload import KINDS
from node.consensus.height.halted import Halted
from node.ledger.audit import run_audit
from node.ledger.importing import import_chain
from node.payloads.retention import LARGE_BYTES, Retention
from node.runs.specs import RunSpecs
from support.data.chains import (
    make_candidate,
    make_certificate,
    make_contribution,
    make_digest,
    make_genesis,
    make_keys,
)
from support.faults.liar import lying
from support.federation.cluster import Cluster, cluster, make_prototypes
from support.federation.virtual_time import run_virtual


def get_not_held(net: Cluster, name: str) -> list[int]:
    store = net[name].store
    assert store is not None
    report = run_audit(net.genesis, store, deep=True)
    assert report.ok, report
    return list(report.not_held)


def test_a_late_joiner_comes_to_hold_and_recompute_every_height(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=6, start=["node0", "node1", "node2"]) as net:
            await net.wait_for_height(6, "node0", "node1", "node2")
            net.start("node3")
            await net.wait_for_height(6, "node3")
            await net.wait_for(lambda: not get_not_held(net, "node3"), "node3 to hold every blob")

    run_virtual(story())


@pytest.mark.slow
def test_blobs_that_nobody_has_any_more_leave_the_height_unaudited_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=4, start=["node0", "node1", "node2"]) as net:
            await net.wait_for_height(4, "node0", "node1", "node2")
            gone = net["node0"].get_block(2).contributions[0].payloads[0].digest
            for name in ("node0", "node1", "node2"):
                store = net[name].store
                assert store is not None
                assert store.delete_blob(gone)
            net.start("node3")
            await net.wait_for(lambda: get_not_held(net, "node3") == [2], "node3 to hold all that can be had")
            assert net["node3"].failure is None

    run_virtual(story())


def test_a_certified_block_with_a_wrong_aggregate_halts_whoever_recomputes_it(tmp_path: Path) -> None:
    """All members but node0 collude: their certificate is followed, and found out."""

    async def story() -> None:
        keys = make_keys(4)
        async with cluster(tmp_path, 4, start=["node0"]) as net, lying(net, "node3") as liar:
            block, blobs = make_block_with(net.genesis, aggregate=make_digest("wrong"))
            liar.blobs |= blobs
            proof = (
                codec.encode_block(block),
                codec.encode_certificate(make_certificate(net.genesis, block, keys[1:])),
            )
            liar.blocks = lambda first, count: [proof] if first == 1 else []
            liar.send(liar.make_status(head_height=1, head_id=block.id, height=2))
            await net.wait_for(lambda: net["node0"].height == 1 or net["node0"].failure is not None, "node0 to follow")
            await check_halt(net)

    run_virtual(story())


async def check_halt(net: Cluster) -> None:
    """node0 ends, since block 1 is not what a quorum has said."""
    with pytest.raises(AssertionError):
        await net.wait_for(lambda: False, "node0 to halt")
    failure = net["node0"].failure
    assert isinstance(failure, BaseExceptionGroup)
    halted = failure.subgroup(Halted)
    assert halted is not None
    assert "height 1: certified, but" in str(halted.exceptions[0])


def make_block_with(genesis: Genesis, aggregate: bytes) -> tuple[Block, dict[bytes, bytes]]:
    """Block 1 with real payloads of the last three members, and those payloads by digest."""
    keys = make_keys(4)
    blobs: dict[bytes, bytes] = {}
    contributions = []
    for i, key in enumerate(keys[1:]):
        data = make_prototypes(i, 1)
        digest = hashlib.sha256(data).digest()
        blobs[digest] = data
        ref = PayloadRef(KINDS["prototypes"], digest, len(data))
        contributions.append(make_contribution(genesis, key, payloads=[ref]))
    return make_candidate(
        genesis, genesis.block0, keys, miner=1, contributions=contributions, aggregate=aggregate
    ), blobs


def test_large_blobs_go_when_their_height_is_old_and_small_ones_stay(tmp_path: Path) -> None:
    keys = make_keys(1)
    genesis = make_genesis(keys, min_contributions=1)
    large, small = bytes(LARGE_BYTES + 1), b"small"
    with SqliteStore.open(tmp_path / "data", genesis) as store:
        refs = [PayloadRef(1, store.put_blob(large), len(large)), PayloadRef(2, store.put_blob(small), len(small))]
        retention = Retention(store, RunSpecs.load(store), keys[0].id)
        parent = genesis.block0
        for height in range(1, genesis.rules.keep_heights + 2):
            payloads = refs if height == 1 else [PayloadRef(1, make_digest(f"{height}"), 1)]
            own = make_contribution(genesis, keys[0], height=height, prev=parent.id, payloads=payloads)
            block = make_candidate(genesis, parent, keys, contributions=[own])
            store.append(block, make_certificate(genesis, block, keys))
            parent = block
            assert retention.on_block(block) == (height == genesis.rules.keep_heights + 1)
        assert not store.has_blob(refs[0].digest)
        assert store.has_blob(refs[1].digest)


def test_what_was_imported_is_recomputed_once_the_node_runs(tmp_path: Path) -> None:
    """Also if the node that has not finished that is started again."""

    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=6, start=["node0", "node1", "node2"]) as net:
            await net.wait_for_height(6, "node0", "node1", "node2")
            source = net["node0"].store
            assert source is not None
            export = BytesIO()
            rows = source.read_rows(0, 6)
            write_export(export, net.genesis.chain_id, ((row.height, row.block, row.certificate) for row in rows))
            with SqliteStore.open(net["node3"].path, net.genesis) as store:
                export.seek(0)
                assert import_chain(net.genesis, store, export).appended == 6
                assert store.get_meta(IMPORTED) == {"first": 1, "last": 6}
            net.start("node3")
            await net.crash("node3")
            net.start("node3")
            await net.wait_for(lambda: not get_not_held(net, "node3"), "node3 to hold every blob")
            store3 = net["node3"].store
            assert store3 is not None
            await net.wait_for(lambda: store3.get_meta(IMPORTED) is None, "node3 to have recomputed all")

    run_virtual(story())


def test_an_imported_block_with_a_wrong_aggregate_halts_the_node(tmp_path: Path) -> None:
    async def story() -> None:
        keys = make_keys(4)
        async with cluster(tmp_path, 4, start=()) as net, lying(net, "node3") as liar:
            block, blobs = make_block_with(net.genesis, aggregate=make_digest("wrong"))
            liar.blobs |= blobs
            with SqliteStore.open(net["node0"].path, net.genesis) as store:
                store.append(block, make_certificate(net.genesis, block, keys[1:]))
                store.put_meta(IMPORTED, {"first": 1, "last": 1})
            net.start("node0")
            await check_halt(net)

    run_virtual(story())
