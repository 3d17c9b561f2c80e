"""Mutual TLS over real sockets: who gets in, who does not, and leaves that renew themselves (SECURITY §2)."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from chain.signing import SigningKey, encode_id
from node.p2p.refusals import Reason
from node.p2p.tls import LEAF_LIFETIME, MutualTls, UnknownCaller, identify, issue_leaf, make_anchor
from node.p2p.transport.base import AddressInUse, Message, MessageKind
from node.p2p.transport.rpc import RpcTransport
from node.pb import peer_pb2 as pb
from support.faults.strangers import forge_leaf, open_channel, own_leaf, push_to_the_end, try_blocks
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import RpcNet, RpcNode, make_keys, rpc_net

OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
DAY_S = 86_400.0
STRANGER = SigningKey.from_private_bytes(b"s" * 32)
WATCHER = SigningKey.from_private_bytes(b"w" * 32)


@pytest.fixture
async def net() -> AsyncIterator[RpcNet]:
    """Alice runs and knows bob, who is not there: the tests play him."""
    async with rpc_net(2, start=[0]) as net:
        yield net


async def end(channel: grpc.aio.Channel) -> grpc.StatusCode:
    async with channel:
        return await try_blocks(channel)


async def test_a_member_gets_in(net: RpcNet) -> None:
    alice, bob = net.nodes
    assert await end(open_channel(alice.transport.port, alice.id, own_leaf(bob.key))) is OK


async def test_a_stranger_is_refused_in_the_handshake(net: RpcNet) -> None:
    alice, _ = net.nodes
    assert await end(open_channel(alice.transport.port, alice.id, own_leaf(STRANGER))) is UNAVAILABLE


async def test_a_caller_without_a_certificate_is_refused(net: RpcNet) -> None:
    alice, _ = net.nodes
    assert await end(open_channel(alice.transport.port, alice.id, None)) is UNAVAILABLE


async def test_a_plain_connection_is_refused(net: RpcNet) -> None:
    alice, _ = net.nodes
    assert await end(grpc.aio.insecure_channel(f"127.0.0.1:{alice.transport.port}")) is UNAVAILABLE


async def test_garbage_and_half_a_handshake_leave_the_others_undisturbed(net: RpcNet) -> None:
    alice, bob = net.nodes
    writers = []
    for garbage in (b"", b"\0" * 5000, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
        _, writer = await asyncio.open_connection("127.0.0.1", alice.transport.port)
        writer.write(garbage)
        await writer.drain()
        writers.append(writer)
    assert await end(open_channel(alice.transport.port, alice.id, own_leaf(bob.key))) is OK
    for writer in writers:
        writer.transport.abort()


async def test_a_dialler_who_pinned_another_member_turns_away(net: RpcNet) -> None:
    alice, bob = net.nodes
    assert await end(open_channel(alice.transport.port, bob.id, own_leaf(bob.key))) is UNAVAILABLE


async def test_a_leaf_that_forges_its_issuer_is_refused(net: RpcNet) -> None:
    alice, bob = net.nodes
    assert await end(open_channel(alice.transport.port, alice.id, forge_leaf(bob.id, STRANGER))) is UNAVAILABLE
    with pytest.raises(UnknownCaller, match="signed by its issuer"):
        identify(forge_leaf(bob.id, STRANGER).certificate)


async def test_an_expired_leaf_is_refused(net: RpcNet) -> None:
    alice, bob = net.nodes
    expired = issue_leaf(bob.key, time.time() - LEAF_LIFETIME.total_seconds() - 60)
    assert await end(open_channel(alice.transport.port, alice.id, expired)) is UNAVAILABLE
    skewed = issue_leaf(bob.key, time.time() + 0.9 * DAY_S)  # bob's clock is most of a day ahead
    assert await end(open_channel(alice.transport.port, alice.id, skewed)) is OK


async def test_a_leaf_for_another_members_name_is_no_way_to_pose_as_it() -> None:
    """Carol signs, with her own key, a leaf for alice's server name: whoever dials alice does not take it."""
    alice, carol = make_keys(2)
    (port,) = find_free_ports(1)
    leaf = forge_leaf(alice.id, carol)
    server = grpc.aio.server()
    server.add_secure_port(
        f"127.0.0.1:{port}", grpc.ssl_server_credentials([(leaf.private_key, leaf.certificate)], None, False)
    )
    await server.start()
    assert await end(open_channel(port, alice.id, own_leaf(carol))) is UNAVAILABLE
    await server.stop(None)


