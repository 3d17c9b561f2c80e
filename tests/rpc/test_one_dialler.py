"""One dialler a pair: of two streams the lower key's stays, nothing is lost, and either carries both directions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from node.p2p.transport import link, served_lines
from node.p2p.transport.base import Direction, Handler, Message, MessageKind, PeerUnavailable
from node.p2p.transport.serving import Serving
from node.p2p.transport.session import Session, Stream
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import RpcNet, RpcNode, make_keys, rpc_net

DIGEST = b"d" * 32
DIALLED, ACCEPTED = Direction

T = TypeVar("T")


def get_direction(one: RpcNode, other: RpcNode) -> Direction | None:
    return one.transport.directions().get(other.id)


async def pull(reader: RpcNode, owner: RpcNode) -> bytes:
    owner.recorder.blobs[DIGEST] = b"blob of " + owner.id
    return b"".join([chunk async for chunk in reader.transport.fetch_blob(owner.id, DIGEST)])


async def get_in_time(ask: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except PeerUnavailable:
                await asyncio.sleep(0.01)


async def check_both_ways(alice: RpcNode, bob: RpcNode) -> None:
    """Messages, blobs and blocks go from each to the other. Who asks while one stream takes another's place asks again,
    as a node does."""
    for one, other in ((alice, bob), (bob, alice)):
        assert await get_in_time(lambda o=one, r=other: pull(o, r)) == b"blob of " + other.id  # type: ignore[misc]
        other.recorder.blocks = [(b"block", other.id)]
        blocks = await get_in_time(lambda o=one, r=other: o.transport.request_blocks(r.id, 0, 1))  # type: ignore[misc]
        assert blocks == other.recorder.blocks
        one.transport.post(other.id, Message(MessageKind.VOTE, one.id))
        await wait_until(lambda o=one, r=other: o.id in r.recorder.get_data(MessageKind.VOTE), "the vote")  # type: ignore[misc]


@asynccontextmanager
async def pair_with_wrong_address(wrong: int) -> AsyncIterator[tuple[RpcNode, RpcNode]]:
    """Alice and bob, one of whom knows no address at which the other can be reached."""
    keys, ports = make_keys(2), find_free_ports(3)
    addresses = {key.id: f"127.0.0.1:{port}" for key, port in zip(keys, ports, strict=False)}
    net = RpcNet()
    for i, key in enumerate(keys):
        known = dict.fromkeys(addresses, f"127.0.0.1:{ports[2]}") if i == wrong else addresses
        net.build(key, addresses[key.id], known)
    try:
        for node in net.nodes:
            await node.start()
        await wait_until(lambda: all(node.transport.connected() for node in net.nodes), "connected")
        yield net.nodes[0], net.nodes[1]
        net.check_foreseen()
    finally:
        await net.stop()


async def test_of_two_that_know_each_other_the_lower_key_dials() -> None:
    async with rpc_net(3) as net:
        alice, bob, carol = net.nodes
        pairs = ((alice, bob), (alice, carol), (bob, carol))
        await asyncio.sleep(2 * link.DEFER_S)  # when the higher keys may dial, too
        for one, other in pairs:
            await wait_until(lambda o=one, r=other: get_direction(o, r) is DIALLED, "the lower key's stream")  # type: ignore[misc]
            await wait_until(lambda o=one, r=other: get_direction(r, o) is ACCEPTED, "the same")  # type: ignore[misc]
        assert [len(node.recorder.ups) for node in net.nodes] == [2, 2, 2]
        assert not any(node.recorder.downs for node in net.nodes)
        await check_both_ways(alice, bob)


@pytest.mark.parametrize("wrong", [0, 1], ids=["lower", "higher"])
async def test_one_that_cannot_reach_the_other_takes_part_in_full(wrong: int) -> None:
    async with pair_with_wrong_address(wrong) as (alice, bob):
        assert get_direction(alice, bob) is (ACCEPTED if wrong == 0 else DIALLED)
        assert get_direction(bob, alice) is (DIALLED if wrong == 0 else ACCEPTED)
        await check_both_ways(alice, bob)
        assert (alice.recorder.downs, bob.recorder.downs) == ([], [])


async def test_of_two_streams_the_higher_keys_is_given_up_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bob dials alice over and over, though she has dialled him, and both talk all the time."""
    monkeypatch.setattr(link, "DEFER_S", 0.0)
    monkeypatch.setattr(Session, "has_accepted", False)
    given_up: list[asyncio.Event] = []
    write = Session.write

    async def at_once(_: Session) -> None:
        pass

    async def note(self: Session, stream: Stream, *rest: Any) -> None:
        given_up.append(stream.superseded)
        await write(self, stream, *rest)

    monkeypatch.setattr(Session, "write", note)
    monkeypatch.setattr(Session, "until_alone", at_once)
    async with rpc_net(2) as net:
        alice, bob = net.nodes
        await wait_until(lambda: get_direction(alice, bob) is DIALLED, "alice's stream")
        monkeypatch.setattr(link, "FIRST_PAUSE_S", 0.0)
        num_votes = 0
        async with asyncio.timeout(PATIENCE_S):
            while num_votes < 1000 or sum(ended.is_set() for ended in given_up) < 2:
                for one, other in ((alice, bob), (bob, alice)):
                    one.transport.post(other.id, Message(MessageKind.VOTE, num_votes.to_bytes(4, "big")))
                num_votes += 1
                await asyncio.sleep(0.001)
        await wait_until(
            lambda: all(len(node.recorder.messages) == num_votes for node in net.nodes), "every vote of both"
        )
        assert (get_direction(alice, bob), get_direction(bob, alice)) == (DIALLED, ACCEPTED)
        assert [node.recorder.downs for node in net.nodes] == [[], []]


