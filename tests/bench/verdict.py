"""`make bench-verdict`: what a verdict costs the worker, by test samples and classes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ml.measures.kinds import Answers
from ml.measures.verdict import compare
from ml.tasks import CLASSIFICATION
from node.bench.figures import Report
from node.experiments.measured import describe_spread
from node.host.machine import get_machine


def run_verdict_bench(sizes: Sequence[tuple[int, int]], *, repeats: int, report: Report) -> dict[str, Any]:
    """Seconds of CPU of one verdict, for numbers of samples and of classes."""
    figures: dict[str, Any] = {"machine": get_machine(), "verdicts": []}
    for num, num_classes in sizes:
        report(f"{num} samples of {num_classes} classes")
        together, alone = (_make_answers(num, num_classes, seed) for seed in (1, 2))
        taken = []
        for _ in range(repeats):
            began_s = time.process_time()
            compare(CLASSIFICATION, together, alone)
            taken.append(time.process_time() - began_s)
        figures["verdicts"].append({"samples": num, "classes": num_classes, "cpu_s": describe_spread(taken)})
    return figures


def _make_answers(num: int, num_classes: int, seed: int) -> Answers:
    rng, y = np.random.default_rng(seed), np.arange(num) % num_classes
    likely_NC = np.exp(2.0 * (y[:, None] == np.arange(num_classes)) + rng.standard_normal((num, num_classes)))
    return Answers(y, likely_NC.argmax(1), likely_NC / likely_NC.sum(1, keepdims=True))
