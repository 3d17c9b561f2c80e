"""Connections over which nothing comes any more, though nobody has ended them: both ends notice by their pings, and the
one that dials finds a way that is good again."""

from __future__ import annotations

import asyncio
import time

import pytest

from node.p2p.transport.base import Message, MessageKind
from support.faults.way import open_way
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import RpcNet, make_keys

DIALLER_NOTICES_S = 10 + 5 + 5  # between two pings, for an answer, and for a loaded machine


@pytest.mark.outer
async def test_a_way_that_falls_silent_is_noticed_and_dialled_again() -> None:
    """A ping has a minute of its own by gRPC's defaults, whatever the keep-alive says."""
    alice, bob = make_keys(2)
    listens, other = (f"127.0.0.1:{port}" for port in find_free_ports(2))
    net = RpcNet()
    async with open_way(listens) as way:
        one = net.build(alice, listens, {}, members=[bob.id])
        two = net.build(bob, other, {alice.id: way.address}, members=[alice.id])
        try:
            await one.start()
            await two.start()
            await wait_until(lambda: one.transport.connected() == {bob.id}, "connected through the forwarder")
            await asyncio.sleep(1.0)  # what is said at the beginning counts as a sign of life
            num_opened = way.num_opened
            way.cut()
            began_s = time.monotonic()
            while way.num_opened == num_opened:
                assert time.monotonic() - began_s < DIALLER_NOTICES_S, "the dialler does not notice"
                await asyncio.sleep(0.1)
            one.transport.post(bob.id, Message(MessageKind.VOTE, b"over the new one"))
            message = (alice.id, Message(MessageKind.VOTE, b"over the new one"))
            while message not in two.recorder.messages:
                assert time.monotonic() - began_s < DIALLER_NOTICES_S + PATIENCE_S, "nothing over the new one"
                one.transport.post(bob.id, message[1])
                await asyncio.sleep(0.5)
            net.check_foreseen()
        finally:
            await net.stop()
