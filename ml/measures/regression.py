"""Measures of answers that are numbers: mean absolute error, root mean squared error and R2, target by target.

All are in the targets' own units except R2, which is 1 - (squared error) / (squared distance from the mean) and so 0
for a model that answers with the mean of these very samples. Over several targets each is the mean of theirs, as in
scikit-learn. Tests compare every value with scikit-learn's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ml.measures.classification import MAX_CLASSES, Floats, compute_mean
from ml.measures.intervals import Interval
from ml.tasks import REGRESSION

FIGURES = ("mae", "rmse", "r2")


@dataclass(frozen=True, slots=True)
class OneTarget:
    """The measures of one target: its errors, and the mean of its answers less the truth. A figure is None where it is
    undefined, as R2 for samples that are all alike."""

    name: str
    num_samples: int
    mae: float
    rmse: float
    r2: float | None
    bias: float
    num_given: int = 0
    given: tuple[int, ...] = ()

    def get_values(self) -> dict[str, float]:
        """Returns its figures by name, without those that are undefined."""
        found = {"mae": self.mae, "rmse": self.rmse, "r2": self.r2, "bias": self.bias}
        return {name: value for name, value in found.items() if value is not None}

    def get_intervals(self) -> dict[str, Interval]:
        """Returns no interval, since no figure follows from counts."""
        return {}

    def get_areas(self) -> dict[str, float]:
        """Returns the figures that intervals are computed for."""
        return {name: value for name, value in self.get_values().items() if name != "bias"}


@dataclass(frozen=True, slots=True)
class TargetMeasures:
    """The measures of answers to N samples of T targets. `mae`, `rmse`, `r2` and `bias` are those of each target;
    `loss` is the mean squared error at the run's scale. `spread` is the deviation of each target over these samples.
    `classes` are the targets' names."""

    num_samples: int
    loss: float | None
    mae: Sequence[float]
    rmse: Sequence[float]
    r2: Sequence[float | None]
    bias: Sequence[float]
    spread: Sequence[float]
    classes: Sequence[str] | None = None
    kind: str = REGRESSION

    def to_mapping(self) -> dict[str, Any]:
        """Returns a mapping that JSON can encode."""
        return asdict(self)

    @property
    def intervals(self) -> dict[str, Interval]:
        """No interval, since no figure follows from counts."""
        return {}

    @property
    def by_class(self) -> list[OneTarget]:
        """The measures of each target, in the run's order; empty where there are very many."""
        if len(self.mae) > MAX_CLASSES:
            return []
        names = [str(i) for i in range(len(self.mae))] if self.classes is None else list(self.classes)
        rows = zip(names, self.mae, self.rmse, self.r2, self.bias, strict=True)
        return [OneTarget(name, self.num_samples, mae, rmse, r2, bias) for name, mae, rmse, r2, bias in rows]

    def summarise(self) -> dict[str, float]:
        """Returns the means over targets, by name, without those that are undefined."""
        found = {
            "mae": compute_mean(self.mae),
            "rmse": compute_mean(self.rmse),
            "r2": compute_mean(self.r2),
            "loss": self.loss,
        }
        return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def measure_targets(y_NT: Floats, values_NT: Floats, loss: float) -> TargetMeasures:
    """Measures N >= 1 samples whose targets are `y_NT`, and were predicted as `values_NT`."""
    error_NT = values_NT - y_NT
    squared_T, spread_T = np.square(error_NT).mean(0), y_NT.var(0)
    spread_T = np.where(spread_T <= 1e-24 * np.square(y_NT).max(0), 0.0, spread_T)  # rounding errors are no spread
    r2 = [
        1 - squared / spread if spread > 0 else None
        for squared, spread in zip(squared_T.tolist(), spread_T.tolist(), strict=True)
    ]
    return TargetMeasures(
        num_samples=len(y_NT),
        loss=loss if math.isfinite(loss) else None,
        mae=np.abs(error_NT).mean(0).tolist(),
        rmse=np.sqrt(squared_T).tolist(),
        r2=r2,
        bias=error_NT.mean(0).tolist(),
        spread=np.sqrt(spread_T).tolist(),
    )
