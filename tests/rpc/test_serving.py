"""Blocks and blobs asked over streams that a dialling peer holds open: neither end can do more harm there than over
calls of its own (SECURITY §5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from chain.block import Id
from node.p2p.refusals import Reason
from node.p2p.tls import MutualTls
from node.p2p.transport import served_lines
from node.p2p.transport.base import CHUNK_BYTES, BlobTooLong, PeerUnavailable
from node.p2p.transport.link import ACCEPTED_KEY
from node.p2p.transport.rate_limits import RateLimits
from node.p2p.transport.server import PeerService
from node.pb import common_pb2
from node.pb import peer_pb2 as pb
from support.faults.strangers import open_channel, own_leaf, pushing
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import RpcNet, RpcNode, make_keys, rpc_net

PATH = "/fednode.v1.Peer/Serve"
LIMITS = RateLimits(blob_grace_s=PATIENCE_S)
SHORT_S = 0.3
DIGEST = b"d" * 32
GARBAGE = b"\xff\xff\xff"
OFTEN_PINGED = (("grpc.http2.min_ping_interval_without_data_ms", 5_000),)  # else gRPC ends a connection after 20 s


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is to be held open is waited for as long as a busy machine takes."""
    monkeypatch.setattr(served_lines, "LINE_S", PATIENCE_S)


# A lying dialler: alice asks bob, whose key is in the hands of the test


@asynccontextmanager
async def asked(limits: RateLimits = LIMITS) -> AsyncIterator[tuple[RpcNode, Id, grpc.aio.Channel]]:
    async with rpc_net(2, limits=limits, start=[0], diallers=[1]) as net:
        alice, bob = net.nodes
        async with open_channel(alice.transport.port, alice.id, own_leaf(bob.key)) as channel:
            yield alice, bob.id, channel
        assert not alice.transport.bans.is_banned(bob.id)


async def hold(channel: grpc.aio.Channel) -> Any:
    """A stream of raw bytes that is held open."""
    call = channel.stream_stream(PATH, None, None)(None)
    assert ACCEPTED_KEY in await asyncio.wait_for(call.initial_metadata(), PATIENCE_S)
    return call


@asynccontextmanager
async def answering(channel: grpc.aio.Channel, *replies: bytes, ends: bool = False) -> AsyncIterator[None]:
    """Each stream, one after the other, is answered with `replies`; it goes on to be held open unless it `ends`."""

    async def answer_all() -> None:
        while True:
            call = await hold(channel)
            try:
                await call.read()
                for reply in replies:
                    await call.write(reply)
                if not ends:
                    await call.read()
            except (grpc.RpcError, asyncio.InvalidStateError):
                pass
            finally:
                call.cancel()

    async with pushing(channel):
        task = asyncio.create_task(answer_all())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def pull(node: RpcNode, peer: Id, max_bytes: int = 1 << 30) -> int:
    return sum([len(chunk) async for chunk in node.transport.fetch_blob(peer, DIGEST, max_bytes=max_bytes)])


def reply(**body: Any) -> bytes:
    return pb.ServeReply(**body).SerializeToString()


async def test_a_sound_answer_is_taken() -> None:
    async with asked() as (alice, bob, channel):
        chunks = [reply(chunk=pb.BlobChunk(data=b"ab")), reply(chunk=pb.BlobChunk(data=b"c", last=True))]
        async with answering(channel, *chunks):
            assert await pull(alice, bob) == 3


async def test_streams_are_held_by_who_pushes_and_no_more_than_may_be_asked() -> None:
    async with asked() as (alice, bob, channel):
        early = channel.stream_stream(PATH, None, None)(None)
        assert await asyncio.wait_for(early.code(), PATIENCE_S) is grpc.StatusCode.FAILED_PRECONDITION
        async with pushing(channel):
            calls = [await hold(channel) for _ in range(LIMITS.max_lines)]
            surplus = channel.stream_stream(PATH, None, None)(None)
            assert await asyncio.wait_for(surplus.code(), PATIENCE_S) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert alice.transport.counters()[bob].refusals == {Reason.CALLS: 1}
            assert not any(call.done() for call in calls)
        for call in calls:  # with the pushing they end
            await asyncio.wait_for(call.code(), PATIENCE_S)