async def test_anchors_with_equal_names_would_shut_members_out_and_ours_differ() -> None:
    """With equal names only the first root of a bundle is tried, so every anchor carries its own id as its name."""
    keys = make_keys(5)
    names = [x509.load_pem_x509_certificate(make_anchor(key.id)).subject.rfc4514_string() for key in keys]
    assert names == [f"CN={encode_id(key.id)}" for key in keys]
    async with rpc_net(5) as net:  # each of the five lets in each other one, whatever its place in the bundle
        assert all(len(node.transport.connected()) == 4 for node in net.nodes)


async def test_a_bundle_of_two_hundred_members_still_lets_the_last_one_in() -> None:
    keys = [SigningKey.generate() for _ in range(200)]
    net = RpcNet()
    (port,) = find_free_ports(1)
    node = net.build(make_keys(1)[0], f"127.0.0.1:{port}", {}, members=[key.id for key in keys])
    try:
        await node.start()
        for key in (keys[0], keys[-1]):
            assert await end(open_channel(port, node.id, own_leaf(key))) is OK
    finally:
        await net.stop()


async def test_a_server_who_speaks_as_the_member_dialled_is_the_member_heard() -> None:
    async with rpc_net(3) as net:
        alice, bob, carol = net.nodes
        alice.transport.post(carol.id, Message(MessageKind.VOTE, b"a"))
        bob.transport.post(carol.id, Message(MessageKind.VOTE, b"b"))
        await wait_until(lambda: len(carol.recorder.messages) == 2, "both votes")
        assert {peer: message.data for peer, message in carol.recorder.messages} == {alice.id: b"a", bob.id: b"b"}


async def test_openssl_accepts_our_certificates_and_speaks_tls_1_3(net: RpcNet, tmp_path: Path) -> None:
    """Not an accident of one library: Python's ssl verifies the same synthesised anchor."""
    alice, bob = net.nodes
    leaf = own_leaf(bob.key)
    (tmp_path / "leaf.pem").write_bytes(leaf.certificate + leaf.private_key)
    context = ssl.create_default_context(cadata=make_anchor(alice.id).decode())
    context.load_cert_chain(tmp_path / "leaf.pem")
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", alice.transport.port, ssl=context, server_hostname=f"{encode_id(alice.id)}.fednode.invalid"
    )
    connection = writer.get_extra_info("ssl_object")
    assert (connection.version(), connection.selected_alpn_protocol()) == ("TLSv1.3", "h2")
    assert await asyncio.wait_for(reader.read(1), PATIENCE_S)  # the server's HTTP/2 settings: it took our certificate
    writer.transport.abort()  # gRPC goes on sending after our close notice, which asyncio takes amiss


# Renewal


def test_a_leaf_is_renewed_at_half_of_its_life_and_not_before() -> None:
    now = time.time()
    clock = [now]
    tls = MutualTls(make_keys(1)[0], [], lambda: clock[0])
    first = tls.get_leaf()
    clock[0] = now + 3.4 * DAY_S
    assert tls.get_leaf() is first
    clock[0] = now + 3.6 * DAY_S
    second = tls.get_leaf()
    assert second is not first
    assert second.private_key != first.private_key
    assert second.expires_at_s > first.expires_at_s


async def test_a_running_server_shows_a_renewed_leaf_to_new_connections() -> None:
    alice, bob = make_keys(2)
    clock = [time.time() - 5 * DAY_S]  # a leaf from five days ago: still good for two
    tls = MutualTls(alice, [bob.id], lambda: clock[0])
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", tls.make_server_credentials())
    await server.start()

    async def get_serial() -> int:
        certificate = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        return x509.load_pem_x509_certificate(certificate.encode()).serial_number

    first = await get_serial()
    assert await get_serial() == first
    clock[0] = time.time()
    assert await get_serial() != first
    async with open_channel(port, alice.id, own_leaf(bob)) as channel:
        assert await try_blocks(channel) is grpc.StatusCode.UNIMPLEMENTED  # past the handshake; nothing is served here
    await server.stop(None)


async def test_a_member_can_be_added_and_removed_while_the_server_runs(net: RpcNet) -> None:
    alice, bob = net.nodes
    assert alice.transport.tls is not None
    port = alice.transport.port
    alice.transport.tls.set_trusted([bob.id, STRANGER.id])
    async with open_channel(port, alice.id, own_leaf(STRANGER)) as channel:  # in the bundle, but nobody we serve
        assert await try_blocks(channel) is grpc.StatusCode.UNAUTHENTICATED
    alice.transport.tls.set_trusted([STRANGER.id])
    assert await end(open_channel(port, alice.id, own_leaf(bob.key))) is UNAVAILABLE
    alice.transport.tls.set_trusted([bob.id])
    assert await end(open_channel(port, alice.id, own_leaf(bob.key))) is OK
    assert await end(open_channel(port, alice.id, own_leaf(STRANGER))) is UNAVAILABLE