async def test_a_stream_is_kept_until_the_one_that_stays_is_open_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alice is the last to see that bob has taken her stream: he has given his own up by then."""
    monkeypatch.setattr(link, "DEFER_S", 0.0)
    monkeypatch.setattr(Session, "has_accepted", False)
    lower, higher = (key.id for key in make_keys(2))
    gives_up, sees = asyncio.Event(), asyncio.Event()
    converse, give_up = link.Link.converse, link.Link.give_up

    async def at_once(_: Session) -> None:
        pass

    async def see_late(self: link.Link, call: object, stream: Stream, handler: Handler) -> None:
        if self.peer == higher:
            await sees.wait()
        await converse(self, call, stream, handler)

    async def note(self: link.Link, call: object, stream: Stream) -> None:
        if self.peer == lower:
            await stream.superseded.wait()
            gives_up.set()
        await give_up(self, call, stream)

    monkeypatch.setattr(Session, "until_alone", at_once)
    monkeypatch.setattr(link.Link, "converse", see_late)
    monkeypatch.setattr(link.Link, "give_up", note)
    async with rpc_net(2) as net:
        alice, bob = net.nodes
        await asyncio.wait_for(gives_up.wait(), PATIENCE_S)
        await asyncio.sleep(0.3)  # would she go down, she did now
        alice.transport.post(bob.id, Message(MessageKind.VOTE, b"alice goes on"))
        await wait_until(lambda: bool(bob.recorder.messages), "her vote")
        assert get_direction(alice, bob) is ACCEPTED
        sees.set()
        await wait_until(lambda: get_direction(alice, bob) is DIALLED, "her own stream")
        assert [node.recorder.downs for node in net.nodes] == [[], []]
        await check_both_ways(alice, bob)


async def test_who_waits_for_a_stream_to_ask_on_asks_over_the_connection_that_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alice waits for bob to hold a stream open when her own, dialled at the same time as his, is open."""

    async def hold_none(*_: object) -> None:
        await asyncio.Event().wait()

    async def at_once(_: Session) -> None:
        pass

    monkeypatch.setattr(Session, "has_accepted", False)
    monkeypatch.setattr(Session, "until_alone", at_once)
    monkeypatch.setattr(Serving, "run", hold_none)
    monkeypatch.setattr(served_lines, "LINE_S", 10 * PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S), pair_with_wrong_address(0) as (alice, bob):
        bob.recorder.blocks = [(b"block", bob.id)]
        blob = asyncio.create_task(pull(alice, bob))
        blocks = asyncio.create_task(alice.transport.request_blocks(bob.id, 0, 1))
        await asyncio.sleep(0.1)
        assert not blob.done()
        assert not blocks.done()
        await alice.transport.redial(bob.id, f"127.0.0.1:{bob.transport.port}")
        assert await blob == b"blob of " + bob.id
        assert await blocks == bob.recorder.blocks


@pytest.mark.parametrize("stopped", [0, 1], ids=["lower", "higher"])
async def test_after_a_break_the_pair_is_connected_again(stopped: int) -> None:
    async with rpc_net(2) as net:
        alice, bob = net.nodes
        for _ in range(2):
            await net.nodes[stopped].stop()
            await wait_until(lambda: not net.nodes[1 - stopped].transport.connected(), "it is gone")
            await asyncio.sleep(0.3)
            await net.nodes[stopped].start()
            await wait_until(lambda: all(node.transport.connected() for node in net.nodes), "connected again")
        await check_both_ways(alice, bob)


async def test_a_refused_peer_that_cannot_be_dialled_from_there_is_heard_again_after_it() -> None:
    """Bob alone can dial, and refuses alice for a while: he goes on to talk to her, and does not listen."""
    async with rpc_net(2, diallers=[1]) as net:
        alice, bob = net.nodes
        alice.transport.post(bob.id, Message(MessageKind.VOTE, bob.recorder.bad_data))
        await wait_until(lambda: alice.recorder.downs == [bob.id], "alice is refused")
        await wait_until(lambda: bob.transport.connected() == {alice.id}, "bob connected")
        bob.transport.post(alice.id, Message(MessageKind.VOTE, b"bob still talks"))
        await wait_until(lambda: bool(alice.recorder.messages), "bob's vote")
        assert not alice.transport.connected()
        with pytest.raises(PeerUnavailable):
            await pull(alice, bob)
        bob.clock.now_s = 61.0
        await wait_until(lambda: alice.transport.connected() == {bob.id}, "alice heard again", PATIENCE_S)
        await check_both_ways(alice, bob)
