"""The times at which a node tells its status: once a change has stood for Delta, every `status_s`, and at once to whom
it is ahead of."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import groupby
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chain.block import Id
from chain.tip import Tip
from node.consensus.gossip.gossip import Gossip, Position
from node.p2p.peers import Peers, compute_cycle, compute_silence_s
from node.p2p.status import Status, status_from_bytes
from node.p2p.transport.base import Message, MessageKind
from support.data.chains import make_chain, make_genesis, make_keys
from support.federation.virtual_time import run_virtual

KEYS = sorted(make_keys(4), key=lambda key: key.id)
GENESIS = make_genesis(KEYS)
BLOCKS = [GENESIS.block0, *(block for block, _ in make_chain(GENESIS, KEYS, 3))]
WAITS = GENESIS.rules.waits


class Teller:
    """A member that has its run over, and one peer; `tip` is what it tells of."""

    def __init__(self) -> None:
        self.told: list[tuple[float, int]] = []  # when, and of which height
        self.tip = Tip.at(GENESIS.state, BLOCKS[:1])
        clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), now_ms=lambda: 0)
        transport = SimpleNamespace(me=KEYS[0].id, connected=lambda: {KEYS[1].id}, post=self.post)
        self.peers = Peers(GENESIS.state, KEYS[0].id, cast(Any, clock))
        self.gossip = Gossip(
            cast(Any, transport), self.peers, cast(Any, clock), lambda: Position(self.tip, None, contributes=False)
        )

    def post(self, peer: Id, message: Message) -> None:
        assert (peer, message.kind) == (KEYS[1].id, MessageKind.STATUS)
        self.told.append((asyncio.get_running_loop().time(), status_from_bytes(message.data).head_height))

    def finalise(self) -> None:
        self.tip = self.tip.extend(BLOCKS[self.tip.height + 1])
        self.gossip.on_height()


def test_a_change_is_told_once_it_has_stood_for_delta_and_those_in_a_row_together() -> None:
    async def story() -> None:
        teller = Teller()
        telling = asyncio.create_task(teller.gossip.run())
        await asyncio.sleep(0.01)
        teller.gossip.on_step()
        await asyncio.sleep(WAITS.delta_s / 2)
        teller.gossip.on_step()
        await asyncio.sleep(WAITS.status_s / 2)
        assert [round(at_s, 6) for at_s, _ in teller.told] == [round(0.01 + WAITS.delta_s, 6)]
        telling.cancel()

    run_virtual(story())


def test_heights_that_pass_within_delta_cost_no_status_each() -> None:
    async def story() -> None:
        teller = Teller()
        telling = asyncio.create_task(teller.gossip.run())
        await asyncio.sleep(0)
        for _ in range(3):
            teller.finalise()
            await asyncio.sleep(0.9 * WAITS.delta_s)
        await asyncio.sleep(WAITS.status_s / 2)
        assert [height for _, height in teller.told] == [3]
        telling.cancel()

    run_virtual(story())


def test_a_status_is_told_every_status_s_however_fast_heights_pass() -> None:
    async def story() -> None:
        teller = Teller()
        telling = asyncio.create_task(teller.gossip.run())
        await asyncio.sleep(0)
        end_s = 5 * WAITS.status_s
        while asyncio.get_running_loop().time() < end_s:
            teller.tip = Tip.at(GENESIS.state, BLOCKS[:1]) if teller.tip.height == 3 else teller.tip
            teller.finalise()
            await asyncio.sleep(0.9 * WAITS.delta_s)
        assert 4 <= len(teller.told) <= 5
        telling.cancel()

    run_virtual(story())


def test_who_is_behind_is_told_at_once_where_this_node_stands_and_nobody_else() -> None:
    async def story() -> None:
        teller = Teller()
        teller.finalise()
        for head_height in (0, 1, 2):
            head = BLOCKS[head_height].id
            teller.gossip.on_status(KEYS[1].id, Status(GENESIS.chain_id, head_height, head))
        assert teller.told == [(0.0, 1)]

    run_virtual(story())


# ---- of many members, each status goes to some


@pytest.mark.parametrize(
    ("num_members", "cycle"), [(1, 1), (4, 1), (9, 1), (10, 3), (16, 4), (18, 5), (29, 7), (33, 8), (100, 8), (300, 8)]
)
def test_up_to_eight_others_are_told_at_once_and_more_in_turn(num_members: int, cycle: int) -> None:
    assert compute_cycle(num_members) == cycle


def test_of_many_members_each_is_told_once_in_a_cycle_and_observers_always() -> None:
    keys = sorted(make_keys(35), key=lambda key: key.id)
    genesis, observer = make_genesis(keys), b"\xff" * 32
    told: list[Id] = []

    async def story() -> None:
        clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), now_ms=lambda: 0)
        transport = SimpleNamespace(
            me=keys[7].id,
            connected=lambda: {key.id for key in keys} - {keys[7].id} | {observer},
            post=lambda peer, message: told.append(peer),
        )
        tip = Tip.at(genesis.state, [genesis.block0])
        peers = Peers(genesis.state, keys[7].id, cast(Any, clock))
        gossip = Gossip(cast(Any, transport), peers, cast(Any, clock), lambda: Position(tip, None, contributes=False))
        telling = asyncio.create_task(gossip.run())
        await asyncio.sleep(8.5 * genesis.rules.waits.status_s)
        telling.cancel()

    run_virtual(story())
    counts = Counter(told)
    assert counts.pop(observer) == 8
    assert counts == {key.id: 1 for key in keys if key is not keys[7]}
    assert max(len(list(turn)) for _, turn in groupby(told, key=lambda peer: peer == observer)) <= 2 * 5


def test_among_many_members_one_is_silent_only_after_a_whole_cycle_and_the_usual_misses() -> None:
    keys = sorted(make_keys(35), key=lambda key: key.id)
    genesis = make_genesis(keys)
    status_s = genesis.rules.waits.status_s
    assert compute_silence_s(genesis.state) == 11 * status_s
    assert compute_silence_s(GENESIS.state) == 4 * status_s
    now_s = [0.0]
    peers = Peers(genesis.state, keys[0].id, cast(Any, SimpleNamespace(monotonic=lambda: now_s[0])))
    peers.on_seen(keys[1].id)
    now_s[0] = 10.9 * status_s
    assert peers.is_alive(keys[1].id)
    now_s[0] = 11 * status_s
    assert not peers.is_alive(keys[1].id)
