"""The kinds of tasks of a run, and the scale in which a regression learns its targets.

    classification   each sample has one of the run's classes
    multilabel       each sample has any number of the run's labels, each yes or no
    regression       each sample has a number for each of the run's targets

`classes` of a run are the names of the model's outputs in all three: of classes, of labels or of targets. A target in
millimetres and one in tonnes are learned alike once the run has their mean and deviation: models are trained on (y -
mean) / std, and their answers are converted to the target's own unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

CLASSIFICATION, MULTILABEL, REGRESSION = "classification", "multilabel", "regression"
TASKS = (CLASSIFICATION, MULTILABEL, REGRESSION)


@dataclass(frozen=True, slots=True)
class TargetScale:
    """The mean and the deviation of each target, as the run has them; without them they are 0 and 1."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def from_mapping(cls, target: Mapping[str, Any] | None) -> Self:
        """Reads a run's `target`, which the chain has checked."""
        return cls() if target is None else cls(tuple(target["mean"]), tuple(target["std"]))

    @classmethod
    def measure(cls, y_NT: NDArray[np.float64]) -> Self:
        """Measures the scale of some samples, to nine digits; a target without any spread has deviation 1."""
        mean_T, std_T = y_NT.mean(0), y_NT.std(0)
        is_constant_T = std_T <= 1e-12 * np.abs(mean_T)
        return cls(_shorten(mean_T), _shorten(np.where(is_constant_T, 1.0, std_T)))

    def to_mapping(self) -> dict[str, list[float]]:
        return {"mean": list(self.mean), "std": list(self.std)}

    def scale(self, y_NT: NDArray[Any]) -> NDArray[np.float64]:
        """Scales targets to the values that a model is trained on."""
        return np.asarray((y_NT - np.array(self.mean)) / np.array(self.std) if self.mean else y_NT, np.float64)

    def unscale(self, y_NT: NDArray[np.float64]) -> NDArray[np.float64]:
        """Converts a model's answers to the targets' own units."""
        return y_NT * np.array(self.std) + np.array(self.mean) if self.mean else y_NT


def _shorten(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.9g}") for value in values.tolist())
