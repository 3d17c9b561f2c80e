"""Operating points, held to scikit-learn's, and intervals that hold what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics

from ml.measures.intervals import compute_wilson
from ml.measures.operating import OperatingPoint, bound_ratio, choose_positive, find_points
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION

CLASSES = ("well", "ill")


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5, 0.75, 1.0])
def test_figures_are_scikit_learns_at_the_prevalence_of_the_samples(threshold: float) -> None:
    rng = np.random.default_rng(7)
    y = rng.integers(0, 2, 120)
    ill = np.round(np.clip(0.3 * y + rng.random(120) * 0.7, 0, 1), 2)  # some lie on a threshold
    [point] = find_points(CLASSIFICATION, y, np.stack([1 - ill, ill], 1), CLASSES, ["ill"], threshold)
    called = (ill >= threshold).astype(int)
    expected = {
        "sensitivity": metrics.recall_score(y, called),
        "specificity": metrics.recall_score(y, called, pos_label=0),
        "ppv": metrics.precision_score(y, called, zero_division=math.nan),
        "npv": metrics.precision_score(y, called, pos_label=0, zero_division=math.nan),
    }
    told = point.get_values()
    assert told == pytest.approx({name: value for name, value in expected.items() if name in told})
    assert set(expected) - set(told) <= {"ppv", "npv"}  # where nobody is called, or everybody
    assert (point.num_called, point.prevalence) == (called.sum(), y.mean())
    for name, interval in point.get_intervals().items():
        assert interval.low - 1e-12 <= told[name] <= interval.high + 1e-12


def test_predictive_values_at_another_prevalence_are_by_hand() -> None:
    point = OperatingPoint("ill", 0.5, 0.1, num_of=50, num_others=50, num_found=45, num_rejected=40)
    told = point.get_values()
    assert told["ppv"] == pytest.approx(0.9 * 0.1 / (0.9 * 0.1 + 0.2 * 0.9))  # 1 in 3, where 45 of 55 are called right
    assert told["npv"] == pytest.approx(0.8 * 0.9 / (0.8 * 0.9 + 0.1 * 0.1))
    assert point.get_intervals()["sensitivity"] == compute_wilson(45, 50)
    assert point.to_mapping() | {"values": 0, "intervals": 0} == {
        "class": "ill",
        "threshold": 0.5,
        "prevalence": 0.1,
        "num_samples": 50,
        "num_called": 55,
        "values": 0,
        "intervals": 0,
    }


def test_what_cannot_be_said_is_not_said() -> None:
    nobody = OperatingPoint("ill", 1.0, 0.1, num_of=5, num_others=5, num_found=0, num_rejected=5)
    assert nobody.get_values().keys() == nobody.get_intervals().keys() == {"sensitivity", "specificity", "npv"}
    [alone] = find_points(CLASSIFICATION, np.ones(5, int), np.full((5, 2), 0.5), CLASSES, ["ill"])
    assert (alone.prevalence, [*alone.get_values()]) == (None, ["sensitivity"])
    perfect = OperatingPoint("ill", 0.5, 0.5, num_of=20, num_others=20, num_found=20, num_rejected=20)
    assert perfect.get_values()["ppv"] == perfect.get_intervals()["ppv"].high == 1
    assert 0.7 < perfect.get_intervals()["ppv"].low < 0.95


def test_the_ratio_of_two_fractions_is_bounded_as_often_as_it_says() -> None:
    """All outcomes of 20 and of 30 samples, each as probable as it is."""
    for first, second in ((0.9, 0.2), (0.6, 0.5), (0.95, 0.05)):
        covered = sum(
            _weigh(i, 20, first) * _weigh(j, 30, second)
            for i in range(21)
            for j in range(31)
            if (of := bound_ratio((i, 20), (j, 30))).low <= first / second <= of.high
        )
        assert 0.92 < covered < 0.99, (first, second)


def _weigh(count: int, of: int, fraction: float) -> float:
    return math.comb(of, count) * fraction**count * (1 - fraction) ** (of - count)


def test_a_threshold_is_about_the_second_of_two_classes_or_about_each_label() -> None:
    assert choose_positive(CLASSIFICATION, CLASSES) == ("ill",)
    assert choose_positive(CLASSIFICATION, ("a", "b", "c")) == ()
    assert choose_positive(MULTILABEL, ("a", "b", "c")) == ("a", "b", "c")
    assert choose_positive(REGRESSION, ("a", "b")) == ()
    y = np.array([[1, 0], [1, 1], [0, 0], [0, 1]])
    said = np.array([[0.9, 0.1], [0.4, 0.8], [0.6, 0.2], [0.1, 0.7]])
    first, second = find_points(MULTILABEL, y, said, CLASSES, CLASSES, 0.5)
    assert (first.num_found, first.num_rejected, second.num_found, second.num_rejected) == (1, 1, 2, 2)
