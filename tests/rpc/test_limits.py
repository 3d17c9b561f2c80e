"""The harm that a member can do by flooding, by lying about sizes or by never stopping: it slows itself down (PROTOCOL
§7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from node.p2p.bans import Bans
from node.p2p.refusals import Reason
from node.p2p.tls import MutualTls
from node.p2p.transport.base import (
    CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    BlobTooLong,
    Message,
    MessageKind,
    PeerUnavailable,
    TrafficCounters,
)
from node.p2p.transport.link import ACCEPTED_KEY
from node.p2p.transport.rate_limits import MAX_BATCH_MESSAGES, Intake, RateLimits
from node.pb import common_pb2
from node.pb import peer_pb2 as pb
from node.pb import peer_pb2_grpc as rpc
from support.faults.strangers import open_channel, own_leaf, push_to_the_end, pushing, read_to_the_end, try_blocks
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, Recorder, wait_until
from support.federation.transports import RpcNet, RpcNode, make_keys, rpc_net

DENIED, EXHAUSTED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED
GRPC_POLLER = "PollerCompletionQueue"  # of a process, which may still call the loop of a test before
GARBAGE = b"\xff\xff\xff"  # the beginning of no protobuf message
LIMITS = RateLimits(blob_grace_s=PATIENCE_S)
NO_MORE_STATUSES = replace(LIMITS, status_per_s=1e-6)  # than those of the burst, however long a test takes


def list_errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged with a traceback by this test's own loop."""
    told = [record.getMessage() for record in caplog.records if record.exc_info]
    return [text for text in told if GRPC_POLLER not in text]


def batch(**bodies: bytes) -> pb.Batch:
    return pb.Batch(messages=[pb.Envelope(**{kind: data}) for kind, data in bodies.items()])


@asynccontextmanager
async def attacked(limits: RateLimits = LIMITS) -> AsyncIterator[tuple[RpcNode, RpcNode, grpc.aio.Channel]]:
    """Alice runs; bob's key is in the hands of the test, which holds a channel to alice."""
    async with rpc_net(2, limits=limits, start=[0]) as net:
        alice, bob = net.nodes
        async with open_channel(alice.transport.port, alice.id, own_leaf(bob.key)) as channel:
            yield alice, bob, channel


# Sizes


@pytest.mark.parametrize("kind", list(MessageKind))
async def test_a_message_over_the_limit_of_its_kind_is_bad_bytes(kind: MessageKind) -> None:
    async with attacked() as (alice, bob, channel):
        limit = MAX_MESSAGE_BYTES[kind]
        async with pushing(channel, batch(**{kind.name.lower(): bytes(limit)})):
            await wait_until(lambda: len(alice.recorder.messages) == 1, "the largest one passes")
        assert await push_to_the_end(channel, batch(**{kind.name.lower(): bytes(limit + 1)})) is DENIED
        assert len(alice.recorder.messages) == 1
        assert alice.transport.bans.is_banned(bob.id)
        assert alice.transport.counters()[bob.id].refusals[Reason.SIZE] == 1


@pytest.mark.parametrize(
    "bad",
    [
        pb.Batch(messages=[pb.Envelope()]),
        pb.Batch(messages=[pb.Envelope(vote=b"v")] * (MAX_BATCH_MESSAGES + 1)),
        pb.Batch(messages=[pb.Envelope(block=bytes(200 * 1024))] * 6),
    ],
    ids=["no kind", "too many", "too large together"],
)
async def test_a_batch_out_of_bounds_is_bad_bytes(bad: pb.Batch) -> None:
    async with attacked() as (alice, _, channel):
        assert await push_to_the_end(channel, bad) is DENIED
        assert alice.recorder.messages == []


async def test_a_request_over_two_mebibytes_is_refused_unread() -> None:
    async with attacked() as (alice, _, channel):
        assert await push_to_the_end(channel, batch(block=bytes(3 << 20))) is EXHAUSTED
        assert alice.recorder.messages == []
        assert await try_blocks(channel) is grpc.StatusCode.OK  # and no more than that happened


async def test_bytes_that_are_no_protobuf_end_the_call() -> None:
    async with attacked() as (alice, _, channel):
        call = channel.stream_stream("/fednode.v1.Peer/Push", None, None)(None)
        await call.write(GARBAGE)
        with pytest.raises(grpc.aio.AioRpcError):
            await asyncio.wait_for(read_to_the_end(call), PATIENCE_S)
        assert alice.recorder.messages == []


