"""`make bench-simulate`: what one batched pass for all clients brings over one client after the other.

Two figures, on the CPU and on a GPU where there is one: the local phases alone, and rounds of a whole simulation with
aggregation and evaluation. Both ways start from the same clients, and how far their weights are apart after a phase is
reported with the times. Repetitions alternate.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from ml.clients.batched import explain_unbatchable, train_batched
from ml.clients.client import Client
from ml.errors import DataError
from ml.simulation.results import RoundResult
from ml.simulation.run import SimulationConfig, begin_simulation, simulate, use_threads
from node.bench.figures import Report
from node.experiments.measured import describe_spread, describe_torch, read_clock
from node.host.machine import get_machine

WARM_UP = 1  # phases before the clock starts


def run_simulate_bench(config: SimulationConfig, *, repeats: int, report: Report) -> dict[str, Any]:
    """Seconds by device and way. The configuration's `device` is `all`, or one. Raises as `simulate`."""
    devices = [config.device]
    if config.device == "all":
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    job = {"method": dict(config.method), "model": dict(config.model), "partition": config.partition}
    figures: dict[str, Any] = {"machine": get_machine(), "job": {**job, "clients": config.clients}, "devices": {}}
    for device in devices:
        report(f"{config.clients} clients on {device}")
        figures["devices"][device] = _measure(dataclasses.replace(config, device=device), repeats)
    return figures


def _measure(config: SimulationConfig, repeats: int) -> dict[str, Any]:
    with use_threads(config.threads):
        phases = _measure_phases(config, repeats)
    rounds: dict[str, list[float]] = {"apart": [], "together": []}
    for _ in range(repeats):
        rounds["apart"] += _time_rounds(dataclasses.replace(config, batched="off"))
        rounds["together"] += _time_rounds(dataclasses.replace(config, batched="on"))
    return {**phases, "round_s": {name: describe_spread(seconds) for name, seconds in rounds.items()}}


def _measure_phases(config: SimulationConfig, repeats: int) -> dict[str, Any]:
    apart, together = (begin_simulation(config)[0] for _ in range(2))
    reason = explain_unbatchable(together)
    if reason is not None:
        raise DataError(f"batched: {reason}")
    seconds: dict[str, list[float]] = {"apart": [], "together": []}
    steps = difference = 0.0
    for height in range(1, 1 + WARM_UP + repeats):
        start = read_clock(apart[0].device)
        trained = [client.train(height, bytes(32)) for client in apart]
        between = read_clock(apart[0].device)
        train_batched(together, height, bytes(32))
        end = read_clock(apart[0].device)
        if height == 1:
            difference = _compute_difference(apart, together)
        if height > WARM_UP:
            seconds["apart"].append(between - start)
            seconds["together"].append(end - between)
            steps = sum(made.metrics["steps"] for made in trained)
    return {
        "machine": describe_torch(apart[0].device, config.threads),
        "precision": apart[0].engine.get_precision(apart[0].device, apart[0].state.model),
        "steps": steps,
        "phase_s": {name: describe_spread(values) for name, values in seconds.items()},
        "largest_difference": difference,
    }


def _compute_difference(apart: Sequence[Client], together: Sequence[Client]) -> float:
    """The largest difference of a weight between two lists of the same clients."""
    pairs = zip(apart, together, strict=True)
    return max(
        (one - other).abs().max().item()
        for first, second in pairs
        for one, other in zip(first.state.model.parameters(), second.state.model.parameters(), strict=True)
    )


def _time_rounds(config: SimulationConfig) -> list[float]:
    """The seconds of each round of a simulation after the first."""
    ends: list[float] = []

    def on_round(_: RoundResult) -> None:
        ends.append(time.perf_counter())  # its figures have been read, so a GPU is done

    simulate(config, on_round=on_round)
    return [after - before for before, after in pairwise(ends)]
