"""`make bench-soak`: real nodes for hundreds of rounds, killed and frozen all along, and what they take meanwhile.

Faults are drawn from the seed before anything starts: at which height which node is killed (SIGKILL) and how long it
stays away, or how long it is frozen (SIGSTOP). The first node is spared, so that there is one that runs for long. Every
few rounds memory, open files and threads of each process and the size of each data directory are written down; in the
end the nodes are stopped, every chain is verified with all aggregates recomputed, and all must have the same head.

What counts is how the curves rise. A node that is killed begins anew, so memory, files and threads are judged over the
longest life of each of its processes; what is on disk stays.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from bench.usage import Usage, get_usage, measure_directory
from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_testnet
from node.errors import NodeError
from node.host.machine import get_machine
from node.host.procfs import MB
from node.ledger.offline import verify_data_dir
from node.testnet.cluster import LocalCluster, NodeProcess
from node.testnet.layout import Testnet, TestnetSpec

POLL_S = 0.1
TIMEOUT_S = 600.0  # for a node to come to the height of the others
STALL_S = 300.0  # without a block the run is given up
EVERY = 5  # rounds between two samples
PAUSE_ROUNDS = 12  # between two faults, in the mean
WARM_UP = 0.2  # of the rounds, before anything is judged
AWAY_S = (0.5, 4.0)
FROZEN_S = (1.0, 8.0)  # within which others notice, and beyond
PER_ROUNDS = 100  # of a slope


@dataclass(frozen=True, slots=True)
class Fault:
    """At a height, one node: `kind` is kill or freeze. It is back, or goes on, after `seconds`."""

    height: int
    kind: str
    node: int
    seconds: float


def draw_faults(num_nodes: int, rounds: int, seed: int) -> tuple[Fault, ...]:
    """The schedule of a run, the same for the same seed. Nothing befalls node 0, or anybody in the last rounds."""
    rng = Random(seed)
    faults: list[Fault] = []
    height = EVERY
    while num_nodes > 1 and (height := height + rng.randint(1, 2 * PAUSE_ROUNDS - 1)) < rounds - EVERY:
        kind = rng.choice(("kill", "freeze"))
        seconds = rng.uniform(*(AWAY_S if kind == "kill" else FROZEN_S))
        faults.append(Fault(height, kind, rng.randrange(1, num_nodes), seconds))
    return tuple(faults)


@dataclass(frozen=True, slots=True)
class Sample:
    """One node at one moment: its head, what its processes take, and its data directory. `life` is the daemon's pid;
    the worker's has its own."""

    node: str
    height: int
    seconds: float
    life: int
    worker_life: int
    daemon: Usage
    worker: Usage
    miners_mb: float
    files: int
    disk_mb: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# What is judged: by curve, its value in a sample, and the life it belongs to.
CURVES: Mapping[str, tuple[Callable[[Sample], float], Callable[[Sample], object]]] = {
    "daemon_mb": (lambda one: one.daemon.pss_mb, lambda one: one.life),
    "worker_mb": (lambda one: one.worker.pss_mb, lambda one: one.worker_life),
    "miners_mb": (lambda one: one.miners_mb, lambda one: one.life),
    "daemon_fds": (lambda one: one.daemon.fds, lambda one: one.life),
    "worker_fds": (lambda one: one.worker.fds, lambda one: one.worker_life),
    "daemon_threads": (lambda one: one.daemon.threads, lambda one: one.life),
    "worker_threads": (lambda one: one.worker.threads, lambda one: one.worker_life),
    "disk_mb": (lambda one: one.disk_mb, lambda one: None),
    "files": (lambda one: one.files, lambda one: None),
}


def run_soak_bench(spec: TestnetSpec, *, faults: bool, every: int = EVERY, report: Report) -> dict[str, Any]:
    """All of it: `samples`, and figures by name. Raises NodeError where the nodes came to a halt."""
    schedule = draw_faults(spec.num_nodes, spec.rounds, spec.seed) if faults else ()
    report(f"{spec.num_nodes} real nodes over {spec.rounds} rounds with {len(schedule)} faults")
    with temporary_testnet(replace(spec, difficulty=DIFFICULTY)) as made:
        began_s = time.monotonic()
        samples, heads = asyncio.run(_Run(made, schedule, every, report).watch())
        seconds = time.monotonic() - began_s
        report("chain verify --deep of every node")
        verified = {node.name: _verify(node.data_dir) for node in made.nodes}
    return {
        "machine": get_machine(),
        "job": {
            "nodes": spec.num_nodes,
            "method": spec.method,
            "model": spec.model,
            "rounds": spec.rounds,
            "seed": spec.seed,
        },
        "seconds": seconds,
        "faults": [asdict(fault) for fault in schedule],
        "num_faults": dict(Counter(fault.kind for fault in schedule)),
        "heads": heads,
        "heads_agree": len({*heads.values()}) == 1,
        "verified": verified,
        "slopes": {node.name: compute_slopes(samples, node.name, spec.rounds) for node in made.nodes},
        "samples": [sample.to_json() for sample in samples],
    }


