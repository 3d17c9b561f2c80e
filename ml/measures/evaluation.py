"""An evaluation: the measures of answers to labelled samples, with intervals for those that do not follow from
counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ml.measures.classification import Floats, Ints
from ml.measures.intervals import NUM_RESAMPLES, Interval, compute_bootstrap
from ml.measures.kinds import AnyMeasures, measure_answers
from ml.tasks import CLASSIFICATION, MULTILABEL, TargetScale

LEAST = float(np.finfo(np.float32).tiny)  # the least probability that a loss is computed from


def evaluate(
    y: Any,
    labels: Any,
    said: Floats,
    classes: tuple[str, ...],
    resamples: int = NUM_RESAMPLES,
    *,
    kind: str = CLASSIFICATION,
    scale: TargetScale | None = None,
) -> tuple[AnyMeasures, Mapping[str, Interval]]:
    """Returns the measures of N >= 1 answers, passed as to `measure_answers`, and intervals by figure, as `auc`, or by
    figure and class, as `auc/benign`. Leaves out accuracy, exact match, sensitivity and specificity: the measures
    themselves have Wilson's intervals of these. `scale` is the run's, of targets."""
    losses_N = compute_losses(y, said, kind, scale or TargetScale())

    def measure_some(at_N: Ints) -> AnyMeasures:
        found = measure_answers(kind, y[at_N], labels[at_N], said[at_N], float(losses_N[at_N].mean()))
        return replace(found, classes=classes)

    def list_figures(at_N: Ints) -> dict[str, float]:
        found = measure_some(at_N)
        by_class = {f"{name}/{one.name}": value for one in found.by_class for name, value in one.get_areas().items()}
        return found.summarise() | by_class

    intervals = compute_bootstrap(list_figures, len(y), resamples=resamples)
    whole = measure_some(np.arange(len(y)))
    return whole, {name: interval for name, interval in intervals.items() if name not in whole.intervals}


def compute_losses(y: Any, said: Floats, kind: str, scale: TargetScale) -> Floats:
    """Computes the loss of each sample, as a model is tested by it."""
    if kind == CLASSIFICATION:
        likelihood_N: Floats = -np.log(np.maximum(said[np.arange(len(y)), y], LEAST))
        return likelihood_N
    if kind == MULTILABEL:
        right_NL = np.where(y > 0, said, 1 - said)
        of_labels_N: Floats = -np.log(np.maximum(right_NL, LEAST)).mean(1)
        return of_labels_N
    squared_N: Floats = np.square(scale.scale(said) - scale.scale(y)).mean(1)
    return squared_N
