"""An evaluation: the measures of answers to labelled samples, with intervals for what does not follow from counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ml.measures.classification import Floats, Ints, Measures, measure
from ml.measures.intervals import NUM_RESAMPLES, Interval, compute_bootstrap

LEAST = float(np.finfo(np.float32).tiny)  # a probability that a loss can be taken of


def evaluate(
    y_N: Ints, labels_N: Ints, probabilities_NC: Floats, classes: tuple[str, ...], resamples: int = NUM_RESAMPLES
) -> tuple[Measures, Mapping[str, Interval]]:
    """The measures of N >= 1 answers, and intervals by figure, as `auc`, or by figure and class, as `auc/benign`.
    Accuracy, sensitivity and specificity have Wilson's, which the measures themselves know."""
    losses_N = -np.log(np.maximum(probabilities_NC[np.arange(len(y_N)), y_N], LEAST))

    def measure_some(at_N: Ints) -> Measures:
        found = measure(y_N[at_N], labels_N[at_N], probabilities_NC[at_N], float(losses_N[at_N].mean()))
        return replace(found, classes=classes)

    def list_figures(at_N: Ints) -> dict[str, float]:
        found = measure_some(at_N)
        by_class = {f"{name}/{one.name}": value for one in found.by_class for name, value in one.get_areas().items()}
        return found.summarise() | by_class

    intervals = compute_bootstrap(list_figures, len(y_N), resamples=resamples)
    intervals.pop("accuracy", None)
    return measure_some(np.arange(len(y_N))), intervals
