"""A member whose whole data directory is put back from a backup: with `--after-restore` it contradicts nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from chain.block import Id
from chain.store.sqlite import SqliteStore
from node.consensus.signing.restored import RESTORED
from node.p2p.transport.base import PeerUnavailable
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.memory_transport import MemoryTransport
from support.federation.virtual_time import run_virtual
from support.federation.wiretap import TappedNetwork

pytestmark = pytest.mark.slow

SEEDS = range(3)


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


async def put_back(net: Cluster, backup: Path, name: str, *, told: bool) -> None:
    """The directory as it was, which knows nothing of what was signed since. Its model is older too, so that it trains
    something else."""
    node = net[name]
    node.trainer = ScriptedTrainer(99)
    await net.crash(name)
    shutil.rmtree(node.path)
    shutil.copytree(backup, node.path)
    if told:
        store = SqliteStore.open(node.path, net.genesis)
        store.put_meta(RESTORED, {"until": None})
        store.close()


async def live(path: Path, seed: int, *, told: bool) -> tuple[int, int]:
    """How many proofs there are against the member, and to how many of ten blocks it contributed afterwards.

    It goes when it has just contributed to a height for which the others still train.
    """
    trainers = [ScriptedTrainer(i, train_s=0.5 if i else 0.02) for i in range(4)]
    async with cluster(path / "nodes", 4, network_class=TappedNetwork, seed=seed, trainers=trainers) as net:
        await net.wait_for_height(2)
        await net.crash("node0")
        shutil.copytree(net["node0"].path, path / "backup")
        net.start("node0")
        await net.wait_for_height(6)
        await net.wait_for(lambda: has_contributed(net, "node0"), "node0 to contribute")
        await put_back(net, path / "backup", "node0", told=told)
        net.start("node0")
        height = net["node1"].height
        await net.wait_for_height(height + 14)
        net.check_agreement()
        proofs = max(len(node.store.get_evidence()) for node in net.nodes.values() if node.store is not None)
        blocks = [net["node1"].get_block(at) for at in range(height + 5, height + 15)]
        took_part = sum(net.id("node0") in {each.author for each in block.contributions} for block in blocks)
        if told:
            tap = net.network
            assert isinstance(tap, TappedNetwork)
            tap.check()
        return proofs, took_part


def has_contributed(net: Cluster, name: str) -> bool:
    store = net[name].store
    return store is not None and store.get_contribution(net[name].height + 1) is not None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_that_is_told_contradicts_nothing_and_takes_part_again(tmp_path: Path, seed: int) -> None:
    proofs, took_part = run_virtual(live(tmp_path, seed, told=True))
    assert proofs == 0
    assert took_part >= 8


def test_one_that_is_not_told_convicts_itself(tmp_path: Path) -> None:
    """What the option is for."""
    assert run_virtual(live(tmp_path, 0, told=False)) == (1, 0)  # it is left out from then on


async def wait_s(net: Cluster, seconds: float) -> None:
    until_s = net["node1"].clock.monotonic() + seconds
    await net.wait_for(lambda: net["node1"].clock.monotonic() >= until_s, f"{seconds:g} s")


@pytest.mark.slow
def test_it_stays_silent_over_restarts_and_while_nobody_is_in_sight(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, network_class=TappedNetwork, seed=11) as net:
            await net.wait_for_height(3)
            await net.crash("node0")
            shutil.copytree(net["node0"].path, tmp_path / "backup")
            await put_back(net, tmp_path / "backup", "node0", told=True)
            others = [f"node{i}" for i in (1, 2, 3)]
            net.partition(["node0"], others)
            for _ in range(2):
                net.start("node0")
                service = net["node0"].service
                assert service is not None
                await wait_s(net, 10.0)
                assert service.restored.is_silent_at(10**9)
                assert service.machine is not None
                assert service.machine.voting.me is None
                await net.crash("node0")
            net.heal()
            net.start("node0")
            height = net["node1"].height
            await net.wait_for_height(height + 8)
            assert net["node0"].service is not None
            assert net["node0"].service.restored.describe() is None

    run_virtual(story())


def test_it_stays_silent_while_all_who_are_ahead_have_failed_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom it has asked in vain it no longer waits for; that they are ahead is true all the same."""
    monkeypatch.setattr("node.consensus.gossip.sync.SLICE", 1)
    asked, request = set[tuple[int, Id]](), MemoryTransport.request_blocks

    async def fail_first(transport: MemoryTransport, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        if (id(transport), peer) in asked:
            return await request(transport, peer, first, count)
        asked.add((id(transport), peer))
        raise PeerUnavailable("not yet")

    monkeypatch.setattr(MemoryTransport, "request_blocks", fail_first)

    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, seed=5) as net:
            await net.wait_for_height(2)
            await net.crash("node0")
            shutil.copytree(net["node0"].path, tmp_path / "backup")
            net.start("node0")
            await net.wait_for_height(14)
            height = net["node1"].height
            await put_back(net, tmp_path / "backup", "node0", told=True)
            net.start("node0")
            service = net["node0"].service
            assert service is not None
            await net.wait_for(lambda: service.restored.describe() is None, "node0 to sign again")
            assert net["node0"].height >= height + 2

    run_virtual(story())


def test_where_all_members_have_to_vote_it_says_that_the_federation_stands_still(tmp_path: Path) -> None:
    """Its silence lasts until two heights have passed without it, and none can."""

    async def story() -> None:
        async with cluster(tmp_path / "nodes", 3, seed=7) as net:
            await net.wait_for_height(2)
            await net.crash("node0")
            shutil.copytree(net["node0"].path, tmp_path / "backup")
            await put_back(net, tmp_path / "backup", "node0", told=True)
            net.start("node0")
            service = net["node0"].service
            assert service is not None
            height = service.tip.height
            await wait_s(net, 60.0)
            assert service.tip.height == height
            silence = service.opener.describe_silence(service.tip.state)
            assert silence is not None
            assert silence.startswith("put back from a backup: it signs nothing ")
            assert silence.endswith(
                "But all members have to vote here, so that none passes without it: put back the data directory it "
                "had, or begin a new chain with fednode genesis fork"
            )

    run_virtual(story())
