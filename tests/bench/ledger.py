"""`make bench-ledger`: what finality alone costs, and how that grows with the number of members.

Nothing is trained. In one half the members share a process and talk through memory: every message is made, checked and
answered, every signature and every durable write is real, and a round takes the work of all members one after the
other, and what they wait for. In the other half each is a process of its own, as in production, and trains one step of
digits with method `local`.

How a figure grows is told by its exponent: x in n^x between two sizes. Everyone tells everyone, so messages of a round
grow as n^2, those of a node as n; so, at best, does the work of a node.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.untrained import make_untrained_spec
from node.admin.client import AdminClient
from node.bench.figures import Report
from node.bench.fixtures import temporary_directory, temporary_testnet
from node.bench.round import PHASES, TIMEOUT_S, WARM_UP, mean_by_kind
from node.experiments.measured import describe_spread
from node.host.machine import get_machine
from node.host.procfs import read_cpu_s
from node.testnet.cluster import LocalCluster, NodeProcess
from node.testnet.layout import Testnet
from support.federation.in_process import InProcessFederation, in_process_federation

SETTINGS = ("local_iterations=1", "model.hidden=[1]")  # as good as no training
GROWING = ("round_s", "messages_per_node", "bytes_per_node", "cpu_s_per_node")


def run_ledger_bench(
    *, sizes: Sequence[int], processes: Sequence[int], rounds: int, difficulty: int, report: Report
) -> dict[str, Any]:
    """Figures by name, in seconds, messages and bytes; `rounds` are measured after WARM_UP others. Either list of sizes
    may be empty. Raises NodeError when a federation does not get on."""
    logging.getLogger("node").addHandler(logging.NullHandler())  # what n members warn of is nobody's to read
    memory = {}
    for n in sizes:
        report(f"{n} members in one process")
        memory[n] = asyncio.run(_measure_memory(n, rounds, difficulty))
    apart = {}
    for n in processes:
        report(f"{n} processes")
        apart[n] = _measure_processes(n, rounds, difficulty)
    return {
        "machine": get_machine(),
        "job": {"rounds": rounds, "warm_up": WARM_UP, "difficulty": difficulty, "settings": list(SETTINGS)},
        "memory": {str(n): found for n, found in memory.items()},
        "processes": {str(n): found for n, found in apart.items()},
        "growth": {"memory": compute_growth(memory), "processes": compute_growth(apart)},
    }


def compute_growth(by_size: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Between each size and the next: x of n^x, for every figure that is expected to grow."""
    sizes = sorted(by_size)
    growth = []
    for smaller, larger in itertools.pairwise(sizes):
        step: dict[str, Any] = {"from": smaller, "to": larger}
        for name in GROWING:
            before, after = _get_middle(by_size[smaller][name]), _get_middle(by_size[larger][name])
            has_grown = before > 0 and after > 0
            step[name] = math.log(after / before) / math.log(larger / smaller) if has_grown else None
        growth.append(step)
    return growth


def _get_middle(figure: float | Mapping[str, float]) -> float:
    return figure["median"] if isinstance(figure, Mapping) else figure


# ---- in one process


@dataclass(frozen=True, slots=True)
class _Sample:
    """When one member has finalised `height`: the time, the CPU time of all, and what all have sent until then."""

    height: int
    at_s: float
    cpu_s: float
    sent: Mapping[str, tuple[int, int]]

    @classmethod
    def take(cls, height: int, federation: InProcessFederation) -> _Sample:
        return cls(height, time.perf_counter(), time.process_time(), federation.count_sent())


async def _measure_memory(n: int, rounds: int, difficulty: int) -> dict[str, Any]:
    last = WARM_UP + rounds
    with temporary_directory() as directory:
        async with in_process_federation(directory, n, rounds=last, difficulty=difficulty) as federation:
            following = asyncio.create_task(_follow(federation, last))
            await federation.wait_for_height(last, TIMEOUT_S)
            samples = await following
            records = await federation.get_rounds(WARM_UP + 1, last - 1)  # the last may not be written yet
    return _summarise(samples, n) | _describe_records(records)


async def _follow(federation: InProcessFederation, last: int) -> list[_Sample]:
    """One sample at each height from WARM_UP on, when the first member has finalised it."""
    samples: list[_Sample] = []
    async for event in federation.services[0].events.follow(0):
        if event.kind != "block" or event.data["height"] < WARM_UP:
            continue
        samples.append(_Sample.take(event.data["height"], federation))
        if event.data["height"] >= last:
            break
    return samples