def _verify(data_dir: Path) -> dict[str, Any]:
    verdict = verify_data_dir(data_dir, deep=True)
    fault = f"{verdict.fault.what} at height {verdict.fault.height}" if verdict.HasField("fault") else None
    return {"ok": verdict.ok, "blocks": verdict.blocks, "recomputed": verdict.recomputed, "fault": fault}


# ---- the run


class _Run:
    """One federation, from its start to when all have stopped."""

    def __init__(self, testnet: Testnet, schedule: Sequence[Fault], every: int, report: Report) -> None:
        self._testnet = testnet
        self._schedule = schedule
        self._every = every
        self._report = report
        self._began_s = time.monotonic()
        self._height = 0  # of the first node
        self._samples: list[Sample] = []

    async def watch(self) -> tuple[list[Sample], dict[str, str]]:
        """The samples, and each node's head as it was before it was stopped."""
        async with LocalCluster(self._testnet) as cluster:
            await cluster.start()
            failing = asyncio.create_task(self._fail(cluster))
            try:
                await self._follow(cluster, failing)
                await failing
            finally:
                failing.cancel()
                await asyncio.gather(failing, return_exceptions=True)
            rounds = self._testnet.genesis.run.rounds
            await cluster.wait_for_height(rounds, TIMEOUT_S)
            heads: dict[str, str] = {}
            for process in cluster.processes:
                status = await process.get_status()
                heads[process.name] = "no answer" if status is None else f"{status['height']} {status['head']}"
            await self._sample(cluster)
        return self._samples, heads

    async def _follow(self, cluster: LocalCluster, failing: asyncio.Task[None]) -> None:
        """Until the first node has all rounds; a sample every so many."""
        first, sampled, moved_s = cluster.processes[0], 0, time.monotonic()
        while self._height < self._testnet.genesis.run.rounds:
            if failing.done():
                failing.result()
            status = await first.get_status()
            if status is not None and status["height"] > self._height:
                self._height, moved_s = status["height"], time.monotonic()
            if self._height >= sampled + self._every:
                sampled = self._height
                await self._sample(cluster)
                if sampled % 50 < self._every:
                    self._report(f"height {sampled} after {time.monotonic() - self._began_s:.0f} s")
            if time.monotonic() - moved_s > STALL_S:
                logs = "\n".join(f"--- {process.name}\n{process.read_log_tail()}" for process in cluster.processes)
                raise NodeError(f"no block after height {self._height} within {STALL_S:g} s\n{logs}")
            await asyncio.sleep(POLL_S)

    async def _fail(self, cluster: LocalCluster) -> None:
        for fault in self._schedule:
            while self._height < fault.height:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(POLL_S)
            process = cluster.processes[fault.node]
            if fault.kind == "kill":
                await process.kill()
                await asyncio.sleep(fault.seconds)
                await process.start()
            else:
                await _freeze(process, fault.seconds)

    async def _sample(self, cluster: LocalCluster) -> None:
        """Of every node that answers: one that is away or frozen has none."""
        for process in cluster.processes:
            try:
                async with asyncio.timeout(POLL_S * 10):
                    status = await process.get_status() if process.is_running else None
            except TimeoutError:
                continue
            if status is not None and status["worker_pid"] is not None:
                try:
                    self._samples.append(await asyncio.to_thread(self._look, process, status))
                except NodeError:  # killed just now
                    continue

    def _look(self, process: NodeProcess, status: Mapping[str, Any]) -> Sample:
        files, size = measure_directory(process.node.data_dir)
        return Sample(
            node=process.name,
            height=status["height"],
            seconds=time.monotonic() - self._began_s,
            life=status["pid"],
            worker_life=status["worker_pid"],
            daemon=get_usage(status["pid"]),
            worker=get_usage(status["worker_pid"]),
            miners_mb=sum(get_usage(pid).pss_mb for pid in status["miner_pids"]),
            files=files,
            disk_mb=size / MB,
        )


async def _freeze(process: NodeProcess, seconds: float) -> None:
    """The daemon alone: its worker finds nobody to talk to."""
    assert process.process is not None
    pid = process.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


# ---- how the curves rise


def compute_slopes(samples: Sequence[Sample], node: str, rounds: int) -> dict[str, float | None]:
    """By curve, how much more there is in PER_ROUNDS rounds, after the warm-up; None for one too short to tell."""
    settled = [sample for sample in samples if sample.node == node and sample.height >= WARM_UP * rounds]
    slopes: dict[str, float | None] = {}
    for curve, (get_value, get_life) in CURVES.items():
        lives = Counter(get_life(sample) for sample in settled)
        longest = max(lives, key=lambda life: lives[life], default=None)
        points = [(sample.height, get_value(sample)) for sample in settled if get_life(sample) == longest]
        slopes[curve] = _compute_slope(points)
    return slopes


def _compute_slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Of the line through them by least squares."""
    if len({x for x, _ in points}) < 3:
        return None
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    rise: float = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return PER_ROUNDS * rise
