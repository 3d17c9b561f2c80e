"""Members that lie about whom they reach, or keep what they should pass on: no storm comes of it, and all go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chain import codec
from chain.block import Digest, Id
from node.consensus.gossip.relay import Relay
from node.p2p.peers import Peers
from node.p2p.transport.base import Message, MessageKind
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, cluster
from support.federation.reach import count_authors, count_messages, get_service, start_apart
from support.federation.virtual_time import run_virtual

HONEST = ("node0", "node1", "node2")
NUM_LIES = 40


def run(story: Callable[[], Any]) -> None:
    run_virtual(story())


def get_bit(net: Cluster, name: str) -> int:
    index = net.genesis.state.index_of(net.id(name))
    assert index is not None
    return 1 << index


def count_statuses(net: Cluster, liar: Liar) -> int:
    """Of the honest."""
    own = sum(counters.kinds["status"].messages_sent for counters in liar.transport.counters().values())
    return count_messages(net, "status") - own


def read_signer(message: Message, chain_id: Digest) -> Id | None:
    """Whose a vote, a contribution or a candidate is."""
    match message.kind:
        case MessageKind.VOTE | MessageKind.CONTRIBUTION:
            return codec.read_author(message.data)
        case MessageKind.BLOCK:
            return codec.decode_block(chain_id, message.data).header.miner
        case _:
            return None


async def tell(liar: Liar, num: int, **lie: object) -> None:
    """So often, a few times a second."""
    for _ in range(num):
        liar.send(liar.make_status(**lie))
        await asyncio.sleep(0.15)


def test_what_a_member_tells_over_and_over_is_looked_at_once_a_height(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[tuple[Peers, int]] = Counter()
    get_word = Peers.get_word

    def count(peers: Peers, member: Id, height: int) -> bool | None:
        asked[peers, height] += 1
        return get_word(peers, member, height)

    async def story() -> None:
        async with cluster(tmp_path, 4, start=("node0", "node1"), train_s=30.0) as net, lying(net, "node3") as liar:
            absent = get_bit(net, "node2")
            monkeypatch.setattr(Peers, "get_word", count)
            await tell(liar, NUM_LIES, reaches=absent, contributing=absent)
            assert max(asked.values()) < NUM_LIES / 2  # the watch for stalls looks too, now and then
            assert net.id("node2") in get_service(net, "node0").machine.awaited  # type: ignore[union-attr]

    run(story)


@pytest.mark.parametrize("lie", ["reaches nobody", "contributes by turns"])
def test_no_lie_about_reach_makes_the_honest_send_more(tmp_path: Path, lie: str) -> None:
    """In a height that takes long: beyond what they say every `status_s`, a few messages."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST, train_s=60.0) as net, lying(net, "node3") as liar:
            clock = net["node0"].clock
            await tell(liar, 3, reaches=0b1111)
            before, began_s = count_statuses(net, liar), clock.monotonic()
            for turn in range(NUM_LIES):
                contributes = lie == "reaches nobody" or turn % 2 == 0
                await tell(liar, 1, reaches=0, contributes=contributes, abstains=not contributes)
            num_periods = (clock.monotonic() - began_s) / net.genesis.rules.waits.status_s
            assert count_statuses(net, liar) - before <= 3 * 3 * (num_periods + 3)  # of three to three others
            assert sum(get_service(net, name).gossip.relay.num_passed_on for name in HONEST) == 0

    run(story)


def test_one_that_keeps_what_it_is_to_pass_on_holds_up_no_round_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """node0 and node1 do not reach each other. It is for each of the two others to pass on what one of them signs, and
    one of these passes on nothing, nor repairs it."""
    pass_on = Relay.pass_on

    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            start_apart(net, [("node0", "node1")])
            await net.wait_for_height(1)
            keeper, pair = get_service(net, "node2"), {net.id("node0"), net.id("node1")}

            def keep(relay: Relay, sender: Id, author: Id, message: Message) -> None:
                if relay is not keeper.gossip.relay:
                    pass_on(relay, sender, author, message)

            monkeypatch.setattr(Relay, "pass_on", keep)
            transport = net["node2"].get_context().transport
            post = transport.post

            def post_others(peer: Id, message: Message) -> None:
                if read_signer(message, net.genesis.chain_id) not in pair:
                    post(peer, message)

            transport.post = post_others  # type: ignore[method-assign]
            clock, ends_s = net["node3"].clock, []
            for height in range(2, 14):
                await net.wait_for_height(height)
                ends_s.append(clock.monotonic())
            net.check_agreement()
            assert [count_authors(net, height) for height in range(2, 14)] == [4] * 12
            assert max(after - before for before, after in pairwise(ends_s)) < 2 * net.genesis.rules.waits.status_s

    run(story)
