"""The lottery of blocks: what a member, or two that act as one, can do to the others by how it mines."""

from __future__ import annotations

import asyncio
import os
from math import sqrt
from pathlib import Path
from random import Random

import pytest

from chain.block import Id, Phase
from support.faults.liar import Liar, lying
from support.federation.cluster import cluster
from support.federation.virtual_time import run_virtual

HONEST = ("node0", "node1", "node2")
ROUNDS = 200
HASH_RATE = 10_000.0  # of each member
SLOW_RATE = 1_000.0  # by which mining takes far longer than a message: who is a message ahead has won 286 of 1,000
TRAIN_S = 0.02


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


async def mine_before_contributing(liar: Liar, rng: Random) -> None:
    """At each height: it takes the others' contributions, mines on them and its own, and sends both at once."""
    collect_s = liar.net.genesis.rules.waits.collect_s
    while True:
        height, tip = liar.height, liar.tip
        liar.send(liar.make_status())
        while liar.height == height and len(liar.get_contributions()) < len(HONEST):  # noqa: ASYNC110 (virtual)
            await asyncio.sleep(0.001)
        own, others = liar.make_contribution(), liar.get_contributions().values()
        mining_s = rng.expovariate(SLOW_RATE / tip.next_difficulty)
        await asyncio.sleep(min(mining_s, 0.9 * collect_s))  # else it is left out
        if liar.height == height:
            liar.send(own)
            if mining_s < 0.9 * collect_s:
                liar.send(liar.make_candidate([*others, own]))
        while liar.height == height:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.outer
def test_who_mines_before_it_contributes_wins_its_share(tmp_path: Path) -> None:
    async def story() -> int:
        async with cluster(tmp_path, 4, start=HONEST, train_s=TRAIN_S, hash_rate=SLOW_RATE) as net:
            async with lying(net, "node3") as liar:
                first = liar.height
                mining = asyncio.create_task(mine_before_contributing(liar, Random(1)))
                await net.wait_for_height(first + ROUNDS, *HONEST, timeout_s=10_000.0)
                mining.cancel()
                await asyncio.wait({mining})
            net.check_agreement()
            blocks = [net["node0"].get_block(height) for height in range(first, first + ROUNDS)]
            assert sum(len(block.contributions) == 4 for block in blocks) >= 0.95 * ROUNDS
            return sum(block.header.miner == net.id("node3") for block in blocks)

    won = run_virtual(story())
    share, deviation = ROUNDS / 4, sqrt(ROUNDS * 3 / 16)
    print(f"{won} of {ROUNDS} blocks, {share:.0f} +- {deviation:.1f} its share")
    assert abs(won - share) <= 2 * deviation


async def leave_out(liar: Liar, victim: Id, num_others: int, rng: Random) -> None:
    """At each height it contributes like the others, mines a body without the victim, and votes for it alone."""
    while True:
        height, tip = liar.height, liar.tip
        own = liar.make_contribution()
        liar.send(own)
        while liar.height == height and len(liar.get_contributions()) < num_others:  # noqa: ASYNC110 (virtual)
            await asyncio.sleep(0.001)
        await asyncio.sleep(rng.expovariate(HASH_RATE / tip.next_difficulty))
        if liar.height == height:
            others = [c for author, c in liar.get_contributions().items() if author not in (victim, liar.key.id)]
            block = liar.make_candidate([*others, own])
            liar.send(block)
            liar.send(liar.make_vote(Phase.PREVOTE, block.id))
        while liar.height == height:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.outer
def test_two_of_seven_that_leave_a_member_out_cost_it_no_round(tmp_path: Path) -> None:
    honest = [f"node{i}" for i in range(5)]

    async def story() -> tuple[int, float]:
        async with (
            cluster(tmp_path, 7, start=honest, train_s=TRAIN_S, hash_rate=HASH_RATE) as net,
            lying(net, "node5") as one,
            lying(net, "node6") as other,
        ):
            victim, first = net.id("node0"), one.height
            colluding = [
                asyncio.create_task(leave_out(liar, victim, 6, Random(i))) for i, liar in enumerate((one, other))
            ]
            began_s = asyncio.get_running_loop().time()
            await net.wait_for_height(first + ROUNDS, *honest, timeout_s=10_000.0)
            took_s = asyncio.get_running_loop().time() - began_s
            for task in colluding:
                task.cancel()
            await asyncio.wait(colluding)
            net.check_agreement()
            blocks = [net["node1"].get_block(height) for height in range(first, first + ROUNDS)]
            return sum(victim in {c.author for c in block.contributions} for block in blocks), took_s

    kept, took_s = run_virtual(story())
    print(f"{kept} of {ROUNDS} rounds, {took_s:.1f} s")
    assert kept >= 0.95 * ROUNDS
