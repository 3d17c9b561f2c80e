"""Measures by the kind of task: computed from answers, and read back from records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ml.measures.classification import ClassMeasures, Floats, Ints, Measures, measure
from ml.measures.multilabel import LabelMeasures, measure_labels
from ml.measures.regression import OneTarget, TargetMeasures, measure_targets
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION

AnyMeasures = Measures | LabelMeasures | TargetMeasures


class Answers(NamedTuple):
    """A model's answers to N samples: the truth `y` as the task has it, the labels that were given, and the
    probabilities `said`. For a regression both `labels` and `said` are the values, in the targets' own units."""

    y: Any
    labels: Any
    said: Floats

    def at(self, at_M: Ints) -> Answers:
        """Returns the answers to some of the samples."""
        return Answers(self.y[at_M], self.labels[at_M], self.said[at_M])


def measure_answers(kind: str, y: Any, labels: Any, said: Floats, loss: float) -> AnyMeasures:
    """Measures N >= 1 answers: `y` as the task has it, the labels that were given, and the probabilities `said`. For a
    regression both `labels` and `said` are the values, in the targets' own units."""
    if kind == CLASSIFICATION:
        return measure(y, labels, said, loss)
    if kind == MULTILABEL:
        return measure_labels(np.asarray(y, np.int64), labels, said, loss)
    return measure_targets(np.asarray(y, np.float64), said, loss)


def read_measures(mapping: Mapping[str, Any]) -> AnyMeasures:
    """Reads the mapping of `to_mapping`. Raises TypeError for anything else."""
    return _KINDS.get(mapping.get("kind", CLASSIFICATION), Measures)(**mapping)


_KINDS: Mapping[str, type[AnyMeasures]] = {MULTILABEL: LabelMeasures, REGRESSION: TargetMeasures}
KEPT = ("sensitivity", "specificity", "mae", "rmse", "r2")  # figures of a class, label or target


def get_kept(one: ClassMeasures | OneTarget) -> dict[str, float]:
    """Returns the figures of one class, label or target that monitoring keeps, by name."""
    return {name: value for name, value in one.get_values().items() if name in KEPT}