def _summarise(samples: Sequence[_Sample], n: int) -> dict[str, Any]:
    pairs = list(itertools.pairwise(samples))
    took_s = [after.at_s - before.at_s for before, after in pairs]
    cpu_s = [(after.cpu_s - before.cpu_s) / n for before, after in pairs]
    first, last = samples[0], samples[-1]
    kinds = {kind: _subtract(counts, first.sent.get(kind, (0, 0))) for kind, counts in last.sent.items()}
    rounds = len(pairs)
    return {
        "rounds": rounds,
        "round_s": describe_spread(took_s),
        "cpu_s_per_node": describe_spread(cpu_s),
        "busy": (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s),
        "messages": {kind: messages / rounds for kind, (messages, _) in kinds.items()},
        "bytes": {kind: num_bytes / rounds for kind, (_, num_bytes) in kinds.items()},
        "messages_per_node": sum(messages for messages, _ in kinds.values()) / rounds / n,
        "bytes_per_node": sum(num_bytes for _, num_bytes in kinds.values()) / rounds / n,
    }


def _subtract(after: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]


def _describe_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where a member's round goes, and how often it took more than one view."""
    return {
        "phases_s": {phase: statistics.median(record["seconds"][phase] for record in records) for phase in PHASES},
        "later_views": statistics.mean(record["view"] > 0 for record in records),
    }


# ---- each in a process of its own


def _measure_processes(n: int, rounds: int, difficulty: int) -> dict[str, Any]:
    spec = replace(make_untrained_spec(n, seed=1), rounds=WARM_UP + rounds, settings=SETTINGS, difficulty=difficulty)
    with temporary_testnet(spec) as testnet:
        return asyncio.run(_watch(testnet))


async def _watch(testnet: Testnet) -> dict[str, Any]:
    async with LocalCluster(testnet) as cluster:
        await cluster.start()
        await cluster.wait_for_height(WARM_UP, TIMEOUT_S)
        before = await asyncio.gather(*(_Reading.take(process) for process in cluster.processes))
        await cluster.wait_for_height(testnet.genesis.run.rounds, TIMEOUT_S)
        after = await asyncio.gather(*(_Reading.take(process) for process in cluster.processes))
        times = await cluster.processes[0].get_block_times()
        records = [record for process in cluster.processes for record in await process.get_rounds()]
    warm = [record for record in records if record["round"] > WARM_UP]
    took_s = [later - sooner for sooner, later in itertools.pairwise(times[WARM_UP - 1 :])]
    spent = [late.compare(soon) for soon, late in zip(before, after, strict=True)]
    kinds = mean_by_kind(warm)
    return {
        "rounds": len(took_s),
        "round_s": describe_spread(took_s),
        "cpu_s_per_node": describe_spread([cpu_s for cpu_s, _, _ in spent]),
        "worker_cpu_s_per_node": describe_spread([worker_s for _, worker_s, _ in spent]),
        "messages_per_node": statistics.mean(messages for _, _, messages in spent),
        "bytes": {kind: size * len(before) for kind, size in kinds.items()},
        "bytes_per_node": sum(kinds.values()),
        **_describe_records(warm),
    }


@dataclass(frozen=True, slots=True)
class _Reading:
    """The figures that one node's processes have taken, and its daemon sent, since they began."""

    height: int
    cpu_s: float  # of the daemon and its miners
    worker_cpu_s: float
    messages: int

    @classmethod
    async def take(cls, process: NodeProcess) -> _Reading:
        status = await process.expect_status()
        messages = await asyncio.to_thread(_count_messages, process.socket)
        daemon_s = sum(read_cpu_s(pid) for pid in (status["pid"], *status["miner_pids"]))
        return cls(status["height"], daemon_s, read_cpu_s(status["worker_pid"]), messages)

    def compare(self, before: _Reading) -> tuple[float, float, float]:
        """A round's CPU seconds, the worker's, and messages sent."""
        rounds = max(1, self.height - before.height)
        return (
            (self.cpu_s - before.cpu_s) / rounds,
            (self.worker_cpu_s - before.worker_cpu_s) / rounds,
            (self.messages - before.messages) / rounds,
        )


def _count_messages(socket: Path) -> int:
    with AdminClient(socket) as admin:
        return sum(peer.messages_sent for peer in admin.list_peers())
