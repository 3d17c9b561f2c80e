"""The contract of every transport, held by the same tests over sockets with mutual TLS and in memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from typing import Literal, NoReturn

import pytest

from chain.block import Id
from chain.errors import StoreFull
from node.boundary import Boundary
from node.p2p.transport.base import (
    CHUNK_BYTES,
    KIND_NAMES,
    MAX_BLOCKS_REPLY_BYTES,
    MAX_MESSAGE_BYTES,
    BlobNotFound,
    BlobNotYet,
    BlobTooLong,
    Message,
    MessageKind,
    PeerUnavailable,
    Transport,
)
from node.p2p.transport.rate_limits import RateLimits
from support.federation.memory_transport import MemoryNetwork
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, Recorder, wait_until
from support.federation.transports import RpcNet, make_keys, rpc_net

BLOB = bytes(range(256)) * (10 * 1024) + b"tail"  # 2.5 MiB and a bit
DIGEST = hashlib.sha256(BLOB).digest()


@dataclass
class Node:
    id: Id
    transport: Transport
    recorder: Recorder
    boundary: Boundary
    stop: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]]
    dials: bool = True


@asynccontextmanager
async def memory_pair() -> AsyncIterator[tuple[Node, Node]]:
    network = MemoryNetwork(notice_s=0.01)
    nodes: list[Node] = []
    tasks: dict[Id, asyncio.Task[None]] = {}

    def build(peer: Id) -> Node:
        transport, recorder = network.transport(peer), Recorder()

        async def start() -> None:
            tasks[peer] = asyncio.create_task(transport.run(recorder))

        async def stop() -> None:
            tasks[peer].cancel()
            await asyncio.gather(tasks[peer], return_exceptions=True)

        return Node(peer, transport, recorder, transport.boundary, stop, start)

    try:
        for key in make_keys(2):
            nodes.append(build(key.id))
            await nodes[-1].start()
        await wait_until(lambda: all(node.transport.connected() for node in nodes), "connected")
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            await node.stop()


@asynccontextmanager
async def rpc_pair(
    tls: Literal["mutual", "off"] = "mutual", diallers: Sequence[int] = (0, 1)
) -> AsyncIterator[tuple[Node, Node]]:
    async with rpc_net(2, tls=tls, limits=RateLimits(blob_grace_s=PATIENCE_S), diallers=diallers) as net:
        alice, bob = (
            Node(node.id, node.transport, node.recorder, node.transport.boundary, node.stop, node.start, i in diallers)
            for i, node in enumerate(net.nodes)
        )
        yield alice, bob


@pytest.fixture(params=["memory", "rpc", "rpc without tls", "rpc, alice dials", "rpc, bob dials"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Node, Node]]:
    match request.param:
        case "memory":
            opened = memory_pair()
        case "rpc":
            opened = rpc_pair()
        case "rpc, alice dials":
            opened = rpc_pair(diallers=[0])
        case "rpc, bob dials":
            opened = rpc_pair(diallers=[1])
        case _:
            opened = rpc_pair("off")
    async with opened as nodes:
        yield nodes


Pair = tuple[Node, Node]


async def test_what_is_posted_arrives_with_its_kind_and_sender(pair: Pair) -> None:
    alice, bob = pair
    sent = [
        Message(kind, bytes([kind, i])) for kind in MessageKind if kind is not MessageKind.STATUS for i in range(50)
    ]
    sent.append(Message(MessageKind.STATUS, b"status"))
    for message in sent:
        alice.transport.post(bob.id, message)
    await wait_until(lambda: len(bob.recorder.messages) >= len(sent), "everything sent")
    assert Counter(bob.recorder.messages) == Counter((alice.id, message) for message in sent)
    assert alice.recorder.messages == []


async def test_both_directions_at_once(pair: Pair) -> None:
    alice, bob = pair
    alice.transport.post(bob.id, Message(MessageKind.VOTE, b"from alice"))
    bob.transport.post(alice.id, Message(MessageKind.VOTE, b"from bob"))
    await wait_until(lambda: bool(alice.recorder.messages and bob.recorder.messages), "both")
    assert alice.recorder.messages == [(bob.id, Message(MessageKind.VOTE, b"from bob"))]


async def test_the_largest_message_of_each_kind_passes_and_a_larger_one_is_our_mistake(pair: Pair) -> None:
    alice, bob = pair
    for kind, limit in MAX_MESSAGE_BYTES.items():
        alice.transport.post(bob.id, Message(kind, bytes(limit)))
        with pytest.raises(ValueError, match=f"over its limit of {limit}"):
            alice.transport.post(bob.id, Message(kind, bytes(limit + 1)))
    await wait_until(lambda: len(bob.recorder.messages) == len(MAX_MESSAGE_BYTES), "one of each")
    assert {message.kind: len(message.data) for _, message in bob.recorder.messages} == MAX_MESSAGE_BYTES


async def test_a_full_queue_drops_and_counts(pair: Pair) -> None:
    alice, bob = pair
    for i in range(3000):
        alice.transport.post(bob.id, Message(MessageKind.VOTE, i.to_bytes(4, "big")))
    dropped = alice.transport.counters()[bob.id].dropped
    assert 0 < dropped < 3000
    await wait_until(lambda: len(bob.recorder.messages) == 3000 - dropped, "the rest")


async def test_large_messages_fill_the_queue_by_their_bytes(pair: Pair) -> None:
    alice, bob = pair
    for _ in range(100):
        alice.transport.post(bob.id, Message(MessageKind.BLOCK, bytes(256 * 1024)))
    assert alice.transport.counters()[bob.id].dropped >= 80


async def test_traffic_is_counted_by_peer_and_kind(pair: Pair) -> None:
    alice, bob = pair
    bob.recorder.blobs[DIGEST] = BLOB
    for _ in range(10):
        alice.transport.post(bob.id, Message(MessageKind.VOTE, bytes(200)))
    await wait_until(lambda: len(bob.recorder.messages) == 10, "ten votes")
    async for _ in alice.transport.fetch_blob(bob.id, DIGEST):
        pass
    await wait_until(lambda: alice.transport.counters()[bob.id].messages_sent == 10, "counted")
    sent, received = alice.transport.counters()[bob.id], bob.transport.counters()[alice.id]
    assert sent.kinds["vote"].messages_sent == received.kinds["vote"].messages_received == 10
    assert sent.kinds["vote"].bytes_sent == received.kinds["vote"].bytes_received
    assert 2000 < sent.bytes_sent < 2500
    assert len(BLOB) < sent.kinds["blob"].bytes_received < len(BLOB) + 200
    await wait_until(
        lambda: received.kinds["blob"].bytes_sent == sent.kinds["blob"].bytes_received, "the last chunk counted by both"
    )


async def test_a_blob_comes_in_chunks_of_a_mebibyte_and_resumes_at_an_offset(pair: Pair) -> None:
    alice, bob = pair
    bob.recorder.blobs[DIGEST] = BLOB
    chunks = [chunk async for chunk in alice.transport.fetch_blob(bob.id, DIGEST, max_bytes=len(BLOB))]
    assert b"".join(chunks) == BLOB
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES, CHUNK_BYTES, len(BLOB) - 2 * CHUNK_BYTES]
    rest = [chunk async for chunk in alice.transport.fetch_blob(bob.id, DIGEST, 1_000_000, max_bytes=len(BLOB))]
    assert b"".join(rest) == BLOB[1_000_000:]
    assert bob.recorder.blob_requests == [(alice.id, 0), (alice.id, 1_000_000)]


async def test_a_transfer_given_up_and_resumed_is_whole_and_leaves_nothing_open(pair: Pair) -> None:
    alice, bob = pair
    bob.recorder.blobs[DIGEST] = BLOB
    async with aclosing(alice.transport.fetch_blob(bob.id, DIGEST)) as chunks:
        got = await anext(chunks)
    async for chunk in alice.transport.fetch_blob(bob.id, DIGEST, len(got)):
        got += chunk
    assert got == BLOB
    await wait_until(lambda: bob.recorder.open_streams == 0, "bob's streams closed")


async def test_many_blobs_at_once_are_all_whole(pair: Pair) -> None:
    alice, bob = pair
    blobs = {bytes([i]) * 32: bytes([i]) * (100_000 * i) for i in range(20)}
    bob.recorder.blobs |= blobs

    async def fetch(digest: bytes) -> bytes:
        return b"".join([chunk async for chunk in alice.transport.fetch_blob(bob.id, digest)])

    assert await asyncio.gather(*map(fetch, blobs)) == list(blobs.values())


async def test_a_blob_that_is_not_there(pair: Pair) -> None:
    alice, bob = pair
    bob.recorder.blobs[DIGEST] = BLOB
    for _ in range(3):
        with pytest.raises(BlobNotFound):
            await anext(alice.transport.fetch_blob(bob.id, b"?" * 32))
    assert len([chunk async for chunk in alice.transport.fetch_blob(bob.id, DIGEST)]) == 3


async def test_a_blob_that_is_not_there_yet_is_told_from_one_that_is_not_there(pair: Pair) -> None:
    alice, bob = pair
    bob.recorder.coming.add(DIGEST)
    for _ in range(3):
        with pytest.raises(BlobNotYet):
            await anext(alice.transport.fetch_blob(bob.id, DIGEST))
    with pytest.raises(BlobNotFound) as caught:
        await anext(alice.transport.fetch_blob(bob.id, b"?" * 32))
    assert not isinstance(caught.value, BlobNotYet)
    bob.recorder.blobs[DIGEST] = BLOB
    assert len([chunk async for chunk in alice.transport.fetch_blob(bob.id, DIGEST)]) == 3


async def test_a_blob_longer_than_declared_is_broken_off(pair: Pair) -> None:
    alice, bob = pair
    bob.recorder.blobs[DIGEST] = BLOB
    chunks = alice.transport.fetch_blob(bob.id, DIGEST, max_bytes=CHUNK_BYTES + 5)
    assert len(await anext(chunks)) == CHUNK_BYTES
    with pytest.raises(BlobTooLong):
        await anext(chunks)
    await wait_until(lambda: bob.recorder.open_streams == 0, "bob's stream closed")


async def test_blocks_come_from_a_height_on_as_many_as_fit(pair: Pair) -> None:
    alice, bob = pair
    bob.recorder.blocks = [(bytes([i]) * 200_000, bytes([i]) * 500) for i in range(20)]
    assert await alice.transport.request_blocks(bob.id, 3, 2) == bob.recorder.blocks[3:5]
    assert await alice.transport.request_blocks(bob.id, 20, 10) == []
    many = await alice.transport.request_blocks(bob.id, 0, 1000)
    assert many == bob.recorder.blocks[: MAX_BLOCKS_REPLY_BYTES // 200_500]


async def test_a_peer_that_stops_is_down_and_one_that_starts_is_up(pair: Pair) -> None:
    alice, bob = pair
    assert alice.recorder.ups == [bob.id]
    async with asyncio.timeout(PATIENCE_S):
        await bob.stop()
    await wait_until(lambda: alice.recorder.downs == [bob.id], "alice sees bob go")
    assert alice.transport.connected() == frozenset()
    alice.transport.post(bob.id, Message(MessageKind.VOTE, b"lost"))
    assert alice.transport.counters()[bob.id].dropped == 1
    with pytest.raises(PeerUnavailable):
        await alice.transport.request_blocks(bob.id, 0, 1)
    with pytest.raises(PeerUnavailable):
        await anext(alice.transport.fetch_blob(bob.id, DIGEST))
    await bob.start()
    await wait_until(lambda: alice.recorder.ups == [bob.id, bob.id], "alice sees bob come")
    alice.transport.post(bob.id, Message(MessageKind.VOTE, b"heard"))
    await wait_until(lambda: bob.recorder.get_data(MessageKind.VOTE) == [b"heard"], "the vote")
    bob.recorder.blobs[DIGEST] = BLOB
    assert b"".join([chunk async for chunk in alice.transport.fetch_blob(bob.id, DIGEST)]) == BLOB


async def test_a_connection_that_neither_keeps_is_let_go_and_one_that_either_keeps_is_there(pair: Pair) -> None:
    alice, bob = pair
    alice.transport.keep([])
    bob.transport.keep([])
    await wait_until(lambda: not alice.transport.connected() and not bob.transport.connected(), "nobody is connected")
    bob.transport.keep([alice.id])
    alice.transport.keep(None if not bob.dials else [])  # one that has no address has to be dialled
    await wait_until(lambda: bool(alice.transport.connected() and bob.transport.connected()), "both are again")
    alice.transport.post(bob.id, Message(MessageKind.VOTE, b"heard"))
    await wait_until(lambda: bob.recorder.get_data(MessageKind.VOTE) == [b"heard"], "the vote")


@pytest.mark.outer
async def test_one_that_is_away_is_dialled_several_times_a_second() -> None:
    """So it is up soon after it starts: twenty attempts take 5 s, and a minute with the pauses for a network."""
    attempts = 0

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.transport.abort()

    alice, bob = make_keys(2)
    net = RpcNet()
    ports = find_free_ports(2)
    node = net.build(alice, f"127.0.0.1:{ports[0]}", {bob.id: f"127.0.0.1:{ports[1]}"})
    server = await asyncio.start_server(hang_up, "127.0.0.1", ports[1])
    with closing(server):
        try:
            await node.start()
            await wait_until(lambda: attempts >= 20, "twenty attempts", 40)
        finally:
            await net.stop()


async def test_a_peer_that_goes_during_a_transfer_fails_it(pair: Pair) -> None:
    alice, bob = pair
    bob.recorder.blobs[DIGEST] = bytes(64 * CHUNK_BYTES)  # far more than is on its way at a time
    chunks = alice.transport.fetch_blob(bob.id, DIGEST)
    await anext(chunks)
    await bob.stop()
    with pytest.raises(PeerUnavailable):
        async for _ in chunks:
            pass


async def test_bad_bytes_get_their_sender_refused(pair: Pair) -> None:
    alice, bob = pair
    alice.transport.post(bob.id, Message(MessageKind.VOTE, bob.recorder.bad_data))
    await wait_until(lambda: alice.recorder.downs == [bob.id], "alice is refused")
    await asyncio.sleep(0.3)
    assert alice.transport.connected() == frozenset()
    with pytest.raises(PeerUnavailable):
        await alice.transport.request_blocks(bob.id, 0, 1)
    if bob.dials:  # alice did not refuse him
        await wait_until(lambda: bob.transport.connected() == {alice.id}, "bob has dialled")
        bob.transport.post(alice.id, Message(MessageKind.VOTE, b"bob still talks"))
        await wait_until(lambda: bool(alice.recorder.messages), "bob's vote")


async def test_what_goes_wrong_in_a_handler_unforeseen_is_refused_and_counted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages, calls and the coming of a peer: each fails, and the same peer is served at once after it."""
    alice, bob = pair

    def fail(*_: object) -> NoReturn:
        raise RuntimeError("a bug in the service")

    async def fail_later(*_: object) -> NoReturn:
        fail()

    async def fail_half_way(*_: object) -> AsyncIterator[bytes]:
        yield BLOB[:CHUNK_BYTES]
        fail()

    def has_failed(what: str) -> bool:
        return bob.boundary.failures[what] == 1

    with monkeypatch.context() as patch:
        patch.setattr(bob.recorder, "on_message", fail)
        for kind in MessageKind:
            alice.transport.post(bob.id, Message(kind, b"x"))
            await wait_until(partial(has_failed, KIND_NAMES[kind]), f"a refused {kind.name}")
    alice.transport.post(bob.id, Message(MessageKind.VOTE, b"sound"))
    await wait_until(lambda: bob.recorder.get_data(MessageKind.VOTE) == [b"sound"], "the vote after it")

    with monkeypatch.context() as patch:
        patch.setattr(bob.recorder, "on_blocks_request", fail_later)
        with pytest.raises(PeerUnavailable):
            await alice.transport.request_blocks(bob.id, 0, 1)
    bob.recorder.blocks = [(b"block", b"certificate")]
    assert await alice.transport.request_blocks(bob.id, 0, 1) == bob.recorder.blocks

    with monkeypatch.context() as patch:
        patch.setattr(bob.recorder, "on_blob_request", fail_half_way)
        with pytest.raises(PeerUnavailable):
            async for _ in alice.transport.fetch_blob(bob.id, DIGEST):
                pass
    bob.recorder.blobs[DIGEST] = BLOB
    assert b"".join([chunk async for chunk in alice.transport.fetch_blob(bob.id, DIGEST)]) == BLOB

    with monkeypatch.context() as patch:
        for name in ("on_peer_up", "on_peer_down"):
            patch.setattr(bob.recorder, name, fail)
        await alice.stop()
        await wait_until(lambda: not bob.transport.connected(), "alice is gone")
        await alice.start()
        await wait_until(lambda: bool(bob.transport.connected()), "alice is back")
        await wait_until(lambda: bool(alice.transport.connected()), "bob is back")
    alice.transport.post(bob.id, Message(MessageKind.VOTE, b"again"))
    await wait_until(lambda: bob.recorder.get_data(MessageKind.VOTE)[1:] == [b"again"], "the vote of one come back")

    failures = {**dict.fromkeys(map(KIND_NAMES.get, MessageKind), 1), "blocks": 1, "blob": 1, "connection": 2}
    assert bob.boundary.failures == failures
    assert bob.boundary.by_peer == {alice.id: sum(failures.values())}
    bob.boundary.failures.clear()  # all of them are this test's


async def test_the_nodes_own_trouble_in_a_handler_is_heard_at_the_top() -> None:
    class Broken(Recorder):
        def on_message(self, peer: Id, message: Message) -> None:
            raise StoreFull("the disk is full")

    async with rpc_net(2) as net:
        alice, bob = net.nodes
        bob.recorder.on_message = Broken().on_message  # type: ignore[method-assign]  # this test's point
        alice.transport.post(bob.id, Message(MessageKind.VOTE, b"x"))
        assert bob.task is not None
        with pytest.raises(StoreFull, match="the disk is full"):
            await asyncio.wait_for(bob.task, PATIENCE_S)
        bob.task = None