@pytest.mark.parametrize("name", ["Push", "Blocks", "Blob"])
async def test_bytes_that_are_no_protobuf_are_bad_bytes_and_no_traceback(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with attacked() as (alice, bob, channel):
        path = f"/fednode.v1.Peer/{name}"
        if name == "Blocks":
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(path, None, None)(GARBAGE, timeout=PATIENCE_S)
            assert error.value.code() is DENIED
        else:
            call = channel.stream_stream(path, None, None)(None)
            await call.write(GARBAGE)
            assert await asyncio.wait_for(call.code(), PATIENCE_S) is DENIED
        assert alice.transport.bans.is_banned(bob.id)
        assert list_errors(caplog) == []
        assert alice.task is not None
        assert not alice.task.done(), "three bytes have ended the node"
        alice.clock.now_s = 61
        assert await try_blocks(channel) is grpc.StatusCode.OK


# Refusals


async def test_a_refusal_lasts_one_minute_then_two_and_ends() -> None:
    async with attacked() as (alice, bob, channel):
        assert await push_to_the_end(channel, batch(vote=alice.recorder.bad_data)) is DENIED
        assert await push_to_the_end(channel, batch(vote=b"good")) is DENIED
        assert await try_blocks(channel) is DENIED
        alice.clock.now_s = 59.9
        assert await try_blocks(channel) is DENIED
        alice.clock.now_s = 60.1
        async with pushing(channel, batch(vote=b"good")):
            await wait_until(lambda: alice.recorder.get_data(MessageKind.VOTE) == [b"good"], "the good vote")
        assert await push_to_the_end(channel, batch(vote=alice.recorder.bad_data)) is DENIED
        alice.clock.now_s = 60.1 + 119.9
        assert await try_blocks(channel) is DENIED
        alice.clock.now_s = 60.1 + 120.1
        assert await try_blocks(channel) is grpc.StatusCode.OK
        assert not alice.transport.bans.is_banned(bob.id)


def test_refusals_double_up_to_an_hour_and_are_forgotten_after_good_behaviour() -> None:
    now = [0.0]
    bans = Bans(lambda: now[0])
    peer = b"p" * 32
    refusals = []
    for _ in range(9):
        refusals.append(bans.add_fault(peer))
        assert bans.add_fault(peer) == refusals[-1]  # what was on its way already does not count again
        now[0] += refusals[-1]
        assert not bans.is_banned(peer)
    assert refusals == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    now[0] += 2 * 3600 + 1
    assert bans.add_fault(peer) == 60
    assert bans.get_banned() == {peer: 60}


# Rates


async def test_more_statuses_than_allowed_are_left_out_without_blame() -> None:
    async with attacked(NO_MORE_STATUSES) as (alice, bob, channel):
        flood = [batch(status=i.to_bytes(4, "big")) for i in range(200)]
        async with pushing(channel, *flood, batch(vote=b"v")):
            await wait_until(lambda: alice.recorder.get_data(MessageKind.VOTE) == [b"v"], "the vote")
        assert len(alice.recorder.get_data(MessageKind.STATUS)) == LIMITS.status_burst
        assert alice.transport.counters()[bob.id].refusals == {Reason.RATE: 200 - LIMITS.status_burst}
        assert not alice.transport.bans.is_banned(bob.id)


async def test_reconnecting_gives_no_new_allowance() -> None:
    async with attacked(NO_MORE_STATUSES) as (alice, _, channel):
        for last in (b"1", b"2", b"3"):
            async with pushing(channel, *[batch(status=b"s")] * 20, batch(vote=last)):
                await wait_until(lambda: last in alice.recorder.get_data(MessageKind.VOTE), "all of it")  # noqa: B023
        assert len(alice.recorder.get_data(MessageKind.STATUS)) == LIMITS.status_burst


@pytest.mark.outer
async def test_a_flood_is_read_no_faster_than_its_rate() -> None:
    async with attacked(replace(LIMITS, messages_per_s=100.0, messages_burst=100.0)) as (alice, bob, channel):
        flood = [pb.Batch(messages=[pb.Envelope(vote=b"v")] * 50)] * 20
        before_s = time.monotonic()
        async with pushing(channel, *flood):
            await wait_until(lambda: len(alice.recorder.messages) >= 300, "a part of the flood")
        assert time.monotonic() - before_s >= 1.5  # a burst of 100, a batch on credit, and 150 at 100 a second
        assert alice.transport.counters()[bob.id].waits >= 3


@pytest.mark.outer
async def test_bytes_have_a_rate_too() -> None:
    async with attacked(replace(LIMITS, bytes_per_s=1e6)) as (alice, _, channel):
        before_s = time.monotonic()
        async with pushing(channel, *[batch(block=bytes(250_000))] * 12):
            await wait_until(lambda: len(alice.recorder.messages) == 12, "3 MB")
        assert time.monotonic() - before_s >= 1.75  # a burst of 1 MB, a batch on credit, and 1.75 MB at 1 MB a second


async def test_block_requests_wait_for_their_turn() -> None:
    async with attacked(replace(LIMITS, blocks_per_s=10.0, blocks_burst=2.0)) as (_, _, channel):
        before_s = time.monotonic()
        for _ in range(7):
            assert await try_blocks(channel) is grpc.StatusCode.OK
        assert time.monotonic() - before_s >= 0.5  # two at once, five at ten a second


async def test_blob_requests_wait_for_their_turn() -> None:
    async with attacked(replace(LIMITS, blobs_per_s=10.0, blobs_burst=2.0)) as (alice, bob, channel):
        alice.recorder.blobs[b"d" * 32] = b"blob"
        call = rpc.PeerStub(channel).Blob(None)
        before_s = time.monotonic()
        for digest in [b"d" * 32, b"e" * 32] * 4:
            await call.write(pb.BlobRequest(digest=digest))
            await call.read()
        assert time.monotonic() - before_s >= 0.6  # two at once, six at ten a second
        assert not alice.transport.bans.is_banned(bob.id)
        call.cancel()


# Streams and requests at once


async def test_a_second_push_stream_replaces_the_first() -> None:
    async with attacked() as (alice, _, channel):
        first = rpc.PeerStub(channel).Push(None)
        assert ACCEPTED_KEY in await first.initial_metadata()
        second = rpc.PeerStub(channel).Push(None)
        assert ACCEPTED_KEY in await second.initial_metadata()
        assert await asyncio.wait_for(first.code(), PATIENCE_S) is grpc.StatusCode.ABORTED
        await second.write(batch(vote=b"v"))
        await wait_until(lambda: len(alice.recorder.messages) == 1, "the vote on the second")
        second.cancel()


async def test_a_third_block_request_at_once_is_turned_away() -> None:
    async with attacked() as (alice, bob, channel):
        held = asyncio.Event()

        async def hold(*_: object) -> list[tuple[bytes, bytes]]:
            await held.wait()
            return []

        alice.recorder.on_blocks_request = hold  # type: ignore[method-assign, assignment]  # a slow store
        calls = [asyncio.create_task(try_blocks(channel)) for _ in range(5)]
        await wait_until(lambda: sum(call.done() for call in calls) == 3, "three turned away")
        held.set()
        codes = await asyncio.gather(*calls)
        assert sorted(code.name for code in codes) == ["OK"] * 2 + ["RESOURCE_EXHAUSTED"] * 3
        assert alice.transport.counters()[bob.id].refusals == {Reason.CALLS: 3}


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_calls_that_ask_nothing_leave_room_for_everybody_else() -> None:
    """Carol opens more calls than alice answers in all, over several connections, and says nothing on any."""
    async with rpc_net(3, start=[0, 1]) as net, AsyncExitStack() as stack:
        alice, bob, carol = net.nodes
        calls = []
        for _ in range(3):
            channel = open_channel(alice.transport.port, alice.id, own_leaf(carol.key))
            await stack.enter_async_context(channel)
            calls += [channel.stream_unary("/fednode.v1.Peer/Blocks", None, None)(never()) for _ in range(60)]
        await wait_until(lambda: sum(call.done() for call in calls) >= len(calls) - 4, "all but four turned away")
        refused = alice.transport.counters()[carol.id].refusals[Reason.CALLS]
        assert refused == len(calls) - 4
        assert await bob.transport.request_blocks(alice.id, 0, 1) == []
        assert not alice.transport.bans.is_banned(carol.id)
        for call in calls:
            call.cancel()


async def test_a_call_that_asks_nothing_is_ended() -> None:
    async with attacked(replace(LIMITS, request_grace_s=0.2)) as (alice, bob, channel):
        call = channel.stream_unary("/fednode.v1.Peer/Blocks", None, None)(never())
        assert await asyncio.wait_for(call.code(), PATIENCE_S) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert alice.transport.counters()[bob.id].refusals == {Reason.SLOW: 1}
        empty = channel.stream_unary("/fednode.v1.Peer/Blocks", None, None)(iter(()))
        assert await asyncio.wait_for(empty.code(), PATIENCE_S) is grpc.StatusCode.INVALID_ARGUMENT
        assert await try_blocks(channel) is grpc.StatusCode.OK


async def test_a_fifth_blob_stream_at_once_is_turned_away() -> None:
    async with attacked() as (alice, _, channel):
        alice.recorder.blobs[b"d" * 32] = b"blob"
        calls = [rpc.PeerStub(channel).Blob(None) for _ in range(4)]
        for call in calls:
            await call.write(pb.BlobRequest(digest=b"d" * 32))
            assert await call.read() == pb.BlobChunk(data=b"blob", last=True)
        fifth = rpc.PeerStub(channel).Blob(None)
        assert await asyncio.wait_for(fifth.code(), PATIENCE_S) is EXHAUSTED
        calls.pop().cancel()
        async with asyncio.timeout(PATIENCE_S):
            while not await _gets_the_blob(channel):  # noqa: ASYNC110 (until alice, too, sees that one has ended)
                await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()


async def _gets_the_blob(channel: grpc.aio.Channel) -> bool:
    """Whether one more stream gets it, or is turned away."""
    call = rpc.PeerStub(channel).Blob(None)
    try:
        await call.write(pb.BlobRequest(digest=b"d" * 32))
        return bool(await call.read() == pb.BlobChunk(data=b"blob", last=True))
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        assert await call.code() is EXHAUSTED
        return False
    finally:
        call.cancel()


async def test_streams_beyond_the_connections_limit_wait_and_harm_nobody() -> None:
    async with attacked() as (_, _, channel):
        calls = [rpc.PeerStub(channel).Push(None) for _ in range(200)]
        await asyncio.sleep(0.3)
        for call in calls:
            call.cancel()
        await asyncio.sleep(0.1)
        assert await try_blocks(channel) is grpc.StatusCode.OK


@pytest.mark.parametrize("count", [0, 4097, 2**32 - 1])
async def test_an_impossible_block_count_is_bad_bytes(count: int) -> None:
    async with attacked() as (_, _, channel):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await rpc.PeerStub(channel).Blocks(pb.BlocksRequest(first=0, count=count), timeout=PATIENCE_S)
        assert error.value.code() is DENIED


@pytest.mark.parametrize(
    "request_", [pb.BlobRequest(digest=b"short"), pb.BlobRequest(digest=b"d" * 32, offset=2**64 - 1)]
)
async def test_an_impossible_blob_request_is_bad_bytes(request_: pb.BlobRequest) -> None:
    async with attacked() as (alice, _, channel):
        call = rpc.PeerStub(channel).Blob(None)
        await call.write(request_)
        assert await asyncio.wait_for(call.code(), PATIENCE_S) is DENIED
        assert alice.recorder.blob_requests == []


async def test_a_reader_that_never_reads_is_cut_off() -> None:
    limits = replace(LIMITS, blob_grace_s=0.3, blob_bytes_per_s=1e9)
    async with attacked(limits) as (alice, _, channel):
        alice.recorder.blobs[b"d" * 32] = bytes(256 * CHUNK_BYTES)
        call = rpc.PeerStub(channel).Blob(None)
        await call.write(pb.BlobRequest(digest=b"d" * 32))
        await wait_until(lambda: bool(alice.recorder.blob_requests), "the transfer begins")
        await wait_until(lambda: alice.recorder.open_streams == 0, "and is cut off")
        async with asyncio.timeout(PATIENCE_S):
            await alice.stop()  # the stuck call does not hold it up
        call.cancel()


async def test_a_caller_that_vanishes_in_a_transfer_leaves_nothing_open() -> None:
    async with attacked() as (alice, bob, _):
        alice.recorder.blobs[b"d" * 32] = bytes(256 * CHUNK_BYTES)
        async with open_channel(alice.transport.port, alice.id, own_leaf(bob.key)) as channel:
            call = rpc.PeerStub(channel).Blob(None)
            await call.write(pb.BlobRequest(digest=b"d" * 32))
            await call.read()
        await wait_until(lambda: alice.recorder.open_streams == 0, "closed")


# A lying server


class Liar(rpc.PeerServicer):
    """Accepts everybody and sends what it likes."""

    def __init__(self, chunk: pb.BlobChunk, reply: pb.BlocksReply, pause_s: float = 0.0) -> None:
        self.chunk = chunk
        self.reply = reply
        self.pause_s = pause_s
        self.num_blob_streams = 0

    async def Push(self, request_iterator: object, context: grpc.aio.ServicerContext[pb.Batch, pb.Batch]) -> None:  # type: ignore[override]  # noqa: N802
        await context.send_initial_metadata(((ACCEPTED_KEY, "1"),))
        await asyncio.Event().wait()

    async def Hello(self, request: pb.HelloRequest, context: object) -> pb.HelloReply:  # noqa: N802
        return pb.HelloReply()

    async def Blocks(self, request: pb.BlocksRequest, context: object) -> pb.BlocksReply:  # noqa: N802
        return self.reply

    async def Serve(self, request_iterator: object, context: object) -> None:  # type: ignore[override]  # noqa: N802
        await asyncio.Event().wait()

    async def Blob(  # type: ignore[override]  # noqa: N802
        self, request_iterator: object, context: grpc.aio.ServicerContext[pb.BlobRequest, pb.BlobChunk]
    ) -> None:
        self.num_blob_streams += 1
        try:
            await context.read()
            while True:
                await context.write(self.chunk)
                await asyncio.sleep(self.pause_s)
        finally:
            self.num_blob_streams -= 1


@asynccontextmanager
async def lied_to(
    *,
    chunk: pb.BlobChunk | None = None,
    reply: pb.BlocksReply | None = None,
    pause_s: float = 0.0,
    limits: RateLimits = LIMITS,
) -> AsyncIterator[tuple[RpcNode, bytes, Liar]]:
    """A node connected to a liar; gives the node, the liar's id, and the liar."""
    alice_key, liar_key = make_keys(2)
    ports = find_free_ports(2)
    liar = Liar(chunk or pb.BlobChunk(), reply or pb.BlocksReply(), pause_s)
    server = grpc.aio.server()
    rpc.add_PeerServicer_to_server(liar, server)
    server.add_secure_port(f"127.0.0.1:{ports[1]}", MutualTls(liar_key, [alice_key.id]).make_server_credentials())
    await server.start()
    net = RpcNet(limits=limits)
    alice = net.build(alice_key, f"127.0.0.1:{ports[0]}", {liar_key.id: f"127.0.0.1:{ports[1]}"})
    try:
        await alice.start()
        await wait_until(lambda: alice.transport.connected() == {liar_key.id}, "connected to the liar")
        yield alice, liar_key.id, liar
    finally:
        await net.stop()
        await server.stop(None)


async def test_an_endless_blob_is_broken_off_at_its_declared_size() -> None:
    async with lied_to(chunk=pb.BlobChunk(data=bytes(CHUNK_BYTES))) as (alice, liar_id, liar):
        got = 0
        with pytest.raises(BlobTooLong):  # noqa: PT012
            async for chunk in alice.transport.fetch_blob(liar_id, b"d" * 32, max_bytes=3 * CHUNK_BYTES):
                got += len(chunk)
        assert got == 3 * CHUNK_BYTES
        await wait_until(lambda: liar.num_blob_streams == 0, "the stream is closed, not merely unread")


@pytest.mark.parametrize(
    "chunk",
    [pb.BlobChunk(), pb.BlobChunk(data=bytes(CHUNK_BYTES + 1)), pb.BlobChunk(data=bytes(3 << 20))],
    ids=["empty for ever", "chunk too large", "over the channel's limit"],
)
async def test_chunks_out_of_bounds_end_the_transfer(chunk: pb.BlobChunk) -> None:
    async with lied_to(chunk=chunk) as (alice, liar_id, _):
        with pytest.raises(PeerUnavailable):
            await anext(alice.transport.fetch_blob(liar_id, b"d" * 32))


@pytest.mark.outer
async def test_a_trickle_is_given_up() -> None:
    limits = replace(LIMITS, blob_grace_s=2.0)
    async with lied_to(chunk=pb.BlobChunk(data=b"x"), pause_s=0.05, limits=limits) as (alice, liar_id, _):
        await alice.transport.request_blocks(liar_id, 0, 1)  # to connect may take longer than the grace
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerUnavailable, match="slower than 131072 bytes a second"):
                async for _chunk in alice.transport.fetch_blob(liar_id, b"d" * 32):
                    pass


