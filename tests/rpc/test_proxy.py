"""Peers that are dialled through a proxy: it is asked by HTTP CONNECT, resolves names, and sees TLS from the outside.
Forwarders of TCP need no word in the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chain.block import Id
from node.cli.doctor.findings import Verdict
from node.cli.doctor.reach import check_proxy
from node.p2p import probe as peer_probe
from node.p2p.admission import Admission
from node.p2p.probe import Greeting, ProbeFailed, WrongPeer, probe_peer
from node.p2p.transport.base import Message, MessageKind
from node.p2p.transport.rpc import RpcTransport
from support.faults.connections import serve_connections
from support.faults.way import open_way
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import RpcNet, RpcNode, make_keys

NAME = "alice.fednode.invalid:7050"  # the proxy alone knows where that is


@asynccontextmanager
async def net_of_two(dialled: str, listens: str, proxy: str | None) -> AsyncIterator[tuple[RpcNode, RpcNode]]:
    """Alice listens, and bob dials her at another address."""
    alice, bob = make_keys(2)
    net = RpcNet()
    try:
        one = net.build(alice, listens, {}, members=[bob.id])
        (port,) = find_free_ports(1)
        two = net.build(bob, f"127.0.0.1:{port}", {alice.id: dialled}, members=[alice.id], proxy=proxy)
        await one.start()
        await two.start()
        yield one, two
        net.check_foreseen()
    finally:
        await net.stop()


def make_address() -> str:
    (port,) = find_free_ports(1)
    return f"127.0.0.1:{port}"


async def check_both_ways(one: RpcNode, two: RpcNode) -> None:
    await wait_until(lambda: one.transport.connected() == {two.id}, "connected")
    await wait_until(lambda: two.transport.connected() == {one.id}, "connected")
    message = Message(MessageKind.VOTE, b"hello")
    one.transport.post(two.id, message)
    two.transport.post(one.id, message)
    await wait_until(lambda: bool(one.recorder.messages and two.recorder.messages), "both")


async def test_a_proxy_carries_both_directions_and_resolves_names() -> None:
    listens = make_address()
    async with open_way(names={NAME: listens}) as way, net_of_two(NAME, listens, way.address) as (one, two):
        await check_both_ways(one, two)
        assert set(way.asked) == {NAME}


async def test_whoever_a_proxy_leads_to_is_told_by_its_key() -> None:
    """It leads to carol, whose key is her own."""
    listens = make_address()
    carol = make_keys(3)[2]
    other = make_address()
    transport = RpcTransport(carol, other, {}, admission=Admission([key.id for key in make_keys(2)]))
    running = asyncio.create_task(transport.run(RpcNet().build(carol, other, {}).recorder))
    try:
        await transport.ready()
        async with open_way(names={listens: other}) as way, net_of_two(listens, listens, way.address) as (one, two):
            await wait_until(lambda: way.num_opened >= 2, "two attempts")
            assert not two.transport.connected()
            with pytest.raises(WrongPeer, match="answers"):
                await probe(one.id, listens, way.address)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    listens = make_address()
    async with open_way() as way:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://{way.address}")
        async with net_of_two(listens, listens, None) as (one, two):
            await check_both_ways(one, two)
        assert not way.asked


async def test_no_exception_of_the_environment_leads_around_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    listens = make_address()
    async with open_way() as way, net_of_two(listens, listens, way.address) as (one, two):
        await check_both_ways(one, two)
        assert set(way.asked) == {listens}


async def test_a_forwarder_of_tcp_before_a_node_needs_nothing() -> None:
    """As one that routes by the name in TLS, or a load balancer in TCP mode."""
    listens = make_address()
    async with open_way(listens) as way, net_of_two(way.address, listens, None) as (one, two):
        await check_both_ways(one, two)
        assert way.num_opened


# ---- what doctor says


async def probe(peer: Id, address: str, proxy: str) -> Greeting | None:
    return await asyncio.to_thread(lambda: probe_peer(make_keys(2)[1], peer, address, proxy=proxy))


async def test_the_probe_goes_through_the_proxy_too() -> None:
    listens = make_address()
    async with open_way(names={NAME: listens}) as way, net_of_two(listens, listens, None) as (one, _):
        assert await probe(one.id, NAME, way.address) is not None
        assert set(way.asked) == {NAME}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"403 Not for you", r"the proxy .* refuses it \(403 Not for you\)"),
        (b"200", "no fednode"),
        (None, "says nothing within 1 s"),
    ],
)
async def test_what_a_proxy_answers_is_told(answer: bytes | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_probe, "STEP_S", 1.0 if answer is None else PATIENCE_S)
    nobody = make_address()
    async with open_way() as way:
        way.answer = answer
        with pytest.raises(ProbeFailed, match=said):
            await probe(make_keys(1)[0].id, nobody, way.address)


async def test_something_else_than_a_proxy_is_told() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await reader.read()

    async with serve_connections(talk) as address:
        with pytest.raises(ProbeFailed, match="is no HTTP proxy"):
            await probe(make_keys(1)[0].id, make_address(), address)


async def test_doctor_tells_whether_the_proxy_is_there() -> None:
    async with open_way() as way:
        [found] = await asyncio.to_thread(lambda: list(check_proxy(way.address)))
        assert found.verdict is Verdict.OK
        assert way.address in found.found
    [found] = check_proxy(make_address())
    assert found.verdict is Verdict.FAIL
    assert "cannot be reached (Connection refused)" in found.found
    assert not list(check_proxy(None))
