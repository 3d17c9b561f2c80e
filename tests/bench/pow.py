"""`make bench-pow`: hashes a second of the miner's processes, what a block then takes, and what the loop feels.

The baseline is one loop over the library's SHA-256 in this process, measured before and after each number of workers:
the ratio of the two says what a worker is worth, and how that holds when workers share the cores. Seals are made from
the seed, so the hashes that it takes to solve them are the same on every machine; their mean is the difficulty, give or
take its standard error, as each search is a geometric draw.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bench.tails import describe_tail, watch_loop
from node.bench.figures import Report
from node.consensus.mining.miner import MinerProcess
from node.experiments.measured import describe_spread
from node.host.machine import get_machine

UNREACHABLE = 2**255  # one id in so many: a search ends with its range
NUM_NONCES = 2**62  # to look for a solution in
WARM_UP_HASHES = 1 << 15
SLICE = 1 << 14  # hashes of the bare loop between two looks at the clock


def run_pow_bench(
    *, workers: Sequence[int], difficulty: int, blocks: int, seconds: float, seed: int, report: Report
) -> dict[str, Any]:
    """Figures by number of workers. Hashes are counted for `seconds`; `blocks` seals are solved at `difficulty`."""
    report("a bare loop over hashlib, and the event loop without a miner")
    idle = asyncio.run(_watch_idle(seconds))
    found = {}
    for count in workers:
        report(f"{count} workers")
        found[str(count)] = asyncio.run(_measure(count, difficulty, blocks, seconds, seed))
    return {
        "machine": get_machine(),
        "job": {"difficulty": difficulty, "blocks": blocks, "seconds": seconds, "seed": seed},
        "idle": {"lag_s": idle},
        "workers": found,
    }


def make_seal(seed: int, number: int) -> bytes:
    """As good as a header's, and always the same."""
    return hashlib.sha256(f"seal {number} of seed {seed}".encode()).digest()


async def _watch_idle(seconds: float) -> dict[str, float]:
    async with _watching() as lags:
        await asyncio.sleep(seconds)
    return describe_tail(lags)


async def _measure(count: int, difficulty: int, blocks: int, seconds: float, seed: int) -> dict[str, Any]:
    miner = MinerProcess(count)
    try:
        await miner.mine(make_seal(seed, 0), UNREACHABLE, 0, count * WARM_UP_HASHES)
        before = await asyncio.to_thread(measure_bare, seconds / 2)
        async with _watching() as lags:
            rate = await _measure_rate(miner, make_seal(seed, 0), seconds)
        bare = statistics.mean([before, await asyncio.to_thread(measure_bare, seconds / 2)])
        solved = [await _solve(miner, make_seal(seed, number), difficulty, count) for number in range(1, blocks + 1)]
    finally:
        await miner.close()
    return {
        "hashes_per_s": rate,
        "bare_hashes_per_s": bare,
        "ratio": rate / bare,
        "lag_s": describe_tail(lags),
        **describe_solutions([took_s for took_s, _ in solved], [hashes for _, hashes in solved], difficulty, rate),
    }


def describe_solutions(
    took_s: Sequence[float], hashes: Sequence[int], difficulty: int, hashes_per_s: float
) -> dict[str, Any]:
    """Seconds and hashes of each search, against what the difficulty lets expect."""
    expected_s = difficulty / hashes_per_s
    mean_s = statistics.mean(took_s)
    return {
        "solve_s": {**describe_spread(took_s), "mean": mean_s},
        "expected_s": expected_s,
        "solve_ratio": mean_s / expected_s,
        "hashes_ratio": statistics.mean(hashes) / difficulty,
        "standard_error": 1 / math.sqrt(len(hashes)),
    }


def measure_bare(seconds: float) -> float:
    """Hashes a second of the plainest loop there is, on this thread."""
    seal, done, took_s, began_s = make_seal(0, 0), 0, 0.0, time.perf_counter()
    while took_s < seconds:
        for nonce in range(done, done + SLICE):
            hashlib.sha256(seal + nonce.to_bytes(8, "big")).digest()
        done += SLICE
        took_s = time.perf_counter() - began_s
    return done / took_s


async def _measure_rate(miner: MinerProcess, seal: bytes, seconds: float) -> float:
    """Over as many hashes as take about so long."""
    count, took_s = WARM_UP_HASHES, 0.0
    while took_s < seconds:
        count = count * 2 if took_s < seconds / 16 else math.ceil(1.1 * count * seconds / took_s)
        began_s = time.perf_counter()
        await miner.mine(seal, UNREACHABLE, 0, count)
        took_s = time.perf_counter() - began_s
    return count / took_s


async def _solve(miner: MinerProcess, seal: bytes, difficulty: int, workers: int) -> tuple[float, int]:
    """Seconds until there is a nonce, and the hashes which that has taken all workers."""
    before, began_s = miner.hashes, time.perf_counter()
    nonce = await miner.mine(seal, difficulty, 0, NUM_NONCES)
    took_s = time.perf_counter() - began_s
    assert nonce is not None
    await miner.mine(seal, UNREACHABLE, 0, workers)  # one for each, who first tells of what it was stopped at
    return took_s, miner.hashes - before - workers


@asynccontextmanager
async def _watching() -> AsyncIterator[list[float]]:
    lags: list[float] = []
    watching = asyncio.create_task(watch_loop(lags))
    try:
        yield lags
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
