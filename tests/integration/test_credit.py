"""Members that promise and do not deliver, over many rounds: what they cost the others, and who is shown for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import pytest

from node.consensus.height.credit import FULL, PER_HEIGHT
from node.consensus.service import RoundService
from node.training.exchange import Exchange
from node.training.progress import OnProgress
from node.training.trainer import NOTHING_TAKEN, Trained
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual

HONEST = ("node0", "node1", "node2")
ROUNDS = 64
TRAIN_S = 0.02


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def get_service(net: Cluster, name: str) -> RoundService:
    service = net[name].service
    assert service is not None
    return service


# ---- patterns of a member that says at each height that it contributes


async def be_mute(liar: Liar, rng: Random) -> None:
    """Nothing comes."""


async def withhold(liar: Liar, rng: Random) -> None:
    """The contribution comes, what it commits to does not."""
    liar.serve = lambda peer, digest, offset: None
    liar.send(liar.make_contribution())


async def be_late(liar: Liar, rng: Random) -> None:
    """It comes when the others have just stopped waiting, or nearly."""
    collect_s, height = liar.net.genesis.rules.waits.collect_s, liar.height
    await asyncio.sleep(TRAIN_S + collect_s * rng.uniform(0.98, 1.3))
    if liar.height == height:
        liar.send(liar.make_contribution())


async def take_it_back(liar: Liar, rng: Random) -> None:
    """Shortly before the others would stop waiting it says that nothing will come."""
    height = liar.height
    await asyncio.sleep(TRAIN_S + 0.95 * liar.net.genesis.rules.waits.collect_s)
    if liar.height == height:
        liar.send(liar.make_status(contributes=False, abstains=True))


async def spoil(liar: Liar, rng: Random) -> None:
    """Shortly before the others would stop waiting it sends what does not fit."""
    height = liar.height
    await asyncio.sleep(TRAIN_S + 0.95 * liar.net.genesis.rules.waits.collect_s)
    if liar.height == height:
        liar.send(liar.make_contribution(b"no arrays"))


async def be_erratic(liar: Liar, rng: Random) -> None:
    """Any of these, or a good contribution in time."""
    patterns = (be_mute, withhold, be_late, take_it_back, spoil)
    pattern = rng.choice((*patterns, None))
    liar.serve = lambda peer, digest, offset: liar.blobs[digest][offset:] if digest in liar.blobs else None
    if pattern is None:
        liar.send(liar.make_contribution())
    else:
        await pattern(liar, rng)


Pattern = Callable[[Liar, Random], Coroutine[Any, Any, None]]


async def promise(liar: Liar, pattern: Pattern, seed: int) -> None:
    """Whatever the pattern has, at each height, and the promise all along."""
    rng, height = Random(seed), 0
    acting: asyncio.Task[None] | None = None
    while True:
        if liar.height != height:
            height = liar.height
            if acting is not None:
                acting.cancel()
            liar.send(liar.make_status())
            acting = asyncio.create_task(pattern(liar, rng))
        await asyncio.sleep(0.005)


async def measure_s(path: Path, pattern: Pattern, seed: int) -> tuple[float, list[str]]:
    """Seconds that the honest took for ROUNDS, and what they say of the member at the end."""
    async with cluster(path, 4, start=HONEST, train_s=TRAIN_S) as net, lying(net, "node3") as liar:
        begun = liar.height
        promising = asyncio.create_task(promise(liar, pattern, seed))
        began_s = asyncio.get_running_loop().time()
        await net.wait_for_height(begun + ROUNDS, *HONEST, timeout_s=1000.0)
        took_s = asyncio.get_running_loop().time() - began_s
        promising.cancel()
        with suppress(asyncio.CancelledError):
            await promising
        net.check_agreement()
        return took_s, [get_service(net, name).describe_not_awaited().get(net.id("node3"), "") for name in HONEST]


async def measure_alone_s(path: Path) -> float:
    """The same with the fourth away."""
    async with cluster(path, 4, start=HONEST, train_s=TRAIN_S) as net:
        await net.wait_for_height(2, *HONEST)
        began_s = asyncio.get_running_loop().time()
        await net.wait_for_height(2 + ROUNDS, *HONEST, timeout_s=1000.0)
        return asyncio.get_running_loop().time() - began_s


@pytest.mark.parametrize(
    "pattern",
    [be_mute, *(pytest.param(each, marks=pytest.mark.long) for each in (withhold, be_late, take_it_back, spoil))],
)
@pytest.mark.slow
def test_a_promise_that_is_not_kept_costs_two_waits_and_a_thirty_second_a_round(
    tmp_path: Path, pattern: Pattern
) -> None:
    alone_s = run_virtual(measure_alone_s(tmp_path / "alone"))
    took_s, said = run_virtual(measure_s(tmp_path / "beside", pattern, seed=1))
    collect_s = 2.0
    print(f"{pattern.__name__}: {took_s:.1f} s beside {alone_s:.1f}; {said[0]}")
    assert took_s < 1.5 * alone_s + collect_s * (FULL + ROUNDS * PER_HEIGHT)
    assert took_s > alone_s + collect_s  # it was awaited at first


@pytest.mark.slow
def test_nor_does_one_that_changes_its_ways_cost_more(tmp_path: Path) -> None:
    """In the mean of three seeds: where two candidates cross, a member that does not vote leaves it to the timers, and
    how often they do hangs on when each message comes."""
    alone_s = run_virtual(measure_alone_s(tmp_path / "alone"))
    took_s = [run_virtual(measure_s(tmp_path / f"beside{seed}", be_erratic, seed))[0] for seed in range(3)]
    print(f"{', '.join(f'{each_s:.1f}' for each_s in took_s)} s beside {alone_s:.1f}")
    assert mean(took_s) < 1.5 * alone_s + 2.0 * (FULL + ROUNDS * PER_HEIGHT)


def test_who_is_not_awaited_is_told_with_the_reason(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST, train_s=TRAIN_S) as net, lying(net, "node3") as liar:
            promising = asyncio.create_task(promise(liar, be_mute, 1))
            service, member = get_service(net, "node0"), net.id("node3")
            await net.wait_for(lambda: member in service.credits.get_overdrawn(), "node3 to have cost too much")
            told = service.describe_not_awaited()[member]
            assert told.startswith("waited for in vain 2 times, last at height ")
            assert told.endswith(": no contribution came")
            promising.cancel()

    run_virtual(story())


# ---- an honest member that is slow


class SlowTrainer(ScriptedTrainer):
    """Takes 0.6 to 1.0 `collect_s` longer than the others."""

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        await asyncio.sleep(2.0 * Random(f"{self.seed} {height}").uniform(0.6, 1.0))
        return await super().train(height, beacon, num_iterations=num_iterations, shared=shared)


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, pytest.param(7, marks=pytest.mark.long)])
def test_a_slow_honest_member_keeps_its_rounds(tmp_path: Path, n: int) -> None:
    rounds = 200

    async def story() -> int:
        trainers = [(SlowTrainer if i == n - 1 else ScriptedTrainer)(i, TRAIN_S) for i in range(n)]
        async with cluster(tmp_path, n, trainers=trainers) as net:
            await net.wait_for_height(rounds, timeout_s=10_000.0)
            slow = net.id(f"node{n - 1}")
            blocks = [net["node0"].get_block(height) for height in range(1, rounds + 1)]
            return sum(slow in {contribution.author for contribution in block.contributions} for block in blocks)

    kept = run_virtual(story())
    print(f"{kept} of {rounds} rounds with {n} members")
    assert kept >= 0.95 * rounds
