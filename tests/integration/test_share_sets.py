"""Members share large sets once: how they travel, what becomes of them, and what an audit makes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from chain.block import Block, Contribution, Id
from chain.genesis import Genesis
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from ml.payload import CHUNK_BYTES, decode_arrays
from node.admin.wiring import make_view
from node.cli.node.status import describe
from node.config.genesis_file import get_genesis_spec
from node.consensus.service import RoundService
from node.ledger.audit import run_audit
from node.payloads.retention import Retention
from node.payloads.transfers import Transfer
from node.pb import admin_pb2 as pb
from node.runs.specs import RunSpecs
from support.data.chains import make_candidate, make_certificate, make_contribution, make_genesis, make_keys
from support.federation.asked import make_book, make_config
from support.federation.cluster import INITIAL_MODEL, Cluster
from support.federation.sharing import FEDEDS, MODEL, Slow, get_held, get_trainer, make_list, make_set, sharing
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

ALL = [f"node{i}" for i in range(4)]
SMALL = 100  # samples of a set that has one chunk and could be kept for ever, were it not of samples
OVER = 3  # the height from which on no round reads sets any more: lambda_dis is above 0 for t = 1 and 2


def get_service(net: Cluster, name: str) -> RoundService:
    service = net[name].service
    assert service is not None
    return service


def get_slow(net: Cluster, name: str) -> Slow:
    service = net[name].service
    assert isinstance(service, Slow)
    return service


async def show_status(net: Cluster, name: str, path: Path) -> pb.NodeStatus:
    service = get_service(net, name)
    return await make_view(service, net[name].get_context(), make_config(path), make_book()).get_status()


def audit(genesis: Genesis, store: SqliteStore | None) -> pb.VerifyReport:
    assert store is not None
    return run_audit(genesis, store, deep=True)


def start_slow(net: Cluster, *names: str, rest_s: float = 1.0) -> None:
    for name in names:
        net.start(name, lambda context: Slow(context, rest_s))


def test_sets_are_shared_read_for_as_long_as_rounds_need_them_and_then_go(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, num_samples=SMALL) as net:
            await net.wait_for_height(1)
            assert {name: get_held(net, name) for name in ALL} == dict.fromkeys(ALL, ALL)
            await net.wait_for(lambda: all(2 in get_trainer(net, name).shared for name in ALL), "training with sets")
            assert all(get_trainer(net, name).shared[2].files for name in ALL)
            await net.wait_for_height(OVER - 1)
            for name in ALL:
                if net[name].height < OVER:
                    assert get_held(net, name) == ALL
            await net.wait_for_height(OVER + 1)
            assert not any(get_held(net, name) for name in ALL)
            for name in ALL:  # without them there is still nothing that cannot be recomputed
                report = audit(net.genesis, net[name].store)
                assert report.ok, report
                assert list(report.not_held) == []
                assert report.recomputed == report.last >= OVER

    run_virtual(story())


def test_sets_that_are_to_be_kept_stay_over_restarts(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, method={"keep_sets": True}, num_samples=SMALL) as net:
            await net.wait_for_height(OVER)
            await net.crash("node1")
            net.start("node1")
            await net.wait_for_height(OVER + 2)
            assert {name: get_held(net, name) for name in ALL} == dict.fromkeys(ALL, ALL)
            report = audit(net.genesis, net["node1"].store)
            assert (report.ok, list(report.not_held)) == (True, [])

    run_virtual(story())


def test_a_node_that_was_down_when_the_need_ended_lets_them_go_later(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, num_samples=SMALL) as net:
            await net.wait_for_height(1)
            await net.crash("node1")
            held = [path.name for path in (tmp_path / "node1" / "blobs").glob("??/*")]
            assert get_trainer(net, "node0").made.digest.hex() in held
            await net.wait_for_height(OVER + 2, "node0", "node2", "node3")
            net.start("node1")
            await net.wait_for_height(OVER + 2, "node1")
            await net.wait_for(lambda: get_held(net, "node1") == [], "node1 to let go of the sets")

    run_virtual(story())


@pytest.mark.parametrize("keeps", [True, False])
def test_who_comes_late_gets_the_sets_if_they_are_still_needed(tmp_path: Path, keeps: bool) -> None:
    async def story() -> None:
        early = ALL[:3]
        settings: dict[str, Any] = {"start": early, "rounds": OVER + 2, "num_samples": SMALL}
        async with sharing(tmp_path, 4, method={"keep_sets": keeps}, **settings) as net:
            await net.wait_for_height(OVER + 2, *early)
            net.start("node3")
            await net.wait_for_height(OVER + 2, "node3")
            expected = early if keeps else []
            await net.wait_for(lambda: get_held(net, "node3") == expected, f"node3 to hold the sets of {expected}")
            await net.wait_for(
                lambda: not audit(net.genesis, net["node3"].store).not_held, "node3 to recompute every height"
            )
            assert net["node3"].failure is None

    run_virtual(story())


def test_sets_that_take_longer_than_the_wait_for_contributions_come_late_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        early, waits = ALL[:3], {"collect_s": 2.0}
        async with sharing(tmp_path, 4, method={"keep_sets": True}, start=(), rounds=OVER, waits=waits) as net:
            start_slow(net, *early)
            await net.wait_for_height(OVER, *early)
            net.start("node3")
            await net.wait_for_height(OVER, "node3")
            await net.wait_for(lambda: set(early) <= set(get_held(net, "node3")), "node3 to hold the sets")
            await net.wait_for(
                lambda: not audit(net.genesis, net["node3"].store).not_held, "node3 to recompute every height"
            )

    run_virtual(story())


# ---- under way


def test_a_transfer_is_seen_from_both_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, start=["node0", "node1"]) as net:
            await net.crash("node0")
            start_slow(net, "node0", rest_s=3.0)
            digest = get_trainer(net, "node0").made.digest

            def find(name: str, *, is_incoming: bool) -> list[Transfer]:
                of_set = [transfer for transfer in get_service(net, name).transfers if transfer.digest == digest]
                return [transfer for transfer in of_set if transfer.is_incoming is is_incoming]

            await net.wait_for(lambda: bool(find("node1", is_incoming=True)), "node1 to pull the set")
            await net.wait_for(lambda: find("node1", is_incoming=True)[0].done >= CHUNK_BYTES, "a chunk of it")
            (coming,), (going,) = find("node1", is_incoming=True), find("node0", is_incoming=False)
            assert (coming.peer, going.peer) == (net.id("node0"), net.id("node1"))
            assert coming.total == going.total == len(get_trainer(net, "node0").made.data)
            assert coming.named == going.named
            assert coming.named is not None
            assert (coming.named.kind, coming.named.author) == ("encrypted_set", net.id("node0"))
            for name, peer, incoming in (("node1", "node0", True), ("node0", "node1", False)):
                status = await show_status(net, name, tmp_path)
                (shown,) = [transfer for transfer in status.transfers if transfer.digest == digest.hex()]
                assert (shown.incoming, shown.peer, shown.peer_name) == (incoming, encode_id(net.id(peer)), peer)
                assert (shown.kind, shown.author_name) == ("encrypted_set", "node0")
                assert (shown.bytes, shown.resumed, shown.total_bytes) == (CHUNK_BYTES, 0, coming.total)
                way = f"{'from' if incoming else 'to'} {peer}"
                told = dict(describe(status))["transfers"]
                assert told.startswith(f"encrypted set of node0 {way}, 1.0 MB of 2.7 MB, ")
            await net.wait_for(lambda: "node0" in get_held(net, "node1"), "node1 to have it")
            await net.wait_for(lambda: not find("node0", is_incoming=False), "the end of it")

    with caplog.at_level(logging.INFO, "node.payloads.transfers"):
        run_virtual(story())
    lines = [line for line in caplog.messages if line.startswith("encrypted set of node0 ")]
    assert "encrypted set of node0 to node1  began at 0.0 of 2.7 MB" in lines
    assert "encrypted set of node0 from node0  began at 0.0 of 2.7 MB" in lines
    assert "encrypted set of node0 to node1  2.1 of 2.7 MB" in lines
    assert "encrypted set of node0 from node0  done, 2.7 of 2.7 MB in 9.0 s" in lines


def test_a_node_that_dies_in_the_middle_goes_on_from_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, start=()) as net:
            start_slow(net, "node0")
            net.start("node1")
            digest = get_trainer(net, "node0").made.digest
            partials = (tmp_path / "node1" / "blobs" / "tmp").glob
            await net.wait_for(
                lambda: any(path.stat().st_size == CHUNK_BYTES for path in partials(f"{digest.hex()}.*")), "a chunk"
            )
            await net.crash("node1")
            net.start("node1")
            await net.wait_for(lambda: "node0" in get_held(net, "node1"), "node1 to have the set")
            asked = [offset for _, wanted, offset in get_slow(net, "node0").asked if wanted == digest]
            assert asked == [0, CHUNK_BYTES]

    run_virtual(story())


def test_a_wrong_chunk_of_its_author_costs_that_chunk_and_the_rest_comes_from_others(tmp_path: Path) -> None:
    """node0 serves node1 well, and the others a set whose second chunk is not what it signed."""

    async def story() -> None:
        async with sharing(tmp_path, 4, start=()) as net:
            favoured = net.id("node1")

            def spoil(peer: Id, position: int, chunk: bytes) -> bytes:
                return chunk if peer == favoured or position < CHUNK_BYTES else bytes(len(chunk))

            start_slow(net, *ALL, rest_s=0.5)
            get_slow(net, "node0").spoil = spoil
            await net.wait_for_height(1)
            authors = {contribution.author for contribution in net["node0"].get_block(1).contributions}
            assert authors == {net.id(name) for name in ALL}
            digest = get_trainer(net, "node0").made.digest
            misled = {net.id("node2"), net.id("node3")}
            asked = {
                name: sorted((peer, at) for peer, wanted, at in get_slow(net, name).asked if wanted == digest)
                for name in ALL
            }
            assert [entry for entry in asked["node0"] if entry[0] in misled] == sorted((peer, 0) for peer in misled)
            elsewhere = [entry for name in ALL[1:] for entry in asked[name] if entry[0] in misled]
            assert {at for _, at in elsewhere} == {CHUNK_BYTES}

    run_virtual(story())


def test_an_author_whose_list_is_wrong_is_left_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, method={"share_collect_s": 20.0}) as net:
            liar = get_trainer(net, "node3")
            digests = decode_arrays(liar.made.list_data, len(liar.made.list_data))["digests"].copy()
            digests[2] ^= 1
            liar.made = replace(liar.made, list_data=make_list(digests))
            await net.wait_for_height(1)
            authors = {contribution.author for contribution in net["node0"].get_block(1).contributions}
            assert authors == {net.id(name) for name in ALL[:3]}
            await net.crash("node1")
            net.start("node1")
            await net.wait_for_height(OVER)
            assert "node3" not in get_held(net, "node3")
            for name in ALL:  # what there was of it is of no use to anyone
                assert not list((tmp_path / name / "blobs" / "tmp").iterdir())

    run_virtual(story())


# ---- audit


def make_genesis_of_sets() -> Genesis:
    initial = sha256(INITIAL_MODEL).hexdigest()
    return make_genesis(make_keys(4), method=FEDEDS, model=MODEL, initial_model=initial)


class Shared:
    """A store with the block of a sharing round, whose sets and lists it holds."""

    def __init__(self, path: Path, change: Callable[[int, Contribution], Contribution] = lambda i, c: c) -> None:
        self.keys = make_keys(4)
        self.genesis = make_genesis_of_sets()
        self.made = [make_set(i) for i in range(4)]
        self.store = SqliteStore.open(path, self.genesis)
        self.aggregate = self.store.put_blob(INITIAL_MODEL)
        contributions = []
        for i, (key, made) in enumerate(zip(self.keys, self.made, strict=True)):
            self.store.put_blob(made.data)
            self.store.put_blob(made.list_data)
            contributions.append(change(i, make_contribution(self.genesis, key, payloads=made.get_refs())))
        self.block = self.append(self.genesis.block0, contributions)

    def append(self, parent: Block, contributions: list[Contribution]) -> Block:
        block = make_candidate(self.genesis, parent, self.keys, contributions=contributions, aggregate=self.aggregate)
        self.store.append(block, make_certificate(self.genesis, block, self.keys))
        return block

    def audit(self) -> pb.VerifyReport:
        return audit(self.genesis, self.store)

    def damage(self, digest: bytes) -> None:
        path = self.store.blob_path(digest)
        data = bytearray(path.read_bytes())
        data[CHUNK_BYTES + 3 if len(data) > CHUNK_BYTES else 3] ^= 1
        path.write_bytes(data)


def test_an_audit_recomputes_a_sharing_round_with_its_sets_and_without(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    with shared.store as store:
        for gone in (None, shared.made[1].digest, shared.made[2].get_refs()[1].digest, shared.made[0].digest):
            if gone is not None:
                assert store.delete_blob(gone)
            report = shared.audit()
            assert report.ok, report
            assert (report.recomputed, list(report.not_held)) == (1, [])


def test_an_audit_names_a_set_that_was_damaged(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    with shared.store:
        shared.damage(shared.made[2].digest)
        report = shared.audit()
        assert not report.ok
        assert report.fault.height == 1
        assert shared.made[2].digest.hex() in report.fault.what


def test_an_audit_finds_a_list_that_does_not_fit_its_set(tmp_path: Path) -> None:
    key = make_keys(4)[1]
    made = make_set(1)
    digests = decode_arrays(made.list_data, len(made.list_data))["digests"].copy()
    digests[1] ^= 1
    listed = make_list(digests)

    def change(i: int, contribution: Contribution) -> Contribution:
        refs = made.get_refs(list_data=listed)
        return make_contribution(make_genesis_of_sets(), key, payloads=refs) if i == 1 else contribution

    shared = Shared(tmp_path, change)
    with shared.store as store:
        assert shared.audit().ok  # the list is not held: nothing can be said
        store.put_blob(listed)
        report = shared.audit()
        assert "chunk 1 of 3 has another digest than its author signed" in report.fault.what


def test_an_audit_finds_a_set_that_is_none(tmp_path: Path) -> None:
    key, bad = make_keys(4)[3], make_set(3, label=0.3)

    def change(i: int, contribution: Contribution) -> Contribution:
        return make_contribution(make_genesis_of_sets(), key, payloads=bad.get_refs()) if i == 3 else contribution

    shared = Shared(tmp_path, change)
    with shared.store as store:
        store.put_blob(bad.data)
        assert "expected rows that sum to 1" in shared.audit().fault.what


# ---- retention


def test_a_sharing_rounds_blobs_go_with_the_last_round_that_reads_them(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    spec, me = get_genesis_spec(shared.genesis), shared.keys[0].id
    assert spec.needed_until(1) == OVER
    with shared.store as store:
        retention = Retention(store, RunSpecs.load(store), me)
        parent = shared.block
        for height in (2, 3):
            assert all(store.has_blob(made.digest) for made in shared.made)
            partial, _ = store.open_partial(shared.made[0].digest, "0123")
            contributions = [
                make_contribution(shared.genesis, key, height=height, prev=parent.id) for key in shared.keys
            ]
            parent = shared.append(parent, contributions)
            if height == OVER - 1:
                assert retention.on_block(parent) == 0
                retention = Retention(store, RunSpecs.load(store), me)  # a new life
            else:
                assert retention.on_block(parent) == len(shared.made)
        assert not any(store.has_blob(made.digest) for made in shared.made)
        assert all(store.has_blob(made.get_refs()[1].digest) for made in shared.made)
        assert not partial.exists()
        assert store.has_blob(shared.aggregate)
        assert Retention(store, RunSpecs.load(store), me).on_block(parent) == 0  # there is nothing left to let go
