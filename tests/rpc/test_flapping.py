"""A peer that opens one stream of messages after the other: it is greeted no more often than it may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc

from node.p2p.refusals import Reason
from node.p2p.transport.link import ACCEPTED_KEY
from node.p2p.transport.rate_limits import RateLimits
from support.faults.strangers import open_channel, own_leaf
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import RpcNode, rpc_net

PATH = "/fednode.v1.Peer/Push"
LIMITS = replace(RateLimits(), streams_per_s=1e-6, streams_burst=5.0)  # within the test there are no more
NUM_STREAMS = 40


@asynccontextmanager
async def attacked() -> AsyncIterator[tuple[RpcNode, RpcNode, grpc.aio.Channel]]:
    """Alice listens; bob's key is in the hands of the test."""
    async with rpc_net(2, limits=LIMITS, start=[0], diallers=[1]) as net:
        alice, bob = net.nodes
        async with open_channel(alice.transport.port, alice.id, own_leaf(bob.key)) as channel:
            yield alice, bob, channel


async def is_taken(channel: grpc.aio.Channel, timeout_s: float = PATIENCE_S) -> bool:
    call = channel.stream_stream(PATH, None, None)(None)
    try:
        async with asyncio.timeout(timeout_s):
            return ACCEPTED_KEY in await call.initial_metadata()
    except TimeoutError:
        return False
    finally:
        call.cancel()


async def test_who_opens_stream_after_stream_is_greeted_no_more_often_than_it_may_be() -> None:
    async with attacked() as (alice, _, channel):
        for count in range(1, int(LIMITS.streams_burst) + 1):
            assert await is_taken(channel)
            await wait_until(lambda count=count: len(alice.recorder.downs) == count, "its end seen", PATIENCE_S)  # type: ignore[misc]
        assert [await is_taken(channel, 0.5) for _ in range(2)] == [False] * 2
        assert len(alice.recorder.ups) == len(alice.recorder.downs) == 5


async def test_no_more_of_its_streams_wait_than_may() -> None:
    async with attacked() as (alice, bob, channel):
        for _ in range(int(LIMITS.streams_burst)):
            assert await is_taken(channel)
        calls = [channel.stream_stream(PATH, None, None)(None) for _ in range(NUM_STREAMS)]
        refused = NUM_STREAMS - LIMITS.streams_waiting
        await wait_until(lambda: sum(call.done() for call in calls) == refused, "the surplus turned away", PATIENCE_S)
        assert alice.transport.counters()[bob.id].refusals == {Reason.CALLS: refused}
        assert not alice.transport.bans.is_banned(bob.id)
