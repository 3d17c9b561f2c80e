"""Measures of a classifier: confusion counts, and the quality of its probabilities.

The worker computes them after each round and a node keeps them; sensitivity, F1 and others are computed from the counts
on demand. This file does not use scikit-learn, whose import would cost each worker a hundred megabytes, and its checks
more than a small model's evaluation; tests compare every value with scikit-learn's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.intervals import Interval, compute_wilson

MAX_CLASSES = 64  # with more, counts and curves by class are left out: they would weigh more than the model's answers
NUM_BINS = 15  # bins of confidence, as in Guo et al. (2017)
_DEVIATIONS = 3  # above the mean: the bound holds about 99 times in 100, as the error is not normal

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of answers to N labelled samples of C classes.

    `confusion` int[C][C] counts samples by their class and by the class they were given. `auc` is the area under the
    ROC curve and `average_precision` that under precision and recall as steps, of each class against all others; None
    where a class has no samples, or all. `brier` is the squared error of the probabilities, halved for two classes;
    `calibration_error` is the expected one over 15 bins (Guo et al. 2017, eq. 3), and `calibration_chance` is the bound
    that a well calibrated model's error stays below on so many samples, 99 times in 100; `too_sure` is the mean
    confidence less the accuracy. Probabilities are the classifier's, also where prototypes answer. Beyond 64 classes
    there are no figures by class. `classes` are their names, where they are known: a model has only their numbers.
    """

    num_samples: int
    num_correct: int
    loss: float | None
    brier: float
    calibration_error: float
    confusion: Sequence[Sequence[int]] | None = None
    auc: Sequence[float | None] | None = None
    average_precision: Sequence[float | None] | None = None
    classes: Sequence[str] | None = None
    calibration_chance: float | None = None
    too_sure: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns a mapping that JSON can encode."""
        return asdict(self)

    # ---- figures of all samples

    @property
    def accuracy(self) -> float:
        return self.num_correct / self.num_samples

    @property
    def accuracy_interval(self) -> Interval:
        return compute_wilson(self.num_correct, self.num_samples)

    @property
    def intervals(self) -> dict[str, Interval]:
        """The intervals, by name, of those figures of all classes that follow from counts."""
        return {"accuracy": self.accuracy_interval}

    @property
    def by_class(self) -> list[ClassMeasures]:
        """The measures of each class, in the order of classes; empty where the counts were left out."""
        if self.confusion is None:
            return []
        counts = np.asarray(self.confusion, np.int64)
        actual, given = counts.sum(axis=1), counts.sum(axis=0)
        return [
            ClassMeasures(
                name=str(c) if self.classes is None else self.classes[c],
                num_samples=int(actual[c]),
                num_given=int(given[c]),
                num_correct=int(counts[c, c]),
                num_all=self.num_samples,
                given=tuple(counts[c].tolist()),
                auc=None if self.auc is None else self.auc[c],
                average_precision=None if self.average_precision is None else self.average_precision[c],
            )
            for c in range(len(counts))
        ]

    def summarise(self) -> dict[str, float]:
        """Returns the figures of all classes together, by name, without those that are undefined."""
        by_class = self.by_class
        met = [one for one in by_class if one.num_samples]
        judged = [one for one in by_class if one.num_samples or one.num_given]  # as in scikit-learn
        found = {
            "accuracy": self.accuracy,
            "balanced_accuracy": compute_mean([one.sensitivity for one in met]),
            "macro_f1": compute_mean([one.f1 for one in judged]),
            "weighted_f1": compute_mean([one.f1 for one in met], [one.num_samples for one in met]),
            "auc": compute_mean([one.auc for one in met]),
            "average_precision": compute_mean([one.average_precision for one in met]),
            "brier": self.brier,
            "calibration_error": self.calibration_error,
            "loss": self.loss,
        }
        return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class ClassMeasures:
    """The measures of one class against all others: of `num_all` samples `num_samples` belong to it, `num_given` were
    given it, and `num_correct` are both. `given` counts its samples by the class they were given."""

    name: str
    num_samples: int
    num_given: int
    num_correct: int
    num_all: int
    given: tuple[int, ...]
    auc: float | None = None
    average_precision: float | None = None

    @property
    def sensitivity(self) -> float | None:
        """The fraction of its samples that were given this class (recall)."""
        return _divide(self.num_correct, self.num_samples)

    @property
    def sensitivity_interval(self) -> Interval | None:
        return compute_wilson(self.num_correct, self.num_samples) if self.num_samples else None

    @property
    def specificity(self) -> float | None:
        """The fraction of the other samples that were not given this class."""
        return _divide(self._num_rejected, self.num_all - self.num_samples)

    @property
    def specificity_interval(self) -> Interval | None:
        others = self.num_all - self.num_samples
        return compute_wilson(self._num_rejected, others) if others else None

    @property
    def precision(self) -> float | None:
        """The fraction of the samples given this class that belong to it."""
        return _divide(self.num_correct, self.num_given)

    @property
    def f1(self) -> float | None:
        return _divide(2 * self.num_correct, self.num_samples + self.num_given)

    def get_values(self) -> dict[str, float]:
        """Returns its figures by name, without those that are undefined."""
        found = {
            "sensitivity": self.sensitivity,
            "specificity": self.specificity,
            "precision": self.precision,
            "f1": self.f1,
            "auc": self.auc,
            "average_precision": self.average_precision,
        }
        return {name: value for name, value in found.items() if value is not None}

    def get_intervals(self) -> dict[str, Interval]:
        """Returns the intervals of the figures that follow from counts, by name."""
        found = {"sensitivity": self.sensitivity_interval, "specificity": self.specificity_interval}
        return {name: interval for name, interval in found.items() if interval is not None}

    def get_areas(self) -> dict[str, float]:
        """Returns the areas under its curves, by name, where there are curves."""
        found = {"auc": self.auc, "average_precision": self.average_precision}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def _num_rejected(self) -> int:
        return self.num_all - self.num_samples - (self.num_given - self.num_correct)


def measure(y_N: Ints, labels_N: Ints, probabilities_NC: Floats, loss: float) -> Measures:
    """Measures N >= 1 samples of classes `y_N` that were given `labels_N`, with a classifier's probabilities."""
    num_classes = probabilities_NC.shape[1]
    correct_N = labels_N == y_N
    one_hot_NC = y_N[:, None] == np.arange(num_classes)
    brier = float(np.square(probabilities_NC - one_hot_NC).sum(axis=1).mean()) / (2 if num_classes == 2 else 1)
    error, chance, too_sure = _compute_calibration_error(y_N, probabilities_NC)
    whole = Measures(
        num_samples=len(y_N),
        num_correct=int(correct_N.sum()),
        loss=loss if math.isfinite(loss) else None,
        brier=brier,
        calibration_error=error,
        calibration_chance=chance,
        too_sure=too_sure,
    )
    if num_classes > MAX_CLASSES:
        return whole
    counts = count_confusion(y_N, labels_N, num_classes)
    areas = [compute_areas(one_hot_NC[:, c], probabilities_NC[:, c]) for c in range(num_classes)]
    return replace(
        whole,
        confusion=counts.tolist(),
        auc=[auc for auc, _ in areas],
        average_precision=[precision for _, precision in areas],
    )