@pytest.mark.parametrize(
    ("num_blocks", "num_bytes"), [(3, 10), (1, (1 << 20) + 1), (1, 3 << 20)], ids=["too many", "over 1 MiB", "over 2"]
)
async def test_a_blocks_reply_out_of_bounds_is_no_reply(num_blocks: int, num_bytes: int) -> None:
    reply = pb.BlocksReply(blocks=[common_pb2.FinalisedBlock(block=bytes(num_bytes))] * num_blocks)
    async with lied_to(reply=reply) as (alice, liar_id, _):
        with pytest.raises(PeerUnavailable):
            await alice.transport.request_blocks(liar_id, 0, 2)


class Garbler:
    """Accepts everybody and answers with bytes that are no message; a Push is given `num_pushed` such answers."""

    def __init__(self, num_pushed: int) -> None:
        self.num_pushed = num_pushed

    def serve(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Push": grpc.stream_stream_rpc_method_handler(self.push),
            "Blocks": grpc.unary_unary_rpc_method_handler(self.blocks),
            "Blob": grpc.stream_stream_rpc_method_handler(self.blob),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fednode.v1.Peer", handlers),))

    async def push(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.send_initial_metadata(((ACCEPTED_KEY, "1"),))
        for _ in range(self.num_pushed):
            await context.write(GARBAGE)
        await asyncio.Event().wait()

    async def blocks(self, _: bytes, context: object) -> bytes:
        return GARBAGE

    async def blob(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.read()
        await context.write(GARBAGE)


@asynccontextmanager
async def garbled(num_pushed: int = 0) -> AsyncIterator[tuple[RpcNode, bytes]]:
    """A node that dials a garbler; gives the node and the garbler's id."""
    alice_key, garbler_key = make_keys(2)
    ports = find_free_ports(2)
    server = grpc.aio.server()
    Garbler(num_pushed).serve(server)
    server.add_secure_port(f"127.0.0.1:{ports[1]}", MutualTls(garbler_key, [alice_key.id]).make_server_credentials())
    await server.start()
    net = RpcNet()
    alice = net.build(alice_key, f"127.0.0.1:{ports[0]}", {garbler_key.id: f"127.0.0.1:{ports[1]}"})
    try:
        await alice.start()
        await wait_until(lambda: alice.recorder.ups == [garbler_key.id], "connected to the garbler")
        yield alice, garbler_key.id
    finally:
        await net.stop()
        await server.stop(None)


async def test_answers_that_are_no_messages_are_no_answers(caplog: pytest.LogCaptureFixture) -> None:
    async with garbled() as (alice, garbler_id):
        with pytest.raises(PeerUnavailable, match="other bytes"):
            await alice.transport.request_blocks(garbler_id, 1, 1)
        with pytest.raises(PeerUnavailable, match="other bytes"):
            await anext(alice.transport.fetch_blob(garbler_id, b"d" * 32))
        assert not alice.transport.bans.is_banned(garbler_id)
        assert list_errors(caplog) == []


async def test_a_pushed_answer_that_is_no_message_is_bad_bytes() -> None:
    async with garbled(num_pushed=1) as (alice, garbler_id):
        await wait_until(lambda: alice.transport.bans.is_banned(garbler_id), "the garbler is refused")
        assert alice.recorder.messages == []


# The gate by itself


def test_the_gate_hands_on_what_is_within_its_limits_and_says_how_long_to_wait() -> None:
    now = [0.0]
    recorder, counters = Recorder(), TrafficCounters()
    limits = replace(LIMITS, messages_per_s=10.0, messages_burst=10.0)
    intake = Intake(b"p" * 32, limits, Bans(lambda: now[0]), counters, clock=lambda: now[0])
    assert intake.take(pb.Batch(messages=[pb.Envelope(vote=b"v")] * 10), recorder) == 0
    assert intake.take(pb.Batch(messages=[pb.Envelope(vote=b"v")] * 10), recorder) == pytest.approx(1.0)
    now[0] = 1.5
    assert intake.take(pb.Batch(messages=[pb.Envelope(vote=b"v")] * 5), recorder) == 0
    assert recorder.messages == [(b"p" * 32, Message(MessageKind.VOTE, b"v"))] * 25
    assert counters.messages_received == 25
