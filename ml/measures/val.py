"""The measures of a model on a site's val samples, by which rounds are compared.

Val samples are held out of training, and are not the test samples: figures on samples that a round was chosen by are
biased.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ml.measures.classification import compute_mean
from ml.measures.kinds import AnyMeasures
from ml.measures.regression import TargetMeasures

_NAMES = ("val_samples", "val_loss", "val_auc")  # names in metrics and records


@dataclass(frozen=True, slots=True)
class ValMeasures:
    """The measures of answers to `num_samples` val samples: the mean loss, as the task has it, and the mean AUC of the
    classes or labels that have one; None where none has, or for a regression."""

    num_samples: int
    loss: float
    auc: float | None = None

    @classmethod
    def of(cls, measures: AnyMeasures | None) -> Self | None:
        """Returns the val measures of a model; None where its answers are no numbers."""
        if measures is None or measures.loss is None or not math.isfinite(measures.loss):
            return None
        areas = () if isinstance(measures, TargetMeasures) else measures.auc or ()
        return cls(measures.num_samples, measures.loss, compute_mean(areas))

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, Any]) -> Self | None:
        """Reads the val measures among the metrics of applying a round, None where there are none."""
        num, loss, auc = (metrics.get(name) for name in _NAMES)
        return None if num is None or loss is None else cls(int(num), float(loss), None if auc is None else float(auc))

    def to_metrics(self) -> dict[str, float]:
        """Returns the measures by their names in metrics and records."""
        told = zip(_NAMES, (self.num_samples, self.loss, self.auc), strict=True)
        return {name: value for name, value in told if value is not None}
