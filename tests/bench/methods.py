"""`make bench-methods`: what a local phase of each method costs against plain training, FedAvg's, all in one run.

A phase is `Client.train` as a node calls it, of all clients of a simulation, one after the other. A first round has
given every client its aggregate, and each phase begins from that state again, so that what is timed is the same work.
Every phase comes right after one of the baseline's, and a ratio is that of the two: machines are noisy, and how much
says the ratio of the baseline to itself.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml.clients.client import Client
from ml.payload import Array, decode_arrays
from ml.simulation.run import SimulationConfig, begin_simulation, use_threads
from ml.specs import METHODS, AuthorPayloads, compute_aggregate
from node.bench.figures import Report
from node.experiments.measured import describe_spread, describe_torch, read_clock
from node.host.machine import get_machine

BEACON = bytes(32)
HEIGHT = 2  # of the phases that are timed
PARTS = ("prepare", "steps", "finish", "rest")
BASELINE: Mapping[str, Any] = {"name": "fedavg"}
ROWS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": BASELINE,
    "fedprox": {"name": "fedprox"},
    "moon": {"name": "moon"},
    "dfpl": {"name": "dfpl"},
    "fedproto": {"name": "fedproto"},
    "mpfedcl weight=0": {"name": "mpfedcl", "weight": 0.0},
    "mpfedcl": {"name": "mpfedcl"},
    "mpfedcl cluster=mean": {"name": "mpfedcl", "cluster": "mean"},
    "mpfedcl cluster=dbscan": {"name": "mpfedcl", "cluster": "dbscan"},
}


def run_methods_bench(
    config: SimulationConfig, *, repeats: int, report: Report, rows: Mapping[str, Mapping[str, Any]] = ROWS
) -> dict[str, Any]:
    """Seconds of a phase by row, what they go into, and how many times the baseline's they are. The configuration's
    `method` is what all rows are set to as far as they have it. Raises as `simulate`."""
    with use_threads(config.threads):
        baseline = _Row.begin(config, BASELINE)
        figures: dict[str, Any] = {
            "machine": {**get_machine(), **describe_torch(baseline.clients[0].device, config.threads)},
            "job": {
                "clients": config.clients,
                "partition": config.partition,
                "model": dict(config.model),
                "samples": [client.num_train for client in baseline.clients],
                "settings": {key: value for key, value in config.method.items() if key != "name"},
            },
            "methods": {},
        }
        for name, method in rows.items():
            report(name)
            figures["methods"][name] = _measure(_Row.begin(config, method), baseline, repeats)
    return figures


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The clients of one method, and each as a first round has left it."""

    clients: Sequence[Client]
    begun: Sequence[dict[str, Array]]

    @classmethod
    def begin(cls, config: SimulationConfig, method: Mapping[str, Any]) -> _Row:
        shared = {key: value for key, value in config.method.items() if _is_for(key, method["name"])}
        clients, parent, _ = begin_simulation(dataclasses.replace(config, method={**shared, **method}))
        spec, contributions = clients[0].spec, []
        for i, client in enumerate(clients):
            trained = client.train(HEIGHT - 1, BEACON)
            contributions.append(AuthorPayloads(i.to_bytes(32, "big"), trained.weight, trained.payloads))
        encoded = compute_aggregate(spec, HEIGHT - 1, contributions, parent)
        aggregate = None if encoded is None else decode_arrays(encoded, len(encoded))
        for client in clients:
            client.apply(HEIGHT - 1, aggregate, beacon=BEACON)
        return cls(clients, [client.state_arrays() for client in clients])

    def go_back(self) -> None:
        for client, arrays in zip(self.clients, self.begun, strict=True):
            client.load_state_arrays(arrays)


@dataclass(frozen=True, slots=True)
class _Phase:
    """What a phase of all clients took: seconds by part, and steps."""

    seconds: Mapping[str, float]
    steps: int

    @property
    def whole_s(self) -> float:
        return sum(self.seconds.values())


def _is_for(key: str, name: str) -> bool:
    """Whether a method takes a setting; one that nobody has is given to all, and refused by the first."""
    known = {method: set(spec.settings.keys()) for method, spec in METHODS.items()}
    return key in known[name] or key not in set().union(*known.values())


def _measure(row: _Row, baseline: _Row, repeats: int) -> dict[str, Any]:
    _time_phase(row)  # the first touch of everything
    phases: list[_Phase] = []
    ratios: list[float] = []
    for _ in range(repeats):
        beside = _time_phase(baseline)
        phases.append(_time_phase(row))
        ratios.append(phases[-1].whole_s / beside.whole_s)
    return {
        "method": row.clients[0].spec.to_mapping(),
        "steps": phases[-1].steps,
        "phase_s": describe_spread([phase.whole_s for phase in phases]),
        "ratio": describe_spread(ratios),
        "parts_s": {part: statistics.median(phase.seconds[part] for phase in phases) for part in PARTS},
    }


def _time_phase(row: _Row) -> _Phase:
    """`Client.train` of each, and where its time goes: what comes before the first step, the steps, what the method
    makes of them to be sent, and the rest, which is evaluating and keeping what was before."""
    row.go_back()
    seconds, steps = dict.fromkeys(PARTS, 0.0), 0
    for client in row.clients:
        start = read_clock(client.device)
        with client.undone_on_failure(), client.seeded(HEIGHT):
            entered = read_clock(client.device)
            phase = client.begin(HEIGHT, BEACON)
            prepared = read_clock(client.device)
            progress = client.run(phase)
            stepped = read_clock(client.device)
            trained = client.end(phase, progress)
        end = read_clock(client.device)
        finish_s = trained.metrics["seconds"] - phase.seconds - progress.seconds
        seconds["prepare"] += prepared - entered
        seconds["steps"] += stepped - prepared
        seconds["finish"] += finish_s
        seconds["rest"] += entered - start + end - stepped - finish_s
        steps += progress.steps
    return _Phase(seconds, steps)
