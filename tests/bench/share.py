"""`make bench-share`: what sharing large sets costs real processes, in memory and in time.

A federation with fededs on digits, scaled until a set of them weighs what is asked for, shares its sets and trains on
them. Everything else is as small as it can be, so that what grows is the sets' doing: an mlp of one narrow layer, an
encoder of one channel, small batches, one epoch of each.

No process should need memory for two whole sets. That is what `growth` is held against: a process's highest resident
memory, mapped files included, from when its worker was ready until the last round, over what it had then. The kernel
keeps that mark itself (VmHWM) and is asked to begin anew (`/proc/PID/clear_refs`); what is anonymous, which no kernel
can take back, is looked at POLL_S apart. So is how long each daemon takes to answer while sets pass through it: it
votes on the same loop.
"""

from __future__ import annotations

import asyncio
import math
import re
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ml.data import get_classes, open_dataset
from node.admin.client import AdminClient
from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_testnet
from node.errors import ConfigError, NodeUnreachable
from node.host.machine import get_machine
from node.host.procfs import MB, read_memory
from node.testnet.cluster import LocalCluster, NodeProcess
from node.testnet.layout import Testnet, TestnetSpec

POLL_S = 0.05
TIMEOUT_S = 600.0
MOST_SETS = 2.0  # a process may grow by less than so many sets
JUDGED_MB = 90.0  # smaller ones are outweighed by what any local phase takes: code, batches, 64 MiB of rows at once
ROUNDS = 3  # the sharing round, and the two that train on sets by default
SIDE_STEP = 4  # of an image that an encoder takes
LARGEST_SIDE = 1024
CHANNELS, CLASSES = 3, 10
SETTINGS = (
    *("model.hidden=[8]", "unet_width=1", "batch_size=2", "lr=0.001"),
    *("warmup_epochs=1", "encryptor_epochs=1", "local_epochs=1"),
)
RESET_PEAK = b"5"  # of proc(5)'s clear_refs
PHASES = ("sharing", "training")

_PULL = re.compile(
    r"^(?P<time>\S+) .*: encrypted set of (?P<author>\S+) from (?P<peer>\S+)  (?P<what>began at|done,) [\d.]+ of",
    re.MULTILINE,
)


def run_share_bench(*, nodes: int, set_mb: float, seed: int, report: Report) -> dict[str, Any]:
    """Figures by name, in MB and seconds. Raises ConfigError for a set that digits cannot be blown up to."""
    report(f"{nodes} nodes that share sets of {set_mb:g} MB")
    with temporary_testnet(_make_spec(nodes, set_mb, seed)) as testnet:
        watched = asyncio.run(_watch(testnet, report))
    sizes = watched.set_bytes
    largest = max(sizes.values())
    processes = {name: process.describe(largest) for name, process in watched.processes.items()}
    return {
        "machine": get_machine(),
        "job": {
            "nodes": nodes,
            "seed": seed,
            "shape": list(testnet.genesis.run.input["shape"]),
            "samples": testnet.genesis.run.method["share_max"],
            "settings": list(SETTINGS),
        },
        "set_mb": {name: size / MB for name, size in sorted(sizes.items())},
        "processes": processes,
        "most_sets": MOST_SETS,
        "is_within": _judge(processes, largest),
        "sets_trained_on": watched.sets_used,
        "transfers": [pull.describe(sizes[pull.author]) for pull in watched.pulls],
        "answers_s": {name: answers.describe(watched.pulls) for name, answers in watched.answers.items()},
    }


def _judge(processes: Mapping[str, Mapping[str, Any]], set_bytes: int) -> bool | None:
    """Whether no process grew too much; None where the sets are too small to tell."""
    if set_bytes < JUDGED_MB * MB:
        return None
    return all(found["growth_sets"] < MOST_SETS for found in processes.values())


def _make_spec(nodes: int, set_mb: float, seed: int) -> TestnetSpec:
    """Digits as large as it takes, and as few of them as a set then has room for."""
    train, _ = open_dataset({"format": "digits"}, shape=(1, 8, 8), classes=get_classes({"format": "digits"}))
    dealt = len(train.y) // nodes  # in equal parts, but for one sample
    side = SIDE_STEP * math.ceil(math.sqrt(set_mb * MB / (4 * CHANNELS * dealt)) / SIDE_STEP)
    sample_bytes = 4 * (CHANNELS * side * side + CLASSES)
    samples = round(set_mb * MB / sample_bytes)
    if not 1 <= side <= LARGEST_SIDE or samples < 1:
        most = 4 * CHANNELS * LARGEST_SIDE**2 * dealt / MB
        raise ConfigError(f"--mb: expected up to {most:.0f} for sets of {nodes} nodes, and a sample (got {set_mb:g})")
    settings = (*SETTINGS, f"share_max={samples}", f"input.shape=[{CHANNELS},{side},{side}]")
    return TestnetSpec(
        num_nodes=nodes,
        method="fededs",
        partition="iid",
        rounds=ROUNDS,
        seed=seed,
        settings=settings,
        difficulty=DIFFICULTY,
    )


# ---- memory


