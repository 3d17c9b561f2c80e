"""Upgrades of the protocol, on virtual time: one that all speak, and one that a node's release does not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from chain import protocol
from chain.audit import verify_chain
from chain.changes.rules import Upgrade
from node.consensus.governance.upgrade import ReleaseTooOld, describe_upgrade
from node.errors import InvalidRequest
from support.federation.cluster import Cluster, Node, cluster
from support.federation.proposing import approve, check_chains, get_service, get_state, propose
from support.federation.virtual_time import run_virtual


def describe(net: Cluster, name: str) -> str | None:
    service = get_service(net, name)
    return describe_upgrade(service.proposals, service.peers, service.tip.state.q)


def get_versions(net: Cluster) -> list[int]:
    node = net["node0"]
    return [node.get_block(height).header.version for height in range(1, node.height + 1)]


async def wait_until_one_stops(net: Cluster) -> list[Node]:
    """Those that have stopped: the others may lack the votes that those took with them."""
    tasks = [node.task for node in net.nodes.values() if node.task is not None]
    async with asyncio.timeout(120):
        for ended in islice(asyncio.as_completed(tasks), 1):
            with suppress(ExceptionGroup):
                await ended
    return [node for node in net.nodes.values() if node.failure is not None]


def test_rounds_go_on_under_a_protocol_that_all_speak(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, protocol=2) as net:
            await net.wait_for_height(1)
            at = net["node0"].height + 4
            change_id = await propose(net, "node0", Upgrade(3), first=at)
            await approve(net, change_id, "node1", "node2")
            assert describe(net, "node3") is None
            await net.wait_for_height(at + 3)
            assert get_versions(net)[: at + 3] == [2] * at + [3] * 3
            assert net["node0"].get_block(at).change is not None
            assert get_state(net, "node3").protocol == 3
            check_chains(net)

    run_virtual(story())


def test_a_release_that_does_not_speak_it_says_so_and_stops_before_it_signs_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "SPOKEN", (2, 3))

    async def story() -> None:
        async with cluster(tmp_path, 4, protocol=2) as net:
            await net.wait_for_height(1)
            at = net["node0"].height + 6
            change_id = await propose(net, "node0", Upgrade(3), first=at)
            await approve(net, change_id, "node1", "node2")
            await net.wait_for_height(at - 3)
            monkeypatch.setattr(protocol, "SPOKEN", (2,))
            said = describe(net, "node3")
            assert said is not None
            assert f"protocol 3 is agreed on from height {at} on" in said
            assert "node0" in said  # who spoke it when it last told
            with pytest.raises(InvalidRequest, match="approve it once this node runs one that speaks it"):
                await get_service(net, "node3").proposals.approve(change_id)
            stopped = await wait_until_one_stops(net)
            for node in stopped:
                assert isinstance(node.failure, BaseExceptionGroup)
                (error,) = node.failure.exceptions
                assert isinstance(error, ReleaseTooOld)
                assert f"protocol 3 is in force from height {at + 1} on" in str(error)
                assert node.height == at
                assert node.store is not None
                assert verify_chain(net.genesis, node.store).ok
                assert node.store.get_signed_height() == at
            monkeypatch.setattr(protocol, "SPOKEN", (2, 3))
            for name in tuple(net.nodes):
                await net.crash(name)
                net.start(name)
            await net.wait_for_height(at + 2)
            check_chains(net)

    run_virtual(story())
