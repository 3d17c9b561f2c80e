"""Round trips over real sockets: both ends of a connection know theirs, whoever has dialled."""

from __future__ import annotations

import asyncio

import pytest

from node.p2p.transport import round_trips
from node.p2p.transport.base import Message, MessageKind
from support.federation.recording import wait_until
from support.federation.transports import rpc_net

VOTE = Message(MessageKind.VOTE, b"any")


@pytest.mark.parametrize("diallers", [[0], [1], [0, 1]])
def test_both_ends_measure_whoever_has_dialled(diallers: list[int]) -> None:
    async def story() -> None:
        async with rpc_net(2, diallers=diallers) as net:
            alice, bob = net.nodes
            for here, there in ((alice, bob), (bob, alice)):
                assert here.transport.round_trips()[there.id].get_typical_s() is None  # nothing was said yet
                here.transport.post(there.id, VOTE)
            for here, there in ((alice, bob), (bob, alice)):
                trips = here.transport.round_trips()[there.id]
                await wait_until(lambda trips=trips: trips.get_typical_s() is not None, "a round trip")  # type: ignore[misc]
                assert 0 < trips.longest_s < 5
            assert (len(alice.recorder.messages), len(bob.recorder.messages)) == (1, 1)  # an answer is no message

    asyncio.run(story())


def test_an_answer_goes_out_though_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_trips, "PING_S", 0.0)
    monkeypatch.setattr(round_trips, "LEAST_S", 0.0)

    async def story() -> None:
        async with rpc_net(2) as net:
            alice, bob = net.nodes
            trips = alice.transport.round_trips()[bob.id]
            for _ in range(3):
                before = trips.num_newest
                alice.transport.post(bob.id, VOTE)
                await wait_until(lambda before=before: trips.num_newest == before + 1, "another")  # type: ignore[misc]
            assert bob.transport.counters()[alice.id].messages_sent == 0

    asyncio.run(story())