# Observers


@pytest.fixture(params=[False, True], ids=["not dialled back", "dialled back"])
async def watched(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RpcNode, RpcNode]]:
    """Alice, and an observer that dials her."""
    net = RpcNet()
    key = make_keys(1)[0]
    ports = find_free_ports(2)
    dialled = {WATCHER.id: f"127.0.0.1:{ports[1]}"} if request.param else {}
    alice = net.build(key, f"127.0.0.1:{ports[0]}", dialled, observers=[WATCHER.id])
    watcher = net.build(WATCHER, f"127.0.0.1:{ports[1]}", {key.id: f"127.0.0.1:{ports[0]}"})
    try:
        await alice.start()
        await watcher.start()
        await wait_until(lambda: bool(alice.transport.connected() and watcher.transport.connected()), "connected")
        yield alice, watcher
    finally:
        await net.stop()


async def test_an_observer_reads_and_is_told_on_its_own_stream(watched: tuple[RpcNode, RpcNode]) -> None:
    alice, watcher = watched
    alice.recorder.blocks = [(b"block", b"certificate")]
    alice.recorder.blobs[b"d" * 32] = b"blob"
    assert alice.recorder.ups == [watcher.id]
    watcher.transport.post(alice.id, Message(MessageKind.STATUS, b"status of the watcher"))
    alice.transport.post(watcher.id, Message(MessageKind.STATUS, b"status of alice"))
    await wait_until(lambda: bool(alice.recorder.messages and watcher.recorder.messages), "both statuses")
    assert watcher.recorder.messages == [(alice.id, Message(MessageKind.STATUS, b"status of alice"))]
    assert await watcher.transport.request_blocks(alice.id, 0, 1) == [(b"block", b"certificate")]
    assert [chunk async for chunk in watcher.transport.fetch_blob(alice.id, b"d" * 32)] == [b"blob"]
    await watcher.stop()
    await wait_until(lambda: alice.recorder.downs == [watcher.id], "alice sees the watcher go")


async def test_what_else_an_observer_pushes_is_left_out(watched: tuple[RpcNode, RpcNode]) -> None:
    alice, watcher = watched
    others = sorted(set(MessageKind) - {MessageKind.STATUS, MessageKind.HINT})
    for kind in others:
        watcher.transport.post(alice.id, Message(kind, b"anything"))
    watcher.transport.post(alice.id, Message(MessageKind.STATUS, b"status"))
    await wait_until(lambda: bool(alice.recorder.messages), "the status")
    assert alice.recorder.messages == [(watcher.id, Message(MessageKind.STATUS, b"status"))]
    assert alice.transport.counters()[watcher.id].refusals[Reason.OTHER_HEIGHT] == len(others)
    assert not alice.transport.bans.is_banned(watcher.id)


# TLS off, addresses


def test_tls_off_is_for_loopback_alone() -> None:
    key, other = make_keys(2)
    with pytest.raises(ValueError, match=r"expected a loopback address, got 0.0.0.0:7053"):
        RpcTransport(key, "0.0.0.0:7053", {}, tls="off")
    with pytest.raises(ValueError, match=r"expected a loopback address, got node1:7053"):
        RpcTransport(key, "127.0.0.1:7053", {other.id: "node1:7053"}, tls="off")
    RpcTransport(key, "[::1]:7053", {other.id: "localhost:7053"}, tls="off")


@pytest.mark.parametrize("address", ["", "host", "host:", ":7053", "host:port", "host:70000", "host:-1"])
def test_what_is_no_address_is_named(address: str) -> None:
    key, other = make_keys(2)
    with pytest.raises(ValueError, match=rf"expected host:port.* \(got {address!r}\)"):
        RpcTransport(key, "127.0.0.1:0", {other.id: address})


async def test_with_tls_off_a_caller_must_still_name_a_member() -> None:
    async with (
        rpc_net(2, tls="off", start=[0]) as net,
        grpc.aio.insecure_channel(f"127.0.0.1:{net.nodes[0].transport.port}") as channel,
    ):
        assert await push_to_the_end(channel, pb.Batch()) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_port_that_is_taken_is_said_so(net: RpcNet) -> None:
    alice, bob = net.nodes
    second = RpcTransport(bob.key, f"127.0.0.1:{alice.transport.port}", {})
    with pytest.raises(AddressInUse, match=f"127.0.0.1:{alice.transport.port} is in use"):
        await second.run(bob.recorder)


async def test_an_address_that_is_not_ours_is_an_os_error(net: RpcNet) -> None:
    with pytest.raises(OSError, match="assign requested address"):
        await RpcTransport(STRANGER, "192.0.2.1:7053", {}).run(net.nodes[0].recorder)