async def test_a_stream_counts_before_its_holder_hears_that_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_line, comes_back = PeerService.hold_line, asyncio.Event()

    class Late:
        """A call whose servicer goes on long after the other end has heard it."""

        def __init__(self, context: Any) -> None:
            self._context = context

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        async def send_initial_metadata(self, metadata: object) -> None:
            await self._context.send_initial_metadata(metadata)
            await comes_back.wait()

    monkeypatch.setattr(PeerService, "hold_line", lambda self, intake, context: hold_line(self, intake, Late(context)))
    async with asked() as (alice, bob, channel), pushing(channel):
        for _ in range(LIMITS.max_lines):
            await hold(channel)
        surplus = channel.stream_stream(PATH, None, None)(None)
        assert await asyncio.wait_for(surplus.code(), PATIENCE_S) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert alice.transport.counters()[bob].refusals == {Reason.CALLS: 1}
        comes_back.set()


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ([GARBAGE], "other bytes"),
        ([reply()], "other bytes"),
        ([reply(blocks=pb.BlocksReply())], "other bytes"),
        ([reply(chunk=pb.BlobChunk())], "expected a chunk with data"),
        ([reply(chunk=pb.BlobChunk(data=bytes(CHUNK_BYTES + 1)))], "expected chunks of at most"),
        ([reply(refused="a" * 5000)], "refused: 'a{200}'$"),
        ([reply(chunk=pb.BlobChunk(data=b"x")), reply(refused="gone")], "refused: 'gone'"),
    ],
    ids=["garbage", "nothing", "another kind", "empty", "too large", "refused", "refused half-way"],
)
async def test_a_wrong_answer_is_no_answer_and_ends_the_stream(replies: list[bytes], error: str) -> None:
    async with asked() as (alice, bob, channel), answering(channel, *replies):
        for _ in range(2):  # the next stream is no better
            with pytest.raises(PeerUnavailable, match=error):
                await pull(alice, bob)


async def test_a_stream_that_ends_when_it_is_used_is_tried_no_more_often_than_there_can_be() -> None:
    async with asked() as (alice, bob, channel), answering(channel, ends=True):
        with pytest.raises(PeerUnavailable, match="end as soon as"):
            await pull(alice, bob)
        with pytest.raises(PeerUnavailable, match="has ended"):
            await alice.transport.request_blocks(bob, 0, 1)


async def test_an_endless_blob_is_broken_off_at_its_declared_size() -> None:
    async with asked() as (alice, bob, channel):
        chunks = [reply(chunk=pb.BlobChunk(data=bytes(CHUNK_BYTES)))] * 50
        async with answering(channel, *chunks):
            with pytest.raises(BlobTooLong):
                await pull(alice, bob, 3 * CHUNK_BYTES)


async def test_silence_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_lines, "LINE_S", SHORT_S)
    async with asked(replace(LIMITS, blob_grace_s=SHORT_S)) as (alice, bob, channel):
        async with pushing(channel):
            for asking in (pull(alice, bob), alice.transport.request_blocks(bob, 0, 1)):
                with pytest.raises(PeerUnavailable, match="holds no stream open"):
                    await asking
        monkeypatch.setattr(served_lines, "LINE_S", PATIENCE_S)
        async with answering(channel):
            with pytest.raises(PeerUnavailable, match="slower than"):
                await pull(alice, bob)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (reply(blocks=pb.BlocksReply(blocks=[common_pb2.FinalisedBlock(block=b"block")] * 3)), "at most 2 blocks"),
        (reply(chunk=pb.BlobChunk(data=b"x", last=True)), "other bytes"),
    ],
    ids=["too many", "another kind"],
)
async def test_blocks_out_of_bounds_are_no_answer(answer: bytes, error: str) -> None:
    async with asked() as (alice, bob, channel), answering(channel, answer):
        with pytest.raises(PeerUnavailable, match=error):
            await alice.transport.request_blocks(bob, 0, 2)


# A lying asker, whom alice has dialled


