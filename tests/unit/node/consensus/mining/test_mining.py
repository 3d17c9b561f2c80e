"""The mining time in a mined header, by a miner that takes virtual time."""

from __future__ import annotations

from random import Random

import pytest

from chain.block import Block, Body, Header
from chain.codec import make_block
from chain.pow import is_valid_work
from chain.tip import Tip
from node.consensus.mining.mining import FIRST_COUNT, RESEAL_S, SLICES, mine_block
from support.data.chains import make_digest, make_genesis, make_keys
from support.federation.cluster import SleepyMiner, VirtualClock
from support.federation.virtual_time import run_virtual

KEYS = make_keys(4)
RATE = 100_000.0


class CountingMiner(SleepyMiner):
    """Notes how long each search took that found nothing."""

    def __init__(self) -> None:
        super().__init__(RATE)
        self.searches_s: list[float] = []

    async def mine(self, seal: bytes, difficulty: int, start_nonce: int, count: int) -> int | None:
        found = await super().mine(seal, difficulty, start_nonce, count)
        if found is None:
            self.searches_s.append(count / self.rate)
        return found


@pytest.mark.parametrize(("high", "slice_s"), [(2**32, 0.8 / SLICES), (100_000, RESEAL_S)])
def test_a_header_says_how_long_mining_took_where_difficulty_follows_it(high: int, slice_s: float) -> None:
    rules = {"difficulty": 100_000, "min": 100_000, "max": high, "target_ms": 800}
    genesis = make_genesis(KEYS, pow=rules)

    async def sign(header: Header, nonce: int, body: Body) -> Block:
        return make_block(genesis.chain_id, header, nonce, body, KEYS[0])

    async def story() -> None:
        clock, miner = VirtualClock(), CountingMiner()
        for seed in range(3):
            began_ms = clock.now_ms()
            block = await mine_block(
                Tip.at(genesis.state, [genesis.block0]),
                Body(),
                make_digest("a"),
                miner=miner,
                me=KEYS[0].id,
                sign=sign,
                clock=clock,
                random=Random(seed),
            )
            assert is_valid_work(block.id, 100_000)
            took_ms = clock.now_ms() - began_ms
            said_ms = block.header.time_ms - block.header.start_ms
            assert said_ms <= took_ms <= said_ms + slice_s * 1000 + 1
        later = [took_s for took_s in miner.searches_s if took_s != FIRST_COUNT / RATE]
        assert later
        assert max(later) == pytest.approx(slice_s, rel=0.01)

    run_virtual(story())
