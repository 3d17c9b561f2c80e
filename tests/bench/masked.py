"""`make bench-masked`: what a round costs whose mean nobody sees the parts of, against the same round in the open.

Federations of real processes on digits, one with `aggregation: masked_sum` and one with the weighted mean, in turn. A
round of masked sums is two heights. Beside them 16 members in this process, in virtual time, that make up prototypes of
50 kB; the arithmetic alone: masking a vector and taking off a sum's masks; and what one member that lies does to the
accuracy (`bench.lies`).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.lies import measure_lies
from ml.aggregation.masks import add_vectors, mask_vector, unmask
from ml.payload import encode_arrays
from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_directory, temporary_testnet
from node.experiments.measured import describe_spread
from node.host.machine import get_machine
from node.host.procfs import read_cpu_s
from node.testnet.cluster import LocalCluster, NodeProcess
from node.testnet.layout import TestnetSpec
from node.training.trainer import Trained
from support.federation.cluster import NUM_CLASSES, Cluster, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual

WARM_UP = 2  # rounds
TIMEOUT_S = 600.0
AGGREGATIONS = ("mean", "masked_sum")
SIZES = {"50 kB": (150,), "5 MB": (1200, 950)}  # of models on digits: the widths of their layers
MEMBERS = (4, 16, 64)
IN_MEMORY, ROUNDS_IN_MEMORY = 16, 8
DIM, TRAIN_S, LATENCY_S = 1250, 0.2, (0.015, 0.035)  # of the members in memory


def run_masked_bench(*, nodes: int, rounds: int, pairs: int, seed: int, report: Report) -> dict[str, Any]:
    """Figures by size of the model: seconds and bytes a round, and how many times as much masks make of them."""
    sizes = {}
    for size, hidden in SIZES.items():
        found: dict[str, list[Mapping[str, float]]] = {name: [] for name in AGGREGATIONS}
        for pair in range(pairs):
            for name in AGGREGATIONS:
                report(f"{nodes} nodes, {size}, {name}, {pair + 1} of {pairs}")
                found[name].append(_measure(_make_spec(nodes, rounds, seed, hidden, name)))
        sizes[size] = {
            **{name: _describe(measured) for name, measured in found.items()},
            "ratio": _compare(found["mean"], found["masked_sum"]),
        }
    report(f"{IN_MEMORY} members in memory")
    in_memory = {name: _measure_in_memory(name) for name in AGGREGATIONS}
    report("one that lies")
    lies = measure_lies(seed)
    report("masks alone")
    job = {"nodes": nodes, "rounds": rounds, "pairs": pairs, "seed": seed}
    return {
        "machine": get_machine(),
        "job": job,
        "sizes": sizes,
        "in_memory": in_memory,
        "masks": [_time_masks(n) for n in MEMBERS],
        "lies": lies,
    }


def _make_spec(nodes: int, rounds: int, seed: int, hidden: Sequence[int], aggregation: str) -> TestnetSpec:
    settings = (f"aggregation={aggregation}", f"model.hidden={list(hidden)}", "local_iterations=5")
    return TestnetSpec(
        num_nodes=nodes,
        method="fedavg",
        partition="iid",
        rounds=rounds,
        seed=seed,
        settings=settings,
        difficulty=DIFFICULTY,
    )


def _measure(spec: TestnetSpec) -> dict[str, float]:
    """Of a round, after the first ones: its seconds, the bytes that a node sends, and the CPU that it takes."""

    async def measure() -> dict[str, float]:
        run = testnet.genesis.run
        first, last = run.count_heights(WARM_UP), run.num_heights
        async with LocalCluster(testnet) as cluster:
            await cluster.start()
            await cluster.wait_for_height(first, TIMEOUT_S)
            before = [await _look(process) for process in cluster.processes]
            await cluster.wait_for_height(last, TIMEOUT_S)
            after = [await _look(process) for process in cluster.processes]
            times = await cluster.processes[0].get_block_times()
        num_heights = statistics.mean(now[0] - then[0] for then, now in zip(before, after, strict=True))
        num_rounds = num_heights * run.rounds / run.num_heights
        sent, cpu_s = (
            statistics.mean(now[i] - then[i] for then, now in zip(before, after, strict=True)) / num_rounds
            for i in (1, 2)
        )
        round_s = (times[-1] - times[-1 - (last - first)]) / (run.rounds - WARM_UP)
        return {"round_s": round_s, "sent_bytes": sent, "cpu_s": cpu_s}

    with temporary_testnet(spec) as testnet:
        return asyncio.run(measure())


async def _look(process: NodeProcess) -> tuple[int, float, float]:
    """The height, the bytes sent so far, and the seconds of CPU of daemon and worker."""
    status = await process.expect_status()
    cpu_s = read_cpu_s(status["pid"]) + read_cpu_s(status["worker_pid"])
    return status["height"], float(status["bytes_sent"]), cpu_s


def _describe(found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {figure: describe_spread([each[figure] for each in found]) for figure in found[0]}


def _compare(plain: Sequence[Mapping[str, float]], masked: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """How many times as much masks make of each figure, pair by pair."""
    pairs = list(zip(plain, masked, strict=True))
    return {figure: describe_spread([after[figure] / before[figure] for before, after in pairs]) for figure in plain[0]}


class _MakesUp(ScriptedTrainer):
    """Has prototypes of all classes."""

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        rows = np.random.default_rng([self.seed, height]).standard_normal((NUM_CLASSES, DIM)).astype(np.float32)
        sent = encode_arrays({"classes": np.arange(NUM_CLASSES), "prototypes": rows})
        return replace(trained, payloads={"prototypes": sent})


def _measure_in_memory(aggregation: str) -> dict[str, float]:
    """Of a round of members that nothing overloads: virtual seconds, messages of a member, and its CPU."""
    trainers = [_MakesUp(i, TRAIN_S) for i in range(IN_MEMORY)]
    more: dict[str, Any] = {"model": {"name": "mlp", "hidden": [DIM]}, "network": {"latency_s": LATENCY_S}}
    heights = 2 if aggregation == "masked_sum" else 1
    found: dict[str, float] = {}

    async def measure(directory: Path) -> None:
        method = {"name": "dfpl", "aggregation": aggregation}
        async with cluster(directory, IN_MEMORY, rounds=0, method=method, trainers=trainers, **more) as net:
            await net.wait_for_height(WARM_UP * heights + 1)
            clock = asyncio.get_running_loop().time

            def look() -> tuple[float, float, int]:
                return clock(), time.process_time(), _count_messages(net)

            before, first = look(), net["node0"].height
            await net.wait_for_height(first + heights * ROUNDS_IN_MEMORY)
            num_rounds = (net["node0"].height - first) / heights
            spent = [
                now - then
                for then, now in zip(before, (clock(), time.process_time(), _count_messages(net)), strict=True)
            ]
            found["round_s"] = spent[0] / num_rounds
            found["cpu_s"], found["messages"] = (each / num_rounds / IN_MEMORY for each in spent[1:])

    with temporary_directory() as directory:
        run_virtual(measure(directory))
    return found


def _count_messages(net: Cluster) -> int:
    counters = (one for node in net.nodes.values() for one in node.get_context().transport.counters().values())
    return sum(traffic.messages_sent for one in counters for traffic in one.kinds.values())


def _time_masks(num_members: int, num_values: int = 1_250_000) -> dict[str, float]:
    """Seconds of masking a model of 5 MB, and of taking the masks off a sum that one of the roster is not in."""
    rng = np.random.default_rng(1)
    roster = [bytes([i]) * 32 for i in range(num_members)]
    values = rng.integers(-(1 << 40), 1 << 40, num_values, np.int64)
    seeds = {frozenset((a, b)): rng.bytes(32) for a in roster for b in roster}
    began_s = time.perf_counter()
    shared = [(other, seeds[frozenset((roster[0], other))]) for other in roster[1:]]
    masked = mask_vector(values, roster[0], seeds[frozenset((roster[0],))], shared)
    masked_s = time.perf_counter() - began_s
    total = add_vectors([masked] * (num_members - 1))
    summed = roster[:-1]
    opened = [(one, [seeds[frozenset((one,))], seeds[frozenset((one, roster[-1]))]]) for one in summed]
    began_s = time.perf_counter()
    unmask(total, roster, opened)
    return {"members": num_members, "mask_s": masked_s, "unmask_s": time.perf_counter() - began_s}
