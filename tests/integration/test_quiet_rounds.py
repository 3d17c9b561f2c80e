"""Members are in sight and no block comes: each says so, and what it waits for, but never of a slow round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from chain.block import Digest, Id
from node.consensus.service import RoundService
from node.p2p.transport.base import BlobNotFound, Message, MessageKind
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.memory_transport import MemoryNetwork, MemoryTransport
from support.federation.virtual_time import run_virtual

NUM_BEFORE = 10  # blocks that say what is usual
ENOUGH_S = 60.0
LONG_S = 80.0  # many times longer than anything but a local phase may take


class SievedNetwork(MemoryNetwork):
    """Loses what `sieve` names from everybody, and blobs of `hidden` members, and carries all else."""

    sieve: frozenset[MessageKind] = frozenset()
    hidden: frozenset[Id] = frozenset()

    def transport(self, me: Id) -> MemoryTransport:
        transport = self._transports[me] = _Sieved(self, me)
        self.settle()
        return transport


class _Sieved(MemoryTransport):
    def __init__(self, network: SievedNetwork, me: Id) -> None:
        super().__init__(network, me)
        self._sieved = network

    def post(self, peer: Id, message: Message) -> None:
        if message.kind not in self._sieved.sieve:
            super().post(peer, message)

    async def fetch_blob(
        self, peer: Id, digest: Digest, offset: int = 0, *, max_bytes: int = 1 << 32
    ) -> AsyncGenerator[bytes, None]:
        if peer in self._sieved.hidden:
            raise BlobNotFound(digest.hex())
        async for chunk in super().fetch_blob(peer, digest, offset, max_bytes=max_bytes):
            yield chunk


def get_service(net: Cluster, name: str = "node0") -> RoundService:
    service = net[name].service
    assert service is not None
    return service


def get_network(net: Cluster) -> SievedNetwork:
    assert isinstance(net.network, SievedNetwork)
    return net.network


def get_stalls(net: Cluster) -> list[str]:
    """All that any node has ever said of a stall."""
    services = (node.service for node in net.nodes.values())
    kept = (event for service in services if service is not None for event in service.events.kept)
    return [event.data["reason"] for event in kept if event.kind == "stall"]


async def wait_for_stall(net: Cluster) -> str:
    service = get_service(net)
    async with asyncio.timeout(ENOUGH_S):
        while service.stall is None:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.5)
    return service.stall


def test_votes_that_do_not_come_are_missed_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, network_class=SievedNetwork) as net:
            await net.wait_for_height(NUM_BEFORE)
            began_s = net["node0"].clock.monotonic()
            get_network(net).sieve = frozenset({MessageKind.VOTE})
            said = await wait_for_stall(net)
            print(f"after {net['node0'].clock.monotonic() - began_s:.0f} s: {said}")
            height = get_service(net).tip.height + 1
            assert said.startswith(f"height {height}: no block for ")
            assert " s, usually " in said
            assert "; phase vote, waiting for prevotes of node1, node2, node3 in view " in said
            get_network(net).sieve = frozenset()
            await net.wait_for_height(height + 1)
            await net.wait_for(lambda: all(get_service(net, name).stall is None for name in net.nodes), "no stall")

    run_virtual(story())


def test_payloads_that_nobody_gives_are_missed_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, network_class=SievedNetwork) as net:
            await net.wait_for_height(NUM_BEFORE)
            get_network(net).sieve = frozenset({MessageKind.PAYLOAD})
            get_network(net).hidden = frozenset(net.id(name) for name in net.nodes)
            said = await wait_for_stall(net)
            assert "phase exchange, waiting for payloads of node1, node2, node3" in said
            get_network(net).hidden = frozenset()
            await net.wait_for_height(net["node0"].height + 2)
            await net.wait_for(lambda: get_service(net).stall is None, "no stall")

    run_virtual(story())


def test_contributions_that_were_made_and_do_not_come_are_missed(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, network_class=SievedNetwork) as net:
            await net.wait_for_height(NUM_BEFORE)
            get_network(net).sieve = frozenset({MessageKind.CONTRIBUTION})
            assert "phase exchange, waiting for contributions of node1, node2, node3" in await wait_for_stall(net)

    run_virtual(story())


@pytest.mark.parametrize("slow", [(0, 1, 2, 3), (0, 1), pytest.param((0,), marks=pytest.mark.long)])
def test_a_local_phase_far_longer_than_usual_is_no_stall(tmp_path: Path, slow: tuple[int, ...]) -> None:
    """Whether all take so long, or two without whom nothing is finalised, or one that the others do not wait for."""

    async def story() -> None:
        trainers = [ScriptedTrainer(i) for i in range(4)]
        async with cluster(tmp_path, 4, trainers=trainers) as net:
            await net.wait_for_height(NUM_BEFORE)
            for index in slow:
                trainers[index].train_s = LONG_S
            height = max(node.height for node in net.nodes.values())
            await asyncio.sleep(1.5 * LONG_S)
            grown = min(node.height for node in net.nodes.values()) - height
            assert (0 < grown <= 2) == (len(slow) > 1), net.describe()
            assert get_stalls(net) == []

    run_virtual(story())


@pytest.mark.slow
def test_slow_mining_and_lost_messages_are_no_stall(tmp_path: Path) -> None:
    async def story(path: Path, num_blocks: int, **spec: object) -> None:
        async with cluster(path, 4, **spec) as net:  # type: ignore[arg-type]
            await net.wait_for_height(num_blocks, timeout_s=10_000)
            assert get_stalls(net) == []

    slow = {"difficulty": 4096, "min": 4096, "max": 4096, "target_ms": 1000}
    run_virtual(story(tmp_path / "slow", 3, pow=slow, hash_rate=100.0))
    run_virtual(story(tmp_path / "lossy", 8, seed=3, network={"loss": 0.3, "latency_s": (0.05, 0.15)}))


@pytest.mark.slow
def test_a_member_that_is_away_and_comes_back_is_no_reason_to_say_more(tmp_path: Path) -> None:
    """The quorum that is missing is told of, and nothing else once it is back."""

    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(NUM_BEFORE)
            await net.crash("node2")
            await net.crash("node3")
            assert "3 needed; missing node2, node3" in await wait_for_stall(net)
            await asyncio.sleep(LONG_S)
            net.start("node2")
            await net.wait_for(lambda: get_service(net).stall is None, "no stall")
            await net.wait_for_height(net["node0"].height + 5, "node0", "node1", "node2")
            assert all("missing" in reason for reason in get_stalls(net) if reason)

    run_virtual(story())
