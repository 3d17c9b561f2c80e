"""`fednode bench round`: what a federation costs over the bare arithmetic, both measured in one run on one machine.

Four real processes train, exchange, mine, vote and apply; the same clients do the same training, aggregating and
evaluating in one process, one after the other, on one thread. The ratio of the two is the figure: machines are noisy.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_testnet
from node.errors import NodeError
from node.experiments.measured import describe_spread
from node.host.child import make_command
from node.host.machine import get_machine
from node.host.procfs import get_pss_mb
from node.testnet.cluster import LocalCluster, NodeProcess
from node.testnet.layout import Testnet, TestnetSpec

WARM_UP = 3  # rounds left out at the start: connections, caches, the first touch of everything
TIMEOUT_S = 600.0
POLL_S = 0.02
ROUNDS_AFTER_KILL = 8
COLD_ROUNDS = 3
COLD_TIMEOUT_S = 120.0
PHASES = ("train", "exchange", "mine", "vote", "apply", "wall")


def run_round_bench(spec: TestnetSpec, *, cold_starts: int, report: Report) -> dict[str, Any]:
    """Runs the whole benchmark. Returns figures by name, in seconds and bytes. `report` receives what is being
    measured."""
    figures: dict[str, Any] = {"machine": get_machine(), "job": describe_job(spec)}
    report("the same arithmetic in one process")
    figures["bare"] = measure_bare(spec)
    report(f"{spec.num_nodes} real processes")
    figures["cluster"] = in_new_testnet(spec, _measure_cluster)
    figures["ratio"] = figures["cluster"]["round_s"]["median"] / figures["bare"]["round_s"]["median"]
    report("one node: start-up and memory")
    figures["start"] = in_new_testnet(_alone(spec), _measure_start)
    figures["memory"] = in_new_testnet(_alone(spec), _measure_memory)
    report("kill -9 of one node")
    figures["kill"] = in_new_testnet(replace(spec, rounds=0), _measure_kill)
    if cold_starts:
        report(f"{cold_starts} cold starts on one core")
        figures["cold_starts"] = measure_cold_starts(spec, cold_starts, report)
    return figures


def describe_job(spec: TestnetSpec) -> dict[str, Any]:
    return {
        "method": spec.method,
        "nodes": spec.num_nodes,
        "model": spec.model,
        "partition": spec.partition,
        "rounds": spec.rounds,
        "settings": list(spec.settings),
    }


def _alone(spec: TestnetSpec) -> TestnetSpec:
    return TestnetSpec(
        num_nodes=1,
        method=spec.method,
        model=spec.model,
        partition="iid",
        rounds=1_000_000,  # no end of them, but a number: swim must have one
        difficulty=DIFFICULTY,
    )


def in_new_testnet(spec: TestnetSpec, measure: Callable[[Testnet], Any]) -> Any:
    with temporary_testnet(spec) as testnet:
        return measure(testnet)


# ---- a round


def measure_bare(spec: TestnetSpec) -> dict[str, Any]:
    """Measures the simulation's rounds, in a process of their own so that this one stays small."""
    command = make_command("node.bench.bare", spec.method, spec.model, spec.partition)
    arguments = [str(spec.num_nodes), str(spec.rounds), str(spec.seed), *spec.settings]
    done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, timeout=TIMEOUT_S)  # noqa: S603 - our own module
    seconds = [float(line) for line in done.stdout.split()]
    return {"round_s": describe_spread(seconds[WARM_UP:])}


def _measure_cluster(testnet: Testnet) -> dict[str, Any]:
    async def measure() -> tuple[list[float], list[list[dict[str, Any]]]]:
        async with LocalCluster(testnet) as cluster:
            await cluster.start()
            await cluster.wait_for_height(testnet.genesis.run.num_heights, TIMEOUT_S)
            times = await cluster.processes[0].get_block_times()
            return times, [await process.get_rounds() for process in cluster.processes]

    times, records = asyncio.run(measure())
    intervals = [after - before for before, after in itertools.pairwise(times)][WARM_UP:]
    warm = [record for node in records for record in node if record["round"] > WARM_UP]
    return {
        "round_s": {**describe_spread(intervals), "mean": statistics.mean(intervals)},
        "phases_s": {phase: statistics.median(record["seconds"][phase] for record in warm) for phase in PHASES},
        "contributions": statistics.mean(len(record["contributors"]) for record in warm),
        "sent_bytes": statistics.mean(sum(record["bytes_sent"].values()) for record in warm),
        "sent_bytes_by_kind": mean_by_kind(warm),
        "payload_bytes": statistics.mean(record["payload_bytes"] / len(record["contributors"]) for record in warm),
    }


