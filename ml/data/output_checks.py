"""Checks of labels and targets, in the place of those of classes.

label       one that no sample has, or all have: nothing can be learned about it
target      one with a single value in all samples, or with a few far from all others
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ml.data.base import ArrayDataset
from ml.data.findings import Finding
from ml.tasks import MULTILABEL

OUTLYING = 20.0  # deviations from the mean: so far out, a few samples make up nearly all of a squared error


def check_outputs(train: ArrayDataset, test: ArrayDataset) -> Iterable[Finding]:
    """Yields the findings about the labels or targets of a training and a test set."""
    for part in (train, test):
        if not len(part):
            continue
        of_part = _check_labels(part) if part.task == MULTILABEL else _check_targets(part)
        yield from of_part


def _check_labels(part: ArrayDataset) -> Iterable[Finding]:
    counts = part.count_classes()
    for count, told in ((0, "no sample has"), (len(part), "all samples have")):
        names = [name for name, own in zip(part.classes, counts.tolist(), strict=True) if own == count]
        if names:
            yield Finding("warning", f"{part.split}: {told} {', '.join(names[:10])}")


def _check_targets(part: ArrayDataset) -> Iterable[Finding]:
    for name, y_N in zip(part.classes, np.asarray(part.y, np.float64).T, strict=True):
        mean, std = float(y_N.mean()), float(y_N.std())
        if std <= 1e-12 * abs(mean):
            yield Finding("warning", f"{part.split}: target {name!r} is {y_N[0]:g} in all samples")
        elif (far := float(np.abs(y_N - mean).max())) > OUTLYING * std:
            yield Finding(
                "warning",
                f"{part.split}: target {name!r} has a value {far / std:.0f} deviations from the mean {mean:.4g}",
            )
