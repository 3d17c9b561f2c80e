"""Small payloads travel right behind their contribution: nobody asks for them, and nobody is believed for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chain.block import Id
from node.p2p.refusals import Reason
from node.p2p.transport.base import BLOB, KIND_NAMES, Message, MessageKind
from node.payloads.pushed import MAX_PUSHED_BYTES
from support.faults.liar import flip, lying, make_arrays
from support.federation import memory_transport
from support.federation.cluster import Cluster, cluster, make_prototypes
from support.federation.virtual_time import run_virtual
from support.federation.wiretap import TappedNetwork, TappedTransport

HONEST = ("node0", "node1", "node2")
PAYLOAD = KIND_NAMES[MessageKind.PAYLOAD]
IN_ORDER: dict[str, Any] = {"fifo": True, "latency_s": (0.002, 0.002)}  # as a stream is


@pytest.fixture(autouse=True)
def _in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent in one instant arrives in one, as it does over a stream."""
    monkeypatch.setattr(memory_transport, "TICK_S", 1e-12)


class _Lossy(TappedTransport):
    """Sends no payload."""

    def post(self, peer: Id, message: Message) -> None:
        if message.kind is not MessageKind.PAYLOAD:
            super().post(peer, message)


class LossyNetwork(TappedNetwork):
    def transport(self, me: Id) -> _Lossy:
        transport = self._transports[me] = _Lossy(self, me)
        self.settle()
        return transport


def count_received(net: Cluster, kind: str) -> int:
    """Messages, of all nodes."""
    transports = [net.network.find(net.id(name)) for name, node in net.nodes.items() if node.service is not None]
    counters = (
        traffic for transport in transports if transport is not None for traffic in transport.counters().values()
    )
    return sum(traffic.kinds[kind].messages_received for traffic in counters if kind in traffic.kinds)


def count_unwanted(net: Cluster, name: str, sender: str) -> int:
    service = net[name].service
    assert service is not None
    peer = service.peers.get(net.id(sender))
    assert peer is not None
    return peer.refusals[Reason.OTHER_HEIGHT]


def test_no_blob_is_asked_for_while_nothing_is_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, network=IN_ORDER) as net:
            await net.wait_for_height(2)  # in the first round members are still on their way to each other
            pulled = count_received(net, BLOB)
            await net.wait_for_height(8)
            assert all(len(net["node0"].get_block(height).contributions) == 4 for height in range(1, 9))
            assert count_received(net, PAYLOAD) >= 6 * 4 * 3
            assert count_received(net, BLOB) == pulled

    run_virtual(story())


def test_what_was_pushed_is_in_every_store_once_its_block_is_final(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, network=IN_ORDER) as net:
            await net.wait_for_height(3)
            for name, node in net.nodes.items():
                assert node.store is not None
                for height in (1, 2, 3):
                    for one in node.get_block(height).contributions:
                        assert all(node.store.has_blob(ref.digest) for ref in one.payloads), (name, height)

    run_virtual(story())


def test_what_is_lost_is_pulled(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, network=IN_ORDER, network_class=LossyNetwork) as net:
            await net.wait_for_height(6)
            assert all(len(net["node0"].get_block(height).contributions) == 4 for height in range(1, 7))
            assert count_received(net, PAYLOAD) == 0
            assert count_received(net, BLOB) > 0

    run_virtual(story())


def test_a_payload_counts_though_its_author_serves_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            cluster(tmp_path, 4, start=HONEST, train_s=0.3, network=IN_ORDER) as net,
            lying(net, "node3") as liar,
        ):
            data = make_prototypes(3, liar.height)
            contribution = liar.make_contribution(data)
            liar.blobs.clear()
            liar.send(contribution)
            liar.send(Message(MessageKind.PAYLOAD, data))
            height = contribution.height
            await net.wait_for_height(height, *HONEST)
            assert len(net["node0"].get_block(height).contributions) == 4

    run_virtual(story())


def test_other_bytes_than_the_signed_ones_are_not_wanted_and_hold_up_nobody(tmp_path: Path) -> None:
    """Too early, damaged, longer, empty, as large as may be, of nobody: each counts, and the round goes on with what is
    pulled."""

    async def story() -> None:
        async with (
            cluster(tmp_path, 4, start=HONEST, train_s=0.3, network=IN_ORDER) as net,
            lying(net, "node3") as liar,
        ):
            data = make_prototypes(3, liar.height)
            contribution = liar.make_contribution(data)
            forged = [data, flip(data, 77), data + b"\0", b"", bytes(MAX_PUSHED_BYTES), make_arrays(value=7.0)]
            liar.send(Message(MessageKind.PAYLOAD, forged[0]))
            liar.send(contribution)
            for each in forged[1:]:
                liar.send(Message(MessageKind.PAYLOAD, each))
            await net.wait_for(lambda: count_unwanted(net, "node0", "node3") == len(forged), "all of it to be refused")
            height = contribution.height
            await net.wait_for_height(height + 2, *HONEST)
            assert len(net["node0"].get_block(height).contributions) == 4  # it serves what it has signed
            assert not liar.is_refused_by("node0")

    run_virtual(story())


def test_a_flood_of_payloads_is_held_by_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            cluster(tmp_path, 4, start=HONEST, train_s=0.3, network=IN_ORDER) as net,
            lying(net, "node3") as liar,
        ):
            liar.send(liar.make_contribution())
            for i in range(200):
                liar.send(Message(MessageKind.PAYLOAD, i.to_bytes(4, "big") * 1000))
                await asyncio.sleep(0.001)
            await net.wait_for_height(net["node0"].height + 3, *HONEST)
            assert count_unwanted(net, "node0", "node3") >= 200

    run_virtual(story())
