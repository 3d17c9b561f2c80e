"""Measures of answers that are sets of labels: each label's own counts and curves, and figures over all labels.

A label's own measures are those of one class against all others (`ml.measures.classification`): a sample has it or not,
and was given it or not. Over all labels F1 is the mean of theirs (macro), or that of their counts together (micro);
`exact_match` is the fraction of samples that have every label right, and `hamming_loss` that of single answers that are
wrong. Tests compare every value with scikit-learn's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ml.measures.classification import MAX_CLASSES, ClassMeasures, Floats, Ints, compute_areas, compute_mean
from ml.measures.intervals import Interval, compute_wilson
from ml.tasks import MULTILABEL


@dataclass(frozen=True, slots=True)
class LabelMeasures:
    """The measures of answers to N samples, each of which has any of L labels.

    `num_exact` samples have all labels right, and `num_wrong` of the N x L answers are wrong. `counts` int[L][3] has
    for each label how many samples have it, how many were given it, and how many both; `auc` and `average_precision`
    are None where no sample has it, or all do. `brier` is the mean squared error of the probabilities. `num_alike` is
    how many samples were given the commonest set of labels. Beyond 64 labels there are no figures of single ones.
    """

    num_samples: int
    num_exact: int
    num_wrong: int
    num_labels: int
    num_alike: int
    loss: float | None
    prior: float
    brier: float
    micro: Sequence[int]
    counts: Sequence[Sequence[int]] | None = None
    auc: Sequence[float | None] | None = None
    average_precision: Sequence[float | None] | None = None
    classes: Sequence[str] | None = None
    kind: str = MULTILABEL

    def to_mapping(self) -> dict[str, Any]:
        """Returns a mapping that JSON can encode."""
        return asdict(self)

    @property
    def exact_match(self) -> float:
        return self.num_exact / self.num_samples

    @property
    def hamming_loss(self) -> float:
        return self.num_wrong / (self.num_samples * self.num_labels)

    @property
    def intervals(self) -> dict[str, Interval]:
        """The intervals, by name, of those figures of all labels that follow from counts."""
        return {"exact_match": compute_wilson(self.num_exact, self.num_samples)}

    @property
    def by_class(self) -> list[ClassMeasures]:
        """The measures of each label, in the run's order; empty where the counts were left out."""
        return [
            ClassMeasures(
                name=str(i) if self.classes is None else self.classes[i],
                num_samples=actual,
                num_given=given,
                num_correct=both,
                num_all=self.num_samples,
                given=(),
                auc=None if self.auc is None else self.auc[i],
                average_precision=None if self.average_precision is None else self.average_precision[i],
            )
            for i, (actual, given, both) in enumerate(self.counts or ())
        ]

    def summarise(self) -> dict[str, float]:
        """Returns the figures of all labels together, by name, without those that are undefined."""
        by_class = self.by_class
        actual, given, both = self.micro
        found = {
            "exact_match": self.exact_match,
            "hamming_loss": self.hamming_loss,
            "macro_f1": compute_mean([one.f1 for one in by_class]),
            "micro_f1": 2 * both / (actual + given) if actual + given else None,
            "auc": compute_mean([one.auc for one in by_class]),
            "average_precision": compute_mean([one.average_precision for one in by_class]),
            "brier": self.brier,
            "loss": self.loss,
        }
        return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def measure_labels(y_NL: Ints, labels_NL: Ints, probabilities_NL: Floats, loss: float) -> LabelMeasures:
    """Measures N >= 1 samples whose labels are `y_NL`, 0 or 1 each, and that were given `labels_NL`."""
    is_there, is_given = y_NL > 0, labels_NL > 0
    counts_L3 = np.stack([is_there.sum(0), is_given.sum(0), (is_there & is_given).sum(0)], axis=1)
    num_labels = y_NL.shape[1]
    shown = num_labels <= MAX_CLASSES
    areas = [compute_areas(is_there[:, i], probabilities_NL[:, i]) for i in range(num_labels)] if shown else []
    return LabelMeasures(
        num_samples=len(y_NL),
        num_exact=int((is_there == is_given).all(1).sum()),
        num_wrong=int((is_there != is_given).sum()),
        num_labels=num_labels,
        num_alike=int(np.unique(is_given, axis=0, return_counts=True)[1].max()),
        loss=loss if math.isfinite(loss) else None,
        prior=compute_prior(is_there.mean(0)),
        brier=float(np.square(probabilities_NL - is_there).mean()),
        micro=counts_L3.sum(0).tolist(),
        counts=counts_L3.tolist() if shown else None,
        auc=[auc for auc, _ in areas] if shown else None,
        average_precision=[precision for _, precision in areas] if shown else None,
    )


def compute_prior(shares_L: Floats) -> float:
    """Computes the loss of answering with the labels' prevalences alone."""
    known_L = shares_L[(shares_L > 0) & (shares_L < 1)]
    return float(-(known_L * np.log(known_L) + (1 - known_L) * np.log(1 - known_L)).sum() / len(shares_L))
