"""The times at which a node tells its status: once a change has stood for Delta, every `status_s`, and at once to whom
it is ahead of."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from chain.block import Id
from chain.tip import Tip
from node.consensus.gossip import Gossip, Position
from node.p2p.peers import Peers
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