def count_confusion(y_N: Ints, labels_N: Ints, num_classes: int) -> Ints:
    """Returns int64[C, C]: samples by their class and by the class they were given."""
    counts = np.bincount(y_N * num_classes + labels_N, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes).astype(np.int64)


def compute_areas(is_of_N: NDArray[np.bool_], scores_N: Floats) -> tuple[float | None, float | None]:
    """Computes the areas under the ROC curve and under precision over recall as steps (sum of (R_k - R_k-1) P_k), for
    scores that should be high where `is_of_N`. Samples of one score make one step. Returns None where there is no
    curve."""
    num_of = int(is_of_N.sum())
    num_others = len(is_of_N) - num_of
    if not num_of:
        return None, None
    _, at_N = np.unique(-scores_N, return_inverse=True)
    hits_K = np.bincount(at_N, weights=is_of_N)
    true_K = np.cumsum(hits_K)
    false_K = np.cumsum(np.bincount(at_N)) - true_K
    precision = float(np.sum(hits_K * true_K / (true_K + false_K))) / num_of
    if not num_others:
        return None, precision
    heights_K = true_K - hits_K / 2
    area = float(np.sum(np.diff(false_K, prepend=0.0) * heights_K)) / (num_of * num_others)
    return area, precision


def _compute_calibration_error(y_N: Ints, probabilities_NC: Floats) -> tuple[float, float, float]:
    """Returns the mean distance between confidence and accuracy over bins of confidence; a bound on it for a classifier
    whose answers are right with the probabilities that it gives; and by how much its mean confidence exceeds its
    accuracy. For the bound, the number of right answers in a bin is taken as normal, with a binomial's variance."""
    confidence_N = probabilities_NC.max(axis=1)
    bins_N = np.clip(np.ceil(confidence_N * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    surplus_N = (probabilities_NC.argmax(axis=1) == y_N) - confidence_N
    error = float(np.abs(np.bincount(bins_N, weights=surplus_N, minlength=NUM_BINS)).sum() / len(y_N))
    variance_B = np.bincount(bins_N, weights=np.clip(confidence_N * (1 - confidence_N), 0, None), minlength=NUM_BINS)
    mean = math.sqrt(2 / math.pi) * float(np.sqrt(variance_B).sum())
    deviation = math.sqrt((1 - 2 / math.pi) * float(variance_B.sum()))
    return error, (mean + _DEVIATIONS * deviation) / len(y_N), -float(surplus_N.mean())


def _divide(count: int, of: int) -> float | None:
    return count / of if of else None


def compute_mean(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float | None:
    """Returns the mean of the values that are not None."""
    known = [
        (value, weight) for value, weight in zip(values, weights or [1] * len(values), strict=True) if value is not None
    ]
    total = sum(weight for _, weight in known)
    return math.fsum(value * weight for value, weight in known) / total if total else None