@dataclass(slots=True)
class _Watched:
    """One process: what it had `before`, in bytes, and the most in each phase."""

    pid: int
    before: Mapping[str, int]
    most: dict[str, dict[str, int]] = field(default_factory=lambda: {phase: {} for phase in PHASES})
    is_exact: bool = True  # the kernel began its mark anew; else it is the largest of the samples

    @classmethod
    def begin(cls, pid: int) -> _Watched:
        watched = cls(pid, read_memory(pid))
        watched.begin_phase()
        return watched

    def begin_phase(self) -> None:
        try:
            Path(f"/proc/{self.pid}/clear_refs").write_bytes(RESET_PEAK)
        except OSError:
            self.is_exact = False

    def look(self, phase: str) -> None:
        most, now = self.most[phase], read_memory(self.pid)
        if not self.is_exact:
            now["peak"] = now["resident"]
        for name, size in now.items():
            most[name] = max(most.get(name, 0), size)

    def describe(self, set_bytes: int) -> dict[str, Any]:
        growth = max(most["peak"] for most in self.most.values()) - self.before["resident"]
        anonymous = max(most["anonymous"] for most in self.most.values()) - self.before["anonymous"]
        return {
            "before_mb": self.before["resident"] / MB,
            **{f"{phase}_mb": most["peak"] / MB for phase, most in self.most.items()},
            "growth_mb": growth / MB,
            "growth_sets": growth / set_bytes,
            "anonymous_mb": anonymous / MB,
            "anonymous_sets": anonymous / set_bytes,
            "is_exact": self.is_exact,
        }


# ---- time


@dataclass(frozen=True, slots=True)
class _Pull:
    """A set on its way, by the puller's log; times are of the wall clock."""

    puller: str
    peer: str
    author: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return max(self.ended - self.began, 0.001)  # what the log can tell apart

    def describe(self, num_bytes: int) -> dict[str, Any]:
        return {
            **{"set": self.author, "from": self.peer, "to": self.puller},
            "seconds": self.seconds,
            "mb_per_s": num_bytes / MB / self.seconds,
        }


@dataclass(slots=True)
class _Answers:
    """How long a daemon took for each status it was asked for, and when that was."""

    took: list[tuple[float, float]] = field(default_factory=list)

    def describe(self, pulls: Collection[_Pull]) -> dict[str, float]:
        """The longest while sets were on their way anywhere, and otherwise; the median of all."""
        during = [took for at, took in self.took if any(pull.began <= at + took and at <= pull.ended for pull in pulls)]
        everything = [took for _, took in self.took]
        return {
            "median": statistics.median(everything),
            "longest": max(everything),
            "longest_while_sharing": max(during, default=0.0),
        }


def _read_pulls(process: NodeProcess) -> Iterator[_Pull]:
    began: dict[tuple[str, str], float] = {}
    for line in _PULL.finditer(process.log_file.read_text(encoding="utf-8", errors="replace")):
        key, at = (line["author"], line["peer"]), datetime.fromisoformat(line["time"]).timestamp()
        if line["what"] == "began at":
            began[key] = at
        else:
            yield _Pull(process.name, line["peer"], line["author"], began[key], at)


# ---- the run


@dataclass(frozen=True, slots=True)
class _Run:
    """What was seen of one federation. Processes are by node and part, as in `node0 worker`; `sets_used` is how often
    each node trained on another's set."""

    processes: Mapping[str, _Watched]
    answers: Mapping[str, _Answers]
    pulls: Sequence[_Pull]
    set_bytes: Mapping[str, int]
    sets_used: Mapping[str, int]


async def _watch(testnet: Testnet, report: Report) -> _Run:
    async with LocalCluster(testnet) as cluster:
        await cluster.start()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                seen = await asyncio.gather(*(_watch_node(process, report) for process in cluster.processes))
        except TimeoutError:
            logs = "\n".join(f"--- {process.name}\n{process.read_log_tail()}" for process in cluster.processes)
            raise NodeUnreachable(f"{ROUNDS} rounds were not done within {TIMEOUT_S:g} s\n{logs}") from None
        first, *_ = cluster.processes
        rounds = [await process.get_rounds() for process in cluster.processes]
        set_bytes = await asyncio.to_thread(_read_sizes, first)
        pulls = [pull for process in cluster.processes for pull in _read_pulls(process)]
    names = [process.name for process in cluster.processes]
    processes = {
        f"{name} {part}": watched
        for name, (parts, _) in zip(names, seen, strict=True)
        for part, watched in parts.items()
    }
    answers = {name: told for name, (_, told) in zip(names, seen, strict=True)}
    used = {
        name: sum(int(record["train"].get("sets", 0)) for record in records)
        for name, records in zip(names, rounds, strict=True)
    }
    return _Run(processes, answers, sorted(pulls, key=lambda pull: pull.began), set_bytes, used)


async def _watch_node(process: NodeProcess, report: Report) -> tuple[dict[str, _Watched], _Answers]:
    """From when its worker is ready until it has done all rounds."""
    answers, parts = _Answers(), dict[str, _Watched]()
    while await process.get_status() is None:  # noqa: ASYNC110 - another process
        await asyncio.sleep(POLL_S)
    sharing, training = PHASES
    phase = sharing
    with AdminClient(process.socket) as admin:
        while True:
            at, began_s = time.time(), time.perf_counter()
            status = await asyncio.to_thread(admin.get_status)
            answers.took.append((at, time.perf_counter() - began_s))
            if not parts and status.HasField("worker_pid"):
                parts = {"daemon": _Watched.begin(status.pid), "worker": _Watched.begin(status.worker_pid)}
                answers.took.clear()
            for watched in parts.values():
                watched.look(phase)
            if phase == sharing and status.height >= 1:
                phase = training
                report(f"{process.name} has all sets and trains on them")
                for watched in parts.values():
                    watched.begin_phase()
            if parts and status.applied_round >= ROUNDS:
                return parts, answers
            await asyncio.sleep(POLL_S)


def _read_sizes(process: NodeProcess) -> dict[str, int]:
    """How large each member's set is, by its name."""
    with AdminClient(process.socket) as admin:
        block = admin.get_block(1)
    return {
        contribution.name: max(int(payload.bytes) for payload in contribution.payloads)
        for contribution in block.contributions
    }
