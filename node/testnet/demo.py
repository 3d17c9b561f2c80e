"""The demo: a whole federation on this machine, of four real processes with bundled data, for a few rounds, and its
result."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.run import Run
from chain.signing import encode_id
from node.config.node_config import load_config
from node.errors import NodeError
from node.testnet.cluster import LocalCluster
from node.testnet.layout import Testnet

REFRESH_S = 0.2
STAY_S = 1.0  # between two reads of nodes that are left running
NUM_SAMPLES = 10  # samples to try a prediction on
PHASES = ("train", "exchange", "mine", "vote", "apply", "wall")

Statuses = Mapping[str, Mapping[str, Any] | None]
Accuracies = Mapping[str, float | None]


class DemoStalled(NodeError):
    """The federation has made no progress for too long."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of a demo, printed at its end, and its `--json` object.

    Bytes are means over nodes and rounds, seconds are medians, as the first round waits for all nodes to start.
    `payload_bytes_per_round` are the blobs of one contribution, `model_bytes` the size of the whole model.
    """

    nodes: tuple[Mapping[str, Any], ...]
    rounds: int
    payload_bytes_per_round: float
    model_bytes: int
    seconds: Mapping[str, float]

    @property
    def heads_agree(self) -> bool:
        return len({(node["height"], node["head"]) for node in self.nodes}) == 1

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": [dict(node) for node in self.nodes],
            "heads_agree": self.heads_agree,
            "rounds": self.rounds,
            "payload_bytes_per_round": self.payload_bytes_per_round,
            "model_bytes": self.model_bytes,
            "seconds": dict(self.seconds),
        }


async def run_demo(
    testnet: Testnet,
    *,
    on_statuses: Callable[[Statuses], None],
    on_round: Callable[[int, Accuracies], None],
    on_result: Callable[[DemoResult], None] = lambda _: None,
    stay: bool = False,
    stall_after_s: float = 120.0,
) -> DemoResult:
    """Starts every node, waits until all have applied the last round, collects what they measured, and stops them.

    It calls `on_statuses` several times a second with the state of the nodes, `on_round` for each round that all have
    applied with every node's accuracy (None where a node only caught up), and `on_result` with the result, while the
    nodes still run. With `stay` they then run on until this is cancelled. Raises NodeExited when a node ends by itself,
    and DemoStalled when no node makes progress for `stall_after_s`, in the rounds or in a local phase.
    """
    async with LocalCluster(testnet) as cluster:
        await cluster.start()
        async for number in _follow(cluster, testnet.genesis.run, on_statuses, stall_after_s):
            records = await asyncio.gather(*(process.get_round(number) for process in cluster.processes))
            nodes = zip(cluster.processes, records, strict=True)
            on_round(number, {process.name: record["accuracy"] for process, record in nodes})
        statuses = await cluster.get_statuses()
        on_statuses(statuses)
        rounds = await asyncio.gather(*(process.get_rounds() for process in cluster.processes))
        result = _summarise(testnet, statuses, rounds)
        on_result(result)
        while stay:
            await asyncio.sleep(STAY_S)
            await asyncio.gather(*(process.get_status() for process in cluster.processes))
    return result


async def _follow(
    cluster: LocalCluster, run: Run, on_statuses: Callable[[Statuses], None], stall_after_s: float
) -> AsyncIterator[int]:
    """Yields each round, once all nodes have applied it, up to the last; in a run that selects a round, until the run
    is closed."""
    reported = 0
    loop = asyncio.get_running_loop()
    best: dict[str, tuple[int, int]] = {}
    since_s = loop.time()
    while True:
        statuses = await cluster.get_statuses()
        on_statuses(statuses)
        done = [(status["applied_round"] or 0) if status is not None else -1 for status in statuses.values()]
        while reported < min(done):
            reported += 1
            yield reported
        if reported >= _find_last(run, statuses) and (run.select is None or _are_done(statuses)):
            return
        further = {
            name: place
            for (name, status), applied in zip(statuses.items(), done, strict=True)
            if (place := (applied, (status or {}).get("train_step") or 0)) > best.get(name, (-1, 0))
        }
        best |= further
        if further:
            since_s = loop.time()
        elif loop.time() - since_s > stall_after_s:
            logs = "\n".join(f"--- {process.name}\n{process.read_log_tail()}" for process in cluster.processes)
            raise DemoStalled(f"no progress for {stall_after_s:g} s\n{logs}")
        await asyncio.sleep(REFRESH_S)


def _are_done(statuses: Statuses) -> bool:
    return all(status is not None and status["done"] for status in statuses.values())


def _find_last(run: Run, statuses: Statuses) -> int:
    """Returns the last round of a run, as far as its nodes know it."""
    if run.select is None:
        return run.num_heights
    stopped = [status["selected"]["stopped"] for status in statuses.values() if status is not None]
    return max(stopped, default=0) or run.rounds


def _summarise(testnet: Testnet, statuses: Statuses, rounds: Sequence[Sequence[Mapping[str, Any]]]) -> DemoResult:
    nodes = []
    for node, records in zip(testnet.nodes, rounds, strict=True):
        status = statuses[node.name]
        assert status is not None  # noqa: S101 - all have reached the last round
        nodes.append(
            {
                "name": node.name,
                "id": encode_id(node.key),
                "height": status["height"],
                "head": status["head"],
                "accuracy": status["accuracy"],
                "local_accuracy": records[0]["local_accuracy"] if records else None,
                "bytes_sent_per_round": _mean([sum(record["bytes_sent"].values()) for record in records]),
            }
        )
    everything = [record for records in rounds for record in records]
    return DemoResult(
        nodes=tuple(nodes),
        rounds=_find_last(testnet.genesis.run, statuses),
        payload_bytes_per_round=_mean([record["payload_bytes"] / len(record["contributors"]) for record in everything]),
        model_bytes=next(status["model_bytes"] for status in statuses.values() if status is not None),
        seconds={phase: statistics.median(record["seconds"][phase] for record in everything) for phase in PHASES},
    )


def write_samples(testnet: Testnet) -> Path:
    """Writes an archive of test samples beside the configurations, for `fednode predict`."""
    import numpy as np

    from ml.data import open_dataset
    from ml.data.base import InputFormat

    config = load_config(testnet.nodes[0].config_file)
    run = testnet.genesis.run
    wanted = InputFormat.from_mapping(run.input)
    _, test = open_dataset(
        config.get_data(),
        shape=wanted.shape,
        classes=run.classes,
        task=run.task,
        table=wanted.table,
        meaning=run.labels,
    )
    path = testnet.directory / "samples.npz"
    few = slice(NUM_SAMPLES)
    np.savez(path, x=np.asarray(test.x[few]), y=np.asarray(test.y[few]))
    return path


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
