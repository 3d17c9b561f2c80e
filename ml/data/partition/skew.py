"""The skew of a partition: the counts of each class at each client, and each client's distance from the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ml.data.base import AnyLabels
from ml.data.partition.base import Counts, Indices


def count_classes(parts: Sequence[Indices], y: AnyLabels, num_classes: int) -> Counts:
    """Counts the samples of each class in each part, [N, C]."""
    y_N = np.asarray(y, np.int64)
    return np.stack([np.bincount(y_N[part], minlength=num_classes) for part in parts])


def compute_distances(counts_NC: Counts, whole_C: Counts) -> NDArray[np.float64]:
    """Computes the total variation distance of each part's distribution of labels from that of the whole, [N]: half the
    sum of the absolute differences of shares, 0 for the same distribution and 1 for no class in common."""
    shares_NC = counts_NC / counts_NC.sum(1, keepdims=True)
    return np.asarray(np.abs(shares_NC - whole_C / whole_C.sum()).sum(1) / 2)
