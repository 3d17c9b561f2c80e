"""Operating points: sensitivity, specificity and predictive values of a class or label that is called from a threshold
of its probability on.

Sensitivity and specificity follow from counts. Predictive values also depend on how common the class is where the model
is used: PPV = Se p / (Se p + (1 - Sp)(1 - p)) and NPV = Sp (1 - p) / (Sp (1 - p) + (1 - Se) p), by Bayes' theorem at
the prevalence p. At the prevalence of the samples PPV is their precision. Tests hold every value to scikit-learn's. The
page computes the same in `operating.js`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ml.measures.classification import Floats
from ml.measures.intervals import Interval, compute_wilson
from ml.tasks import CLASSIFICATION, MULTILABEL

THRESHOLD = 0.5  # the default


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One class against all others, called where its probability is `threshold` or more: `num_found` of `num_of`
    samples of it are called, and `num_rejected` of `num_others` others are not. `prevalence` is between 0 and 1; None
    where that of the samples is 0 or 1."""

    name: str
    threshold: float
    prevalence: float | None
    num_of: int
    num_others: int
    num_found: int
    num_rejected: int

    @property
    def num_called(self) -> int:
        return self.num_found + self.num_others - self.num_rejected

    def get_values(self) -> dict[str, float]:
        """Returns its figures by name, without those that are undefined."""
        found = {}
        if self.num_of:
            found["sensitivity"] = self.num_found / self.num_of
        if self.num_others:
            found["specificity"] = self.num_rejected / self.num_others
        if self.prevalence is not None and len(found) == 2:
            found_part, rejected_part = found["sensitivity"], found["specificity"]
            odds = self.prevalence / (1 - self.prevalence)
            predictive = {
                "ppv": _predict(found_part * odds, 1 - rejected_part),
                "npv": _predict(rejected_part / odds, 1 - found_part),
            }
            found |= {name: value for name, value in predictive.items() if value is not None}
        return found

    def get_intervals(self) -> dict[str, Interval]:
        """Returns Wilson's intervals of both fractions; those of predictive values follow from the ratio of two such
        fractions, at a known prevalence."""
        found = {}
        if self.num_of:
            found["sensitivity"] = compute_wilson(self.num_found, self.num_of)
        if self.num_others:
            found["specificity"] = compute_wilson(self.num_rejected, self.num_others)
        if self.prevalence is not None and len(found) == 2:
            odds = self.prevalence / (1 - self.prevalence)
            of, others = (self.num_found, self.num_of), (self.num_rejected, self.num_others)
            found |= {"ppv": _bound(of, others, odds), "npv": _bound(others, of, 1 / odds)}
        return {name: interval for name, interval in found.items() if name in self.get_values()}

    def to_mapping(self) -> dict[str, Any]:
        """Returns a mapping that JSON can encode."""
        return {
            "class": self.name,
            "threshold": self.threshold,
            "prevalence": self.prevalence,
            "num_samples": self.num_of,
            "num_called": self.num_called,
            "values": self.get_values(),
            "intervals": {name: interval._asdict() for name, interval in self.get_intervals().items()},
        }


def find_points(
    kind: str,
    y: Any,
    said_NC: Floats,
    classes: Sequence[str],
    positive: Sequence[str],
    threshold: float = THRESHOLD,
    prevalence: float | None = None,
) -> list[OperatingPoint]:
    """Returns the points of the classes or labels `positive`, of N >= 1 answers passed as to `measure_answers`. Without
    a `prevalence` it takes that of the samples."""
    points = []
    for name in positive:
        c = classes.index(name)
        is_of_N = y[:, c] > 0 if kind == MULTILABEL else y == c
        is_called_N = said_NC[:, c] >= threshold
        num_of, num_all = int(is_of_N.sum()), len(is_of_N)
        own = num_of / num_all if prevalence is None else prevalence
        points.append(
            OperatingPoint(
                name=name,
                threshold=threshold,
                prevalence=own if 0 < own < 1 else None,
                num_of=num_of,
                num_others=num_all - num_of,
                num_found=int((is_of_N & is_called_N).sum()),
                num_rejected=int((~is_of_N & ~is_called_N).sum()),
            )
        )
    return points


def choose_positive(kind: str, classes: Sequence[str]) -> Sequence[str]:
    """Returns the classes that thresholds apply to unless one is named: the second of two, and each label. Returns none
    for more classes, of which one has to be named."""
    if kind == MULTILABEL:
        return classes
    return classes[1:] if kind == CLASSIFICATION and len(classes) == 2 else ()


def _predict(right: float, wrong: float) -> float | None:
    return right / (right + wrong) if right + wrong > 0 else None


def _bound(found: tuple[int, int], rejected: tuple[int, int], odds: float) -> Interval:
    """Bounds a predictive value: the share of the `found` among those called, beside others that were not
    `rejected`."""
    called = (rejected[1] - rejected[0], rejected[1])
    ratio = bound_ratio(found, called)
    low, high = ratio.low * odds, ratio.high * odds
    return Interval(low / (1 + low), high / (1 + high) if math.isfinite(high) else 1.0)


def bound_ratio(first: tuple[int, int], second: tuple[int, int]) -> Interval:
    """Bounds the ratio of two independent fractions, each a (count, total), by their own Wilson intervals (Donner and
    Zou 2012, MOVER-R); up to infinity where the second may be zero."""
    a, b = first[0] / first[1], second[0] / second[1]
    of_a, of_b = compute_wilson(*first), compute_wilson(*second)
    c, d = of_a.low * (2 * a - of_a.low), of_b.high * (2 * b - of_b.high)
    low = c / (a * b + math.sqrt(max(0.0, (a * b) ** 2 - c * d))) if c > 0 else 0.0
    c, d = of_a.high * (2 * a - of_a.high), of_b.low * (2 * b - of_b.low)
    high = (a * b + math.sqrt(max(0.0, (a * b) ** 2 - c * d))) / d if d > 0 else math.inf
    return Interval(low, high)
