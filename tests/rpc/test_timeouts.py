"""Deadlines on connections, questions, answers and writes: they keep a node from waiting for a peer (SECURITY §5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from chain.block import Id
from node.p2p.tls import MutualTls
from node.p2p.transport.base import Message, MessageKind, PeerUnavailable, TrafficCounters
from node.p2p.transport.link import ACCEPTED_KEY
from node.p2p.transport.rate_limits import RateLimits
from node.p2p.transport.rpc import ConnectionLimits
from node.p2p.transport.sender import Sender
from node.pb import peer_pb2 as pb
from node.pb import peer_pb2_grpc as rpc
from support.faults.connections import serve_connections
from support.faults.strangers import open_channel, own_leaf
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import RpcNet, RpcNode, make_keys

SHORT_S = 0.2


class Mute(rpc.PeerServicer):
    """Accepts everybody, reads nothing and answers nothing."""

    async def Push(self, request_iterator: object, context: grpc.aio.ServicerContext[pb.Batch, pb.Batch]) -> None:  # type: ignore[override]  # noqa: N802
        await context.send_initial_metadata(((ACCEPTED_KEY, "1"),))
        await asyncio.Event().wait()

    async def Blocks(self, request: pb.BlocksRequest, context: object) -> pb.BlocksReply:  # noqa: N802
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def Hello(self, request: object, context: object) -> None:  # type: ignore[override]  # noqa: N802
        await asyncio.Event().wait()

    async def Serve(self, request_iterator: object, context: object) -> None:  # type: ignore[override]  # noqa: N802
        await asyncio.Event().wait()

    async def Blob(self, request_iterator: object, context: object) -> None:  # type: ignore[override]  # noqa: N802
        await asyncio.Event().wait()


@asynccontextmanager
async def ignored(
    limits: RateLimits | None = None, connections: ConnectionLimits | None = None
) -> AsyncIterator[tuple[RpcNode, Id]]:
    """A node that is connected to a mute; gives the node and the mute's id."""
    key, mute_key = make_keys(2)
    ports = find_free_ports(2)
    server = grpc.aio.server()
    rpc.add_PeerServicer_to_server(Mute(), server)
    server.add_secure_port(f"127.0.0.1:{ports[1]}", MutualTls(mute_key, [key.id]).make_server_credentials())
    await server.start()
    net = RpcNet(limits=limits or RateLimits(), connections=connections or ConnectionLimits())
    node = net.build(key, f"127.0.0.1:{ports[0]}", {mute_key.id: f"127.0.0.1:{ports[1]}"})
    try:
        await node.start()
        await wait_until(lambda: node.transport.connected() == {mute_key.id}, "connected to the mute")
        yield node, mute_key.id
    finally:
        await net.stop()
        await server.stop(None)


async def test_blocks_that_do_not_come_are_given_up() -> None:
    async with ignored(connections=ConnectionLimits(request_s=SHORT_S)) as (node, mute), asyncio.timeout(PATIENCE_S):
        with pytest.raises(PeerUnavailable, match="deadline_exceeded"):
            await node.transport.request_blocks(mute, 1, 1)


async def test_a_peer_that_reads_nothing_is_cut_off() -> None:
    async with ignored(RateLimits(write_s=SHORT_S)) as (node, mute):
        block = Message(MessageKind.BLOCK, bytes(200_000))

        def has_gone() -> bool:
            node.transport.post(mute, block)
            return node.recorder.downs == [mute]

        await wait_until(has_gone, "the mute cut off")
        await wait_until(lambda: node.transport.connected() == {mute}, "and dialled again")


