"""Strata in place of classes, for samples with labels or targets: every scheme deals these samples out by strata.

A sample with labels belongs to the first label that it has, or to none; one with targets to a tenth of the range of the
first target, cut at the quantiles of the training samples. So `iid` mixes all, and `dirichlet` or `classes` deal some
clients more of the large values, or of one label, than others.
"""

from __future__ import annotations

import numpy as np

from ml.data.base import AnyLabels, Labels

NUM_BINS = 10


def stratify(train_y: AnyLabels, test_y: AnyLabels) -> tuple[Labels, Labels]:
    """Returns the stratum of each training and each test sample, counted from 0; classes are returned unchanged."""
    if train_y.ndim == 1:
        return train_y.astype(np.int64, copy=False), test_y.astype(np.int64, copy=False)
    if all(bool(((y == 0) | (y == 1)).all()) for y in (train_y, test_y)):
        train, test = (np.where(y.any(1), y.argmax(1) + 1, 0) for y in (train_y, test_y))
    else:
        edges = np.quantile(train_y[:, 0], np.arange(1, NUM_BINS) / NUM_BINS)
        train, test = (np.searchsorted(edges, y[:, 0], side="right") for y in (train_y, test_y))
    known = np.unique(train)  # no stratum is without a training sample
    nearest = np.clip(np.searchsorted(known, test), 0, len(known) - 1)
    return np.searchsorted(known, train).astype(np.int64), nearest.astype(np.int64)
