"""`fednode bench round --waterfall`: where the time of a round goes on real nodes, step by step, by their own records.

Every node writes down when it saw each step of a round (`node.consensus.record.record.STEPS`). Shown are the medians
over all nodes and rounds, and beside them the CPU and the messages that a round has cost.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chain.store.sqlite import SqliteStore
from node.admin.client import AdminClient
from node.bench.figures import Report
from node.bench.round import TIMEOUT_S, WARM_UP, describe_job, in_new_testnet, measure_bare
from node.consensus.record.record import STEPS
from node.experiments.measured import describe_spread
from node.host.machine import get_machine
from node.host.procfs import read_cpu_s
from node.testnet.cluster import LocalCluster, NodeProcess
from node.testnet.layout import Testnet, TestnetSpec

SPARE = 100  # extra rounds, so that small nodes are not done before they are read


@dataclass(frozen=True, slots=True)
class _Spent:
    """The costs of one node up to a height: seconds of CPU by process, messages sent, and the batches they were sent
    in."""

    height: int
    cpu_s: Mapping[str, float]
    messages: int
    batches: int

    def compare(self, before: _Spent, name: str) -> float:
        """Returns the increase since `before`, per round."""
        more: float = getattr(self, name) - getattr(before, name)
        return more / (self.height - before.height)


def run_waterfall(spec: TestnetSpec, *, report: Report) -> dict[str, Any]:
    """Measures the figures by name: seconds, and messages a node and round."""
    report("the same arithmetic in one process")
    bare = measure_bare(spec)
    report(f"{spec.num_nodes} real processes")
    found = in_new_testnet(replace(spec, rounds=spec.rounds + SPARE), partial(_measure, rounds=spec.rounds - WARM_UP))
    ratio = found["round_s"]["median"] / bare["round_s"]["median"]
    return {"machine": get_machine(), "job": describe_job(spec), "bare": bare, "ratio": ratio, **found}


def _measure(testnet: Testnet, rounds: int) -> dict[str, Any]:
    """Measures so many rounds, once all nodes are warm."""

    async def measure() -> tuple[list[float], list[tuple[_Spent, _Spent]]]:
        async with LocalCluster(testnet) as cluster:
            await cluster.start()
            await cluster.wait_for_height(WARM_UP, TIMEOUT_S)
            before = await asyncio.gather(*(_look(process) for process in cluster.processes))
            await cluster.wait_for_height(max(spent.height for spent in before) + rounds, TIMEOUT_S)
            after = await asyncio.gather(*(_look(process) for process in cluster.processes))
            times = await cluster.processes[0].get_block_times()
            return times, list(zip(before, after, strict=True))

    times, spent = asyncio.run(measure())
    records = [record for record in _read_records(testnet) if record["height"] > WARM_UP]
    return {
        "round_s": describe_spread([after - before for before, after in itertools.pairwise(times)][WARM_UP:]),
        "steps": describe_steps([record["steps"] for record in records]),
        "cpu_s": describe_cpu(spent),
        **{
            name: statistics.mean(after.compare(before, name) for before, after in spent)
            for name in ("messages", "batches")
        },
    }


async def _look(process: NodeProcess) -> _Spent:
    status = await process.expect_status()
    cpu_s = {
        "daemon": read_cpu_s(status["pid"]),
        "worker": read_cpu_s(status["worker_pid"]),
        "miner": sum(read_cpu_s(pid) for pid in status["miner_pids"]),
    }
    return _Spent(status["height"], cpu_s, *await asyncio.to_thread(_count_sent, process))


def _count_sent(process: NodeProcess) -> tuple[int, int]:
    with AdminClient(process.socket) as admin:
        peers = admin.list_peers()
    return sum(peer.messages_sent for peer in peers), sum(peer.batches_sent for peer in peers)


def _read_records(testnet: Testnet) -> list[Mapping[str, Any]]:
    """Reads the records of all nodes, which have stopped."""
    records: list[Mapping[str, Any]] = []
    for node in testnet.nodes:
        with closing(SqliteStore.open(node.data_dir, testnet.genesis, readonly=True)) as store:
            records += (record for _, record in store.rounds(1, store.head_height))
    return records


def describe_steps(rounds: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Describes each step of a round by name: when it happened, and how long after the step before, both as medians
    over the `rounds`. A step that was over before the one above it took no time."""
    took: dict[str, list[float]] = {step: [] for step in STEPS}
    for steps in rounds:
        until_s = 0.0
        for step in STEPS:
            if step in steps:
                took[step].append(max(0.0, steps[step] - until_s))
                until_s = max(until_s, steps[step])
    return [
        {
            "step": step,
            "what": STEPS[step],
            "at_s": statistics.median(steps[step] for steps in rounds if step in steps),
            "took_s": statistics.median(took[step]),
        }
        for step in STEPS
        if took[step]
    ]


def describe_cpu(spent: Sequence[tuple[_Spent, _Spent]]) -> dict[str, float]:
    """Computes the seconds of CPU a node and round, by process."""
    return {
        process: statistics.mean(
            (after.cpu_s[process] - before.cpu_s[process]) / (after.height - before.height) for before, after in spent
        )
        for process in ("daemon", "worker", "miner")
    }