class Asker:
    """Accepts everybody, and does with the streams that are held open to it what `ask` does."""

    def __init__(self, ask: Callable[[Any], Awaitable[None]]) -> None:
        self.ask = ask
        self.num_streams = 0

    async def push(self, _: object, context: Any) -> None:
        await context.send_initial_metadata(((ACCEPTED_KEY, "1"),))
        await asyncio.Event().wait()

    async def serve(self, _: object, context: Any) -> None:
        self.num_streams += 1
        await context.send_initial_metadata(((ACCEPTED_KEY, "1"),))
        await self.ask(context)

    def add_to(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Push": grpc.stream_stream_rpc_method_handler(self.push),
            "Serve": grpc.stream_stream_rpc_method_handler(self.serve),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fednode.v1.Peer", handlers),))


@asynccontextmanager
async def asking(
    ask: Callable[[Any], Awaitable[None]], limits: RateLimits = LIMITS
) -> AsyncIterator[tuple[RpcNode, Id, Asker]]:
    async with AsyncExitStack() as stack:
        key, liar = make_keys(2)
        ports = find_free_ports(2)
        asker, server = Asker(ask), grpc.aio.server(options=OFTEN_PINGED)
        asker.add_to(server)
        server.add_secure_port(f"127.0.0.1:{ports[1]}", MutualTls(liar, [key.id]).make_server_credentials())
        await server.start()
        stack.push_async_callback(server.stop, None)
        net = RpcNet(limits=limits)
        alice = net.build(key, f"127.0.0.1:{ports[0]}", {liar.id: f"127.0.0.1:{ports[1]}"})
        stack.push_async_callback(net.stop)
        await alice.start()
        yield alice, liar.id, asker


def request(**body: Any) -> bytes:
    return pb.ServeRequest(**body).SerializeToString()


@pytest.mark.parametrize(
    "bad",
    [
        GARBAGE,
        request(),
        request(blocks=pb.BlocksRequest(first=0, count=0)),
        request(blob=pb.BlobRequest(digest=b"short")),
    ],
    ids=["garbage", "no kind", "no blocks", "no digest"],
)
async def test_a_request_that_no_correct_node_makes_is_a_fault(bad: bytes) -> None:
    async def ask(context: Any) -> None:
        await context.write(bad)
        await asyncio.Event().wait()

    async with asking(ask) as (alice, liar, _):
        await wait_until(lambda: alice.transport.bans.is_banned(liar), "refused")
        assert alice.recorder.blob_requests == []


async def test_one_who_reads_nothing_is_cut_off_and_the_stream_opened_anew() -> None:
    async def ask(context: Any) -> None:
        await context.write(request(blob=pb.BlobRequest(digest=DIGEST)))
        await asyncio.Event().wait()

    async with asking(ask, replace(LIMITS, blob_grace_s=SHORT_S, blob_bytes_per_s=1e9)) as (alice, liar, asker):
        alice.recorder.blobs[DIGEST] = bytes(64 * CHUNK_BYTES)
        counters = alice.transport.counters()[liar]
        await wait_until(lambda: counters.refusals[Reason.SLOW] >= 2, "cut off twice")
        await wait_until(lambda: asker.num_streams > LIMITS.max_lines, "and opened anew")
        assert alice.recorder.open_streams <= LIMITS.blob_streams
        assert not alice.transport.bans.is_banned(liar)


async def test_one_stream_is_idle_and_there_are_as_many_as_may_be_asked_at_once() -> None:
    asked = asyncio.Event()

    async def ask(context: Any) -> None:
        await asked.wait()
        await context.write(request(blob=pb.BlobRequest(digest=DIGEST)))
        await asyncio.Event().wait()

    async with asking(ask) as (alice, liar, asker):
        alice.recorder.blobs[DIGEST] = bytes(64 * CHUNK_BYTES)
        await wait_until(lambda: asker.num_streams == 1, "an idle stream")
        await asyncio.sleep(SHORT_S)
        assert asker.num_streams == 1
        asked.set()
        await wait_until(lambda: asker.num_streams == LIMITS.max_lines, "all there may be")
        refusals = alice.transport.counters()[liar].refusals
        await wait_until(lambda: alice.recorder.open_streams == LIMITS.blob_streams, "as many blobs as may be")
        await wait_until(
            lambda: refusals[Reason.CALLS] == LIMITS.blocks_at_once, "the others, told that it is too many"
        )
        await asyncio.sleep(SHORT_S)
        assert asker.num_streams == LIMITS.max_lines
        assert alice.recorder.open_streams == LIMITS.blob_streams
        assert refusals[Reason.CALLS] == LIMITS.blocks_at_once
