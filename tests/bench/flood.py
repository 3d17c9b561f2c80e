"""`make bench-flood`: what a member that floods the others costs their finality, on real processes.

Three honest members of four finalise, while the fourth is silent (the baseline: its process is absent), honest, floods
them with valid traffic, or with invalid traffic (`bench.flooder`). All four are measured in one run, each in a
federation of its own, over the same time. Blocks are told apart by when they were sealed; the time since the last one
counts as an interval, so that a federation that stands still is seen to.

The attacker runs niced, as it would otherwise take the cores that the others are measured on; everybody's share of CPU
is among the figures.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.flooder import KINDS
from bench.tails import get_quantile
from bench.untrained import make_untrained_spec
from node.admin.client import AdminClient
from node.admin.json_view import to_json
from node.bench.figures import Report
from node.bench.fixtures import temporary_testnet
from node.errors import NodeError
from node.host.child import make_command
from node.host.machine import get_machine
from node.host.procfs import MB, read_cpu_s, read_memory
from node.testnet.cluster import LocalCluster, NodeProcess
from node.testnet.layout import Testnet

TESTS = Path(__file__).parents[1]
HONEST = 3
SCENARIOS = ("silent", "honest", *KINDS)  # what the fourth member is
WARM_UP = 5  # blocks before anything is measured
TIMEOUT_S = 300.0
ATTACKER_STOP_S = 30.0
NICE = 19


def run_flood_bench(
    *, seconds: float, nice: int, seed: int, scenarios: Sequence[str], report: Report
) -> dict[str, Any]:
    """Figures by what the fourth member is. `seconds` are for each."""
    found = {}
    for scenario in scenarios:
        report(f"{HONEST} honest members and one that is {_describe(scenario)}, for {seconds:g} s")
        with temporary_testnet(make_untrained_spec(HONEST + 1, seed)) as testnet:
            found[scenario] = asyncio.run(_measure(testnet, scenario, seconds, nice))
    return {
        "machine": get_machine(),
        "job": {"honest": HONEST, "seconds": seconds, "nice": nice, "seed": seed, "method": "local"},
        "members": found,
    }


def _describe(scenario: str) -> str:
    return f"a flood of {scenario} traffic" if scenario in KINDS else scenario


async def _measure(testnet: Testnet, scenario: str, seconds: float, nice: int) -> dict[str, Any]:
    async with LocalCluster(testnet) as cluster:
        *honest, fourth = cluster.processes
        await asyncio.gather(*(process.start() for process in (cluster.processes if scenario == "honest" else honest)))
        await cluster.wait_for_height(WARM_UP, TIMEOUT_S, [process.name for process in honest])
        if scenario not in KINDS:
            return await _watch(honest, fourth, seconds)
        async with flooding(fourth.node.config_file, scenario, nice) as attacker:
            found = await _watch(honest, fourth, seconds, attacker)
            found["attacker"] |= await stop_flood(attacker)
        return found


async def _watch(
    honest: Sequence[NodeProcess], fourth: NodeProcess, seconds: float, attacker: Process | None = None
) -> dict[str, Any]:
    """What the honest do in so many seconds from now."""
    pids = {process.name: await _get_pids(process) for process in honest}
    before = {name: _Usage.read(of) for name, of in pids.items()}
    attacker_before_s = None if attacker is None else read_cpu_s(attacker.pid)
    began, began_s = time.time(), time.monotonic()
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - began_s
    ended = began + took_s
    after = {name: _Usage.read(of) for name, of in pids.items()}
    found: dict[str, Any] = {}
    if attacker is not None and attacker_before_s is not None:
        found["attacker"] = {"cpu_share": (read_cpu_s(attacker.pid) - attacker_before_s) / took_s}
    times = await honest[0].get_block_times()
    return found | {
        **describe_finality(times, began, ended),
        "nodes": {name: after[name].describe(before[name], took_s) for name in pids},
        "told_of_fourth": {process.name: await asyncio.to_thread(_read_peer, process, fourth) for process in honest},
    }


def describe_finality(times: Sequence[float], began: float, ended: float) -> dict[str, Any]:
    """Blocks a second, and seconds between blocks, of those sealed from `began` to `ended`. The time from the last of
    them to the end counts as an interval where it is longer than any."""
    inside = [at for at in times if began <= at <= ended]
    intervals = [after - before for before, after in itertools.pairwise(inside)]
    waiting_s = ended - (inside[-1] if inside else began)
    if waiting_s > max(intervals, default=0.0):
        intervals.append(waiting_s)
    return {
        "blocks": len(inside),
        "blocks_per_s": len(inside) / (ended - began),
        "round_s": {
            "median": statistics.median(intervals),
            "p95": get_quantile(intervals, 0.95),
            "max": max(intervals),
        },
    }


# ---- the attacker


@asynccontextmanager
async def flooding(config_file: Path, kind: str, nice: int = NICE) -> AsyncIterator[Process]:
    """A process that floods in the place of the member of `config_file`, from its beginning on."""
    command = ("nice", "-n", str(nice), *make_command("bench.flooder", str(config_file), kind))
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with config_file.with_suffix(".log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=log, env={**os.environ, "PYTHONPATH": path}
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            if not await process.stdout.readline():
                raise NodeError(f"the flood has ended before it began; see {config_file.with_suffix('.log')}")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def stop_flood(process: Process) -> dict[str, Any]:
    """Ends it, and what it has done."""
    async with asyncio.timeout(ATTACKER_STOP_S):
        out, _ = await process.communicate(b"")
    try:
        told: dict[str, Any] = json.loads(out)
    except ValueError as error:
        raise NodeError(f"the flood ended with exit code {process.returncode}, and has not told what it did") from error
    seconds = told["seconds"]
    return {
        "messages_per_s": told["messages"] / seconds,
        "mb_per_s": told["bytes"] / MB / seconds,
        "ends_per_s": {end: count / seconds for end, count in told["ends"].items()},
    }


# ---- what the honest say and use


def _read_peer(process: NodeProcess, fourth: NodeProcess) -> Mapping[str, Any]:
    with AdminClient(process.socket) as admin:
        (peer,) = (to_json(peer) for peer in admin.list_peers() if peer.name == fourth.name)
    keys = ("connected", "banned_s", "messages_received", "bytes_received", "waits", "not_taken")
    return {key: peer[key] for key in keys}


async def _get_pids(process: NodeProcess) -> Mapping[str, int]:
    status = await process.expect_status()
    return {"daemon": status["pid"], "worker": status["worker_pid"]}


class _Usage:
    """Of a node's processes by part: seconds of CPU so far, and resident bytes."""

    def __init__(self, cpu_s: Mapping[str, float], resident: Mapping[str, int]) -> None:
        self._cpu_s = cpu_s
        self._resident = resident

    @classmethod
    def read(cls, pids: Mapping[str, int]) -> _Usage:
        return cls(
            {part: read_cpu_s(pid) for part, pid in pids.items()},
            {part: read_memory(pid)["resident"] for part, pid in pids.items()},
        )

    def describe(self, before: _Usage, seconds: float) -> dict[str, Any]:
        return {
            part: {
                "cpu_share": (self._cpu_s[part] - before._cpu_s[part]) / seconds,
                "resident_mb": self._resident[part] / MB,
                "growth_mb": (self._resident[part] - before._resident[part]) / MB,
            }
            for part in self._cpu_s
        }