def mean_by_kind(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Computes the mean bytes that a node has sent in a round, by kind, from the records of rounds."""
    kinds = sorted({kind for record in records for kind in record["bytes_sent"]})
    return {kind: statistics.mean(record["bytes_sent"].get(kind, 0) for record in records) for kind in kinds}


# ---- start-up and memory, of one node alone


def _measure_start(testnet: Testnet) -> dict[str, float]:
    """Measures the seconds from starting the process until the worker is ready, which is when the first training step
    begins."""

    async def measure() -> float:
        async with LocalCluster(testnet, stands_alone=True) as cluster:
            began_s = time.monotonic()
            await cluster.start()
            await _wait_for_worker(cluster.processes[0])
            return time.monotonic() - began_s

    return {"first_step_s": asyncio.run(measure())}


async def _wait_for_worker(process: NodeProcess) -> Mapping[str, Any]:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            status = await process.get_status()
            if status is not None and status["num_train"] is not None:
                return status
            await asyncio.sleep(POLL_S)


def _measure_memory(testnet: Testnet) -> dict[str, float]:
    """Measures the proportional set size of daemon, worker and miner after some rounds, against a process that imports
    torch."""

    async def measure() -> dict[str, float]:
        async with LocalCluster(testnet, stands_alone=True) as cluster:
            await cluster.start()
            await cluster.wait_for_height(5, TIMEOUT_S)
            status = await cluster.processes[0].expect_status()
            return {
                "daemon_mb": get_pss_mb(status["pid"]),
                "worker_mb": get_pss_mb(status["worker_pid"]),
                "miner_mb": sum(get_pss_mb(pid) for pid in status["miner_pids"]),
            }

    torch_mb = _measure_torch_alone_mb()
    figures = asyncio.run(measure())
    over = figures["daemon_mb"] + figures["worker_mb"] - torch_mb
    return {**figures, "torch_alone_mb": torch_mb, "daemon_and_worker_over_torch_mb": over}


def _measure_torch_alone_mb() -> float:
    script = "import torch; print(flush=True); input()"
    with subprocess.Popen(  # noqa: S603 - our own line of Python
        [sys.executable, "-P", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None  # noqa: S101 - asked for above
        process.stdout.readline()
        pss_mb = get_pss_mb(process.pid)
        process.kill()
    return pss_mb


# ---- a node is killed


def _measure_kill(testnet: Testnet) -> dict[str, float]:
    """Measures the rounds of the others before and after `kill -9` of the last node: one round should take a collect_s
    longer, once."""

    async def measure() -> tuple[list[float], list[float]]:
        async with LocalCluster(testnet) as cluster:
            await cluster.start()
            watched, victim = cluster.processes[0], cluster.processes[-1]
            others = [process.name for process in cluster.processes[:-1]]
            await cluster.wait_for_height(WARM_UP + ROUNDS_AFTER_KILL, TIMEOUT_S)
            await victim.kill()
            killed_at = (await watched.expect_status())["height"]
            await cluster.wait_for_height(killed_at + ROUNDS_AFTER_KILL, TIMEOUT_S, others)
            walls = {record["round"]: record["seconds"]["wall"] for record in await watched.get_rounds()}
        before = [wall for height, wall in walls.items() if WARM_UP < height <= killed_at]
        return before, [wall for height, wall in walls.items() if height > killed_at]

    before, after = asyncio.run(measure())
    settled = sorted(after)[:-1]  # without the round that waited
    return {
        "before_s": statistics.median(before),
        "slowest_after_s": max(after),
        "others_after_s": statistics.median(settled),
        "collect_s": testnet.genesis.rules.waits.collect_s,
    }


# ---- cold starts


def measure_cold_starts(spec: TestnetSpec, count: int, report: Report) -> dict[str, Any]:
    """Measures cold starts, `count` times: all processes start at once on one core, from an empty directory, until all
    have applied the third block. Once with independent processes, as on machines of their own, and once with processes
    that share their imports, as in the demo."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    alone: list[ColdStart] = []
    shared: list[ColdStart] = []
    failures: list[str] = []
    try:
        for attempt in range(1, count + 1):
            try:
                for stands_alone, starts in ((True, alone), (False, shared)):
                    timed = partial(_time_start, stands_alone=stands_alone)
                    starts.append(in_new_testnet(replace(spec, rounds=COLD_ROUNDS), timed))
            except NodeError as error:
                failures.append(str(error))
            report(f"cold start {attempt} of {count}: {len(failures)} failed")
    finally:
        os.sched_setaffinity(0, allowed)
    if not shared:
        raise NodeError(f"none of {count} cold starts came to round {COLD_ROUNDS}: {failures[0]}")
    return {
        "tried": count,
        "succeeded": count - len(failures),
        "seconds": describe_spread([start.third_s for start in alone]),
        "first_block_s": describe_spread([start.first_s for start in alone]),
        "shared_seconds": describe_spread([start.third_s for start in shared]),
        "shared_first_block_s": describe_spread([start.first_s for start in shared]),
        "failures": failures[:3],
    }


class ColdStart(NamedTuple):
    """The seconds until all have applied the first block, and the third."""

    first_s: float
    third_s: float


def _time_start(testnet: Testnet, *, stands_alone: bool) -> ColdStart:
    async def measure() -> ColdStart:
        async with LocalCluster(testnet, stands_alone=stands_alone) as cluster:
            began_s = time.monotonic()
            await cluster.start()
            await cluster.wait_for_height(1, COLD_TIMEOUT_S)
            first_s = time.monotonic() - began_s
            await cluster.wait_for_height(COLD_ROUNDS, COLD_TIMEOUT_S)
            return ColdStart(first_s, time.monotonic() - began_s)

    return asyncio.run(measure())
