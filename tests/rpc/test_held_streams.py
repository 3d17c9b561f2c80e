"""Streams that a dialling peer holds open, as rounds use them: pulls that are broken off do not cost the next ones."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing

import pytest

from node.p2p.transport import serving
from support.federation.recording import PATIENCE_S
from support.federation.transports import RpcNode, rpc_net

DIGEST = b"d" * 32
OTHER = b"o" * 32
NUM_BROKEN_OFF = 24  # enough for pauses that double, of two streams in turn, to be longer than anybody waits


async def break_off(reader: RpcNode, owner: RpcNode) -> None:
    """As a round does that is over."""
    async with aclosing(reader.transport.fetch_blob(owner.id, DIGEST)) as chunks:
        await anext(chunks)


async def pull(reader: RpcNode, owner: RpcNode) -> bytes:
    return b"".join([chunk async for chunk in reader.transport.fetch_blob(owner.id, OTHER)])


async def test_pulls_that_are_broken_off_hold_up_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alice dials bob, and bob pulls over the streams that she holds open."""
    monkeypatch.setattr(serving, "STEADY_AFTER_S", math.inf)  # no pause becomes short again by waiting
    async with rpc_net(2) as net:
        alice, bob = net.nodes
        alice.recorder.blobs = {DIGEST: bytes(8 << 20), OTHER: b"small"}
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(NUM_BROKEN_OFF):
                await break_off(bob, alice)
            assert await pull(bob, alice) == b"small"
