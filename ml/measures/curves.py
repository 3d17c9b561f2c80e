"""Curves of a classifier's answers: ROC and reliability. Tests compare every point with scikit-learn's.

Legend: N samples, C classes, K points of a curve.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.measures.classification import MAX_CLASSES, NUM_BINS, Floats, Ints
from ml.tasks import CLASSIFICATION, MULTILABEL

MAX_POINTS = 60  # points of a curve that is drawn


class Roc(NamedTuple):
    """The points of a ROC curve from (0, 0) to (1, 1), [K] each: the false and true positive rates of samples scored
    `thresholds` or more."""

    false_rate: Floats
    true_rate: Floats
    thresholds: Floats


class Reliability(NamedTuple):
    """The bins of confidence that have samples, [K] each: their borders, their counts, and the mean confidence and the
    fraction of right answers in each."""

    low: Floats
    high: Floats
    counts: Ints
    confidence: Floats
    accuracy: Floats

    @property
    def error(self) -> float:
        """The expected calibration error, over these bins."""
        return float(np.sum(self.counts * np.abs(self.accuracy - self.confidence)) / self.counts.sum())


def compute_roc(is_of_N: NDArray[np.bool_], scores_N: Floats) -> Roc | None:
    """Computes the ROC curve of scores that should be high where `is_of_N`; samples of one score make one step. Returns
    None where all samples are of one kind."""
    num_of = int(is_of_N.sum())
    num_others = len(is_of_N) - num_of
    if not num_of or not num_others:
        return None
    negated_K, at_N = np.unique(-scores_N, return_inverse=True)
    true_K = np.cumsum(np.bincount(at_N, weights=is_of_N))
    false_K = np.cumsum(np.bincount(at_N)) - true_K
    return Roc(
        np.concatenate([[0.0], false_K / num_others]),
        np.concatenate([[0.0], true_K / num_of]),
        np.concatenate([[np.inf], -negated_K]),
    )


def compute_reliability(y_N: Ints, probabilities_NC: Floats, num_bins: int = NUM_BINS) -> Reliability:
    """Computes how often the most probable class is right, by the probability that the model gives it (Guo et al.
    2017)."""
    confidence_N = probabilities_NC.max(axis=1)
    bins_N = np.clip(np.ceil(confidence_N * num_bins).astype(np.int64) - 1, 0, num_bins - 1)
    counts = np.bincount(bins_N, minlength=num_bins)
    right = np.bincount(bins_N, weights=probabilities_NC.argmax(axis=1) == y_N, minlength=num_bins)
    confidence = np.bincount(bins_N, weights=confidence_N, minlength=num_bins)
    (met,) = np.nonzero(counts)
    return Reliability(
        met / num_bins, (met + 1) / num_bins, counts[met], confidence[met] / counts[met], right[met] / counts[met]
    )


def describe_curves(kind: str, y: Any, said_NC: Floats) -> dict[str, Any] | None:
    """Returns the curves that a node draws, for JSON. `roc` has for each class or label at most MAX_POINTS points,
    [false, true positive rate], or None where there is no curve; `reliability` has a mapping for each bin of
    confidence, and is None for labels. Returns None for a regression, and for more than 64 classes."""
    num_classes = said_NC.shape[1]
    if kind not in (CLASSIFICATION, MULTILABEL) or num_classes > MAX_CLASSES:
        return None
    is_of_NC = y > 0 if kind == MULTILABEL else y[:, None] == np.arange(num_classes)
    curves = (compute_roc(is_of_NC[:, c], said_NC[:, c]) for c in range(num_classes))
    bins = None if kind == MULTILABEL else compute_reliability(y, said_NC)
    return {
        "roc": [None if curve is None else _thin(curve) for curve in curves],
        "reliability": None if bins is None else [dict(zip(bins._fields, row, strict=True)) for row in _to_rows(bins)],
    }


def _thin(curve: Roc) -> list[list[float]]:
    """Returns the points where the curve bends, and only so many of these that it looks the same."""
    points_K2 = np.stack([curve.false_rate, curve.true_rate], axis=1)
    steps_K2 = np.diff(points_K2, axis=0)
    turns = np.abs(steps_K2[1:, 0] * steps_K2[:-1, 1] - steps_K2[1:, 1] * steps_K2[:-1, 0]) > 1e-12
    bends_K2 = points_K2[np.concatenate([[True], turns, [True]])]
    at = np.unique(np.linspace(0, len(bends_K2) - 1, MAX_POINTS).round().astype(np.int64))
    found: list[list[float]] = bends_K2[at].round(6).tolist()
    return found


def _to_rows(bins: Reliability) -> list[list[float]]:
    return [[round(float(value), 6) for value in row] for row in zip(*bins, strict=True)]
