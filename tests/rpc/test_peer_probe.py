"""Asking a peer who it is, over real sockets: the right one answers, and every other outcome has its own name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from chain.block import Id
from chain.genesis import PROTOCOL_VERSION
from chain.signing import SigningKey, encode_id
from node.p2p import probe as peer_probe
from node.p2p.admission import Admission
from node.p2p.probe import Greeting, NotReached, Refused, WrongPeer, identify_server, probe_peer
from node.p2p.transport.rpc import RpcTransport
from node.version import get_version
from support.faults.connections import serve_connections
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, Recorder
from support.federation.transports import RpcNet, make_keys, rpc_net

STRANGER = SigningKey.from_private_bytes(b"s" * 32)


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_probe, "STEP_S", PATIENCE_S)


@pytest.fixture
async def net() -> AsyncIterator[RpcNet]:
    """Alice runs and knows bob, whom the tests play."""
    async with rpc_net(2, start=[0]) as net:
        yield net


async def probe(key: SigningKey, peer: Id, address: str) -> Greeting | None:
    return await asyncio.to_thread(probe_peer, key, peer, address)


async def test_a_peer_says_who_it_is_on_which_chain_and_what_time_it_has() -> None:
    alice, bob = make_keys(2)
    (port,) = find_free_ports(1)
    transport = RpcTransport(alice, f"127.0.0.1:{port}", {}, admission=Admission([bob.id]), chain_id=b"c" * 32)
    running = asyncio.create_task(transport.run(Recorder()))
    try:
        await transport.ready()
        greeting = await probe(bob, alice.id, f"127.0.0.1:{port}")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert greeting is not None
    assert (greeting.chain_id, greeting.version, greeting.protocol) == (b"c" * 32, get_version(), PROTOCOL_VERSION)
    assert abs(greeting.skew_s) <= greeting.rtt_s / 2 + 0.1  # one clock


async def test_another_node_at_the_address_is_named(net: RpcNet) -> None:
    alice, bob = net.nodes
    address = f"127.0.0.1:{alice.transport.port}"
    assert await asyncio.to_thread(identify_server, address) == alice.id
    with pytest.raises(WrongPeer, match=f"expected {encode_id(bob.id)}, {encode_id(alice.id)} answers"):
        await probe(bob.key, bob.id, address)


async def test_a_stranger_hears_that_it_is_not_let_in(net: RpcNet, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, _ = net.nodes
    monkeypatch.setattr(peer_probe, "STEP_S", 1.0)  # gRPC tries until then
    with pytest.raises(WrongPeer, match="does not let this node in"):
        await probe(STRANGER, alice.id, f"127.0.0.1:{alice.transport.port}")


async def test_a_peer_that_is_refused_hears_for_how_long(net: RpcNet) -> None:
    alice, bob = net.nodes
    alice.transport.bans.add_fault(bob.id)
    with pytest.raises(Refused, match="refused for 60 s more"):
        await probe(bob.key, alice.id, f"127.0.0.1:{alice.transport.port}")


async def test_an_empty_address_and_something_else_there_are_told_apart() -> None:
    alice, bob = make_keys(2)
    (port,) = find_free_ports(1)
    with pytest.raises(NotReached, match="nobody listens there"):
        await probe(alice, bob.id, f"127.0.0.1:{port}")
    with pytest.raises(NotReached, match="cannot be resolved"):
        await probe(alice, bob.id, "none.fednode.invalid:7050")

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")

    async with serve_connections(hang_up) as address:
        with pytest.raises(WrongPeer, match="no fednode"):
            await probe(alice, bob.id, address)
