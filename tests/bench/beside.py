"""`make bench-beside`: what training alone beside the federation's (`training.compare_local`) adds to a round.

Real nodes make some rounds with it and without it, in pairs whose order changes, so that the machine's moods meet both.
The figure is the ratio of the two: the median wall time of a round, pair by pair.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from pathlib import Path
from typing import Any

from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_testnet
from node.config.yaml_source import dump_yaml, read_yaml
from node.experiments.measured import describe_spread
from node.host.machine import get_machine
from node.testnet.cluster import LocalCluster
from node.testnet.layout import Testnet, TestnetSpec

WARM_UP = 3  # rounds left out at the start
TIMEOUT_S = 600.0


def run_beside_bench(
    *, nodes: int, rounds: int, pairs: int, settings: tuple[str, ...], seed: int, report: Report
) -> dict[str, Any]:
    """Figures by name, in seconds. `owed_steps` are those that were still to do after the last round."""
    spec = TestnetSpec(
        num_nodes=nodes,
        method="fedavg",
        partition="iid",
        rounds=rounds + WARM_UP,
        seed=seed,
        settings=settings,
        difficulty=DIFFICULTY,
        base_port=0,
    )
    took: dict[bool, list[float]] = {True: [], False: []}
    owed: list[int] = []
    for pair in range(pairs):
        for compares in (True, False) if pair % 2 else (False, True):
            report(f"pair {pair + 1} of {pairs}, {'with' if compares else 'without'} training alone")
            round_s, owed_steps = _measure(spec, compares=compares)
            took[compares].append(round_s)
            owed += owed_steps
    ratios = [with_s / without_s for with_s, without_s in zip(took[True], took[False], strict=True)]
    return {
        "machine": get_machine(),
        "job": {"nodes": nodes, "rounds": rounds, "pairs": pairs, "settings": list(settings), "seed": seed},
        "with_s": describe_spread(took[True]),
        "without_s": describe_spread(took[False]),
        "ratio": describe_spread(ratios),
        "ratios": ratios,
        "owed_steps": max(owed),
    }


def _measure(spec: TestnetSpec, *, compares: bool) -> tuple[float, list[int]]:
    """The median of a round's wall time, and the steps by which each node's training alone lags then."""
    with temporary_testnet(spec) as testnet:
        for node in testnet.nodes:
            _set_compare_local(node.config_file, compares)
        return asyncio.run(_run(testnet))


def _set_compare_local(config: Path, compares: bool) -> None:
    values: dict[str, Any] = read_yaml(config).value
    values["training"]["compare_local"] = compares
    config.write_text(dump_yaml(values))


async def _run(testnet: Testnet) -> tuple[float, list[int]]:
    async with LocalCluster(testnet) as cluster:
        await cluster.start()
        await cluster.wait_for_height(testnet.genesis.run.rounds, TIMEOUT_S)
        times = await cluster.processes[0].get_block_times()
        records = [await process.get_rounds() for process in cluster.processes]
    intervals = [after - before for before, after in itertools.pairwise(times)][WARM_UP:]
    owed = [record[-1]["alone"]["owed_steps"] for record in records if record and record[-1].get("alone")]
    return statistics.median(intervals), owed
