"""`make bench-aggregation`: what a rule takes to combine whole models, against the papers' weighted mean of the same
models in the same run, by CPU time. Models are made up, each a little away from the parent's as after a local phase."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.paired import Call, compare_calls
from ml.aggregation import RULES, Contributed, RuleSettings, compute_max_liars
from ml.aggregation.nova import NOVA_NUMBERS
from ml.payload import Array, Arrays
from ml.specs import Task
from ml.specs.methods.fednova import make_numbers
from node.bench.figures import Report
from node.host.machine import get_machine
from node.host.procfs import MB

BASELINE = "weighted_mean"
TIMED = (BASELINE, "uniform_mean", "nova", "median", "trimmed_mean", "clipped_mean", "multi_krum")
MOMENTUM = 0.9
WAY = 0.01  # by which an element differs from the parent's, about


def run_aggregation_bench(
    task: Task, *, members: Sequence[int], repeats: int, seed: int, report: Report
) -> dict[str, Any]:
    """Figures by number of members and rule: CPU seconds, how many times the baseline's they are, and the most memory a
    rule takes beside the models, its result included."""
    rng = np.random.default_rng(seed)
    shapes = {name: tuple(map(int, spec.shape)) for name, spec in task.model_schema.arrays.items()}
    parent: Arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    figures: dict[str, Any] = {
        "machine": get_machine(),
        "job": {
            "model": dict(task.model),
            "elements": sum(array.size for array in parent.values()),
            "repeats": repeats,
            "seed": seed,
        },
        "members": {},
    }
    for n in members:
        models = [_make_model(parent, rng, i) for i in range(n)]
        calls = {rule: _make_call(rule, models, parent) for rule in TIMED}
        found = figures["members"][str(n)] = {}
        for rule, call in calls.items():
            report(f"{rule} of {n} members")
            found[rule] = _measure(call, calls[BASELINE], repeats)
    return figures


def _make_model(parent: Arrays, rng: np.random.Generator, index: int) -> Contributed:
    arrays: dict[str, Array] = {
        name: array + np.float32(WAY) * rng.standard_normal(array.shape, np.float32) for name, array in parent.items()
    }
    return Contributed(index.to_bytes(32, "big"), 100 + index, {**arrays, **make_numbers(10 + index, MOMENTUM)})


def _make_call(rule: str, models: Sequence[Contributed], parent: Arrays) -> Call:
    settings = RuleSettings(compute_max_liars(len(models)), weight_cap=4, momentum=MOMENTUM)
    given = models if rule == "nova" else [_drop_numbers(model) for model in models]
    return partial(RULES[rule], given, parent, settings)


def _drop_numbers(model: Contributed) -> Contributed:
    arrays = {name: array for name, array in model.arrays.items() if name not in NOVA_NUMBERS}
    return Contributed(model.author, model.weight, arrays)


def _measure(call: Call, baseline: Call, repeats: int) -> Mapping[str, Any]:
    tracemalloc.start()
    try:
        call()
        peak_mb = tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()
    compared = compare_calls(call, baseline, seconds=0, repeats=repeats)
    return {"s": 1 / compared["per_s"]["median"], "ratio": compared["ratio"], "peak_mb": peak_mb}