async def test_a_connection_that_does_not_come_about_is_tried_again() -> None:
    """Somebody accepts, and never answers the handshake."""
    num_accepted = 0

    async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal num_accepted
        num_accepted += 1
        await reader.read()

    key, other = make_keys(2)
    net = RpcNet(connections=ConnectionLimits(connect_s=SHORT_S))
    async with serve_connections(say_nothing) as address:
        node = net.build(key, f"127.0.0.1:{find_free_ports(1)[0]}", {other.id: address})
        try:
            async with asyncio.timeout(PATIENCE_S / 2):  # of the usual length these would take 35 s, of gRPC's minutes
                await node.start()
                while num_accepted < 8:  # noqa: ASYNC110 (the other end of a socket)
                    await asyncio.sleep(0.01)
        finally:
            await net.stop()


async def test_a_caller_that_does_not_say_who_it_is_is_hung_up_on() -> None:
    nets = [RpcNet(connections=ConnectionLimits(handshake_s=seconds)) for seconds in (SHORT_S, PATIENCE_S)]
    reads = []
    async with AsyncExitStack() as stack:
        for net, key, port in zip(nets, make_keys(2), find_free_ports(2), strict=True):
            await net.build(key, f"127.0.0.1:{port}", {}).start()
            stack.push_async_callback(net.stop)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            reads.append(asyncio.create_task(reader.read(1)))
        assert await asyncio.wait_for(reads[0], PATIENCE_S) == b""
        await asyncio.sleep(SHORT_S)
        assert not reads[1].done()  # it has more time there
        reads[1].cancel()


async def test_no_more_calls_at_once_on_a_connection_than_allowed() -> None:
    """The third waits until one of the first two has ended."""
    alice_key, bob_key = make_keys(2)
    net = RpcNet(connections=ConnectionLimits(max_streams=2))
    alice = net.build(alice_key, f"127.0.0.1:{find_free_ports(1)[0]}", {}, members=[bob_key.id])
    alice.recorder.blobs[b"d" * 32] = b"blob"
    request = pb.BlobRequest(digest=b"d" * 32)
    try:
        await alice.start()
        async with open_channel(alice.transport.port, alice.id, own_leaf(bob_key)) as channel:
            calls = [rpc.PeerStub(channel).Blob(None) for _ in range(2)]
            for call in calls:
                await call.write(request)
                assert await call.read() == pb.BlobChunk(data=b"blob", last=True)
            third = rpc.PeerStub(channel).Blob(None)
            asking = asyncio.create_task(third.write(request))
            await asyncio.sleep(SHORT_S)
            assert len(alice.recorder.blob_requests) == 2
            calls[0].cancel()
            await asyncio.wait_for(asking, PATIENCE_S)
            assert await asyncio.wait_for(third.read(), PATIENCE_S) == pb.BlobChunk(data=b"blob", last=True)
    finally:
        await net.stop()


def test_what_waits_for_a_peer_is_bounded_by_number_and_bytes() -> None:
    for limits in (RateLimits(queue_messages=2), RateLimits(queue_bytes=20)):
        counters = TrafficCounters()
        sender = Sender(counters, limits)
        sender.open()
        for _ in range(5):
            sender.post(Message(MessageKind.VOTE, bytes(10)))
        assert counters.dropped == 3


async def test_no_more_connections_at_once_than_allowed_whoever_they_are_with() -> None:
    """The third is closed as it comes; with one of the first two gone there is room again."""
    key = make_keys(1)[0]
    net = RpcNet(connections=ConnectionLimits(max_connections=2, handshake_s=PATIENCE_S))
    port = find_free_ports(1)[0]
    writers = []
    try:
        await net.build(key, f"127.0.0.1:{port}", {}).start()

        async def is_taken() -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            try:
                return bool(await asyncio.wait_for(reader.read(1), SHORT_S))
            except TimeoutError:
                return True
            except ConnectionError:
                return False

        assert [await is_taken() for _ in range(3)] == [True, True, False]
        writers[0].close()
        async with asyncio.timeout(PATIENCE_S):
            while not await is_taken():  # noqa: ASYNC110 (the other end of a socket)
                await asyncio.sleep(SHORT_S)
    finally:
        for writer in writers:
            writer.close()
        await net.stop()
