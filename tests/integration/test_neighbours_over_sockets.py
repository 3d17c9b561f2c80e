"""Many members over real connections, each with a few neighbours: `test_neighbours` in real time, with TLS.

Thirteen members on two rings: each has four neighbours at most, and some are three steps from each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chain.block import Id
from node.p2p import overlay
from support.federation.cluster import Cluster, cluster
from support.federation.pulling import UAPDFL, taking
from support.federation.reach import count_messages, get_service
from support.federation.socket_network import SocketNetwork

N = 13
NAMES = [f"node{i}" for i in range(N)]
NUM_NEIGHBOURS = 4
MESH_MAX = 4


@pytest.fixture(autouse=True)
def _few_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "NUM_RINGS", NUM_NEIGHBOURS // 2)
    monkeypatch.setattr(overlay, "NUM_EAGER", NUM_NEIGHBOURS // 2)


def start_all(net: Cluster, mesh_max: Mapping[str, int] | None = None) -> None:
    for name in NAMES:
        net.mesh_max = (mesh_max or {}).get(name, MESH_MAX)
        net.start(name)


@asynccontextmanager
async def sockets(path: Path, *, dial_out: Collection[int] = (), **mesh_max: int) -> AsyncIterator[Cluster]:
    """All run; those named have another `mesh_max` than MESH_MAX."""
    network = {"num_members": N, "dial_out": dial_out}
    async with cluster(path, N, start=[], network_class=SocketNetwork, network=network) as net:
        start_all(net, mesh_max)
        yield net


def get_connected(net: Cluster, name: str) -> set[Id]:
    service = get_service(net, name)
    return {net.id(other) for other in NAMES if other != name and service.peers.is_connected(net.id(other))}


def get_authors(net: Cluster, name: str, height: int) -> set[str]:
    authors = {contribution.author for contribution in net[name].get_block(height).contributions}
    return {name for name in NAMES if net.id(name) in authors}


async def wait_for_all(net: Cluster, *names: str) -> int:
    """Until these nodes have a block that all members have contributed to; its height."""

    def is_there() -> bool:
        return len(get_authors(net, "node0", least())) == N

    def least() -> int:
        return max(1, min(net[name].height for name in names or NAMES))

    await net.wait_for_height(1, *names)
    await net.wait_for(is_there, "a block with everybody's contribution")
    return least()


@pytest.mark.slow
async def test_all_contribute_and_agree_over_four_connections_each(tmp_path: Path) -> None:
    async with sockets(tmp_path) as net:
        height = await wait_for_all(net)
        await net.wait_for_height(height + 3)
        net.check_agreement()
        for later in range(height, height + 4):
            assert get_authors(net, "node5", later) == set(NAMES)
        assert all(len(get_connected(net, name)) <= NUM_NEIGHBOURS for name in NAMES)
        assert count_messages(net, "bundle") > 0
        assert count_messages(net, "vote") == 0
        assert all(get_service(net, name).peers.count_alive_members() == N for name in NAMES)


@pytest.mark.slow
async def test_the_others_go_on_without_one_that_is_gone_and_it_catches_up(tmp_path: Path) -> None:
    async with sockets(tmp_path) as net:
        await wait_for_all(net)
        await net.crash("node6")
        others = [name for name in NAMES if name != "node6"]
        height = net["node0"].height
        await net.wait_for_height(height + 3, *others)
        net.start("node6")
        await net.wait_for_height(height + 3, "node6")
        await net.wait_for(
            lambda: "node6" in get_authors(net, "node0", net["node0"].height), "a block that node6 contributed to"
        )
        net.check_agreement()


@pytest.mark.slow
async def test_models_of_members_that_are_no_neighbours_come_through_the_others(tmp_path: Path) -> None:
    waits = {"collect_s": 60.0}  # nobody is gone for being slow
    settings: dict[str, Any] = {"network": {"num_members": N}, "waits": waits}
    async with taking(tmp_path, N, UAPDFL, start=(), rounds=4, network_class=SocketNetwork, **settings) as fed:
        start_all(fed.net)
        await fed.net.wait_for(lambda: all(4 in fed.trainers[name].taken for name in NAMES), "round 4 to be taken")
        num_far = 0
        for height in range(2, 5):
            for name in NAMES:
                exchange, near = fed.get_exchange(name, height), get_connected(fed.net, name)
                assert exchange.gone == frozenset()
                assert exchange.blobs.keys() == fed.get_wanted(name, height)
                for offer in exchange.offers:
                    is_taken = not exchange.blobs.keys().isdisjoint(offer.digests.values())
                    num_far += is_taken and offer.author not in near and offer.author != fed.net.id(name)
        assert num_far > N  # of three heights


async def test_members_that_only_dial_out_contribute_though_some_are_next_to_each_other(tmp_path: Path) -> None:
    """As many as may be, with a third and one more that accept connections."""
    dial_out = range(N - (N - 1) // 3 - 1)
    async with sockets(tmp_path, dial_out=dial_out) as net:
        height = await wait_for_all(net)
        await net.wait_for_height(height + 3)
        net.check_agreement()
        assert get_authors(net, "node12", height + 3) == set(NAMES)
        for i in dial_out:
            assert not get_connected(net, f"node{i}") & {net.id(f"node{j}") for j in dial_out}


@pytest.mark.slow
async def test_members_of_which_each_has_set_for_itself_with_how_many_it_is_connected_agree(tmp_path: Path) -> None:
    everyone: dict[str, Any] = {"node0": N, "node7": N}
    async with sockets(tmp_path, **everyone) as net:
        height = await wait_for_all(net)
        await net.wait_for_height(height + 3)
        net.check_agreement()
        assert get_authors(net, "node3", height + 3) == set(NAMES)
        await net.wait_for(lambda: len(get_connected(net, "node0")) == N - 1, "node0 connected with all")
        assert any(len(get_connected(net, name)) < N - 1 for name in NAMES)
