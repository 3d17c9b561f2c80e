"""Measures of a classifier, held to scikit-learn's."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn import metrics

from ml.measures.classification import MAX_CLASSES, compute_areas, measure
from ml.measures.kinds import read_measures


def draw(num: int, classes: int, seed: int = 1, *, digits: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Classes, answers and probabilities of samples that are answered better than by chance. Few digits make ties."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, num)
    logits = rng.normal(size=(num, classes)) + 1.5 * (y[:, None] == np.arange(classes))
    exp = np.exp(logits)
    probabilities = np.round(exp / exp.sum(axis=1, keepdims=True), digits)
    return y, probabilities.argmax(axis=1), probabilities


@pytest.mark.parametrize(("num", "classes", "digits"), [(57, 2, 6), (360, 10, 6), (200, 3, 1), (40, 5, 1)])
def test_the_measures_are_those_of_scikit_learn(num: int, classes: int, digits: int) -> None:
    y, labels, probabilities = draw(num, classes, digits=digits)
    found = measure(y, labels, probabilities, 0.5)
    told = found.summarise()
    assert found.confusion == metrics.confusion_matrix(y, labels, labels=range(classes)).tolist()
    assert told["accuracy"] == pytest.approx(metrics.accuracy_score(y, labels))
    assert told["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, labels))
    for average in ("macro", "weighted"):
        assert told[f"{average}_f1"] == pytest.approx(metrics.f1_score(y, labels, average=average))
    recalls = metrics.recall_score(y, labels, average=None)
    precisions = metrics.precision_score(y, labels, average=None, zero_division=np.nan)
    for c, one in enumerate(found.by_class):
        assert one.auc == pytest.approx(metrics.roc_auc_score(y == c, probabilities[:, c]))
        assert one.average_precision == pytest.approx(metrics.average_precision_score(y == c, probabilities[:, c]))
        assert one.sensitivity == pytest.approx(recalls[c])
        assert one.specificity == pytest.approx(metrics.recall_score(y != c, labels != c))
        assert one.precision == pytest.approx(precisions[c])
    assert told["auc"] == pytest.approx(np.mean([one.auc for one in found.by_class]))
    one_hot = np.eye(classes)[y]
    halves = 2 if classes == 2 else 1  # as brier_score_loss has it
    assert told["brier"] == pytest.approx(np.mean(np.sum((probabilities - one_hot) ** 2, axis=1)) / halves)


def test_the_brier_score_of_two_classes_is_the_usual_one() -> None:
    y, labels, probabilities = draw(100, 2)
    found = measure(y, labels, probabilities, 0.5)
    assert found.brier == pytest.approx(metrics.brier_score_loss(y, probabilities[:, 1]), abs=1e-5)


def test_the_calibration_error_of_who_is_always_sure_is_how_often_it_is_wrong() -> None:
    y, labels = np.array([0, 1, 1, 1, 0]), np.array([0, 1, 0, 1, 1])
    found = measure(y, labels, np.eye(2)[labels], 3.0)
    assert found.calibration_error == pytest.approx(0.4)
    assert measure(y, y, np.eye(2)[y], 0.0).calibration_error == 0.0
    half = np.full((4, 2), 0.5)
    assert measure(np.array([0, 1, 0, 1]), np.zeros(4, np.int64), half, 0.7).calibration_error == 0.0


def test_a_class_without_samples_has_no_figures_and_spoils_none() -> None:
    y, labels = np.array([0, 0, 1, 1]), np.array([0, 2, 1, 1])
    found = measure(y, labels, np.eye(3)[labels], 0.1)
    absent = found.by_class[2]
    assert (absent.sensitivity, absent.auc, absent.average_precision) == (None, None, None)
    assert (absent.specificity, absent.precision, absent.f1) == (0.75, 0.0, 0.0)
    told = found.summarise()
    assert told["balanced_accuracy"] == 0.75
    assert told["macro_f1"] == pytest.approx(metrics.f1_score(y, labels, average="macro"))
    assert told["weighted_f1"] == pytest.approx(metrics.f1_score(y, labels, average="weighted"))


def test_one_class_alone_has_no_roc_curve() -> None:
    found = measure(np.zeros(3, np.int64), np.zeros(3, np.int64), np.full((3, 2), 0.5), math.nan)
    assert found.auc == [None, None]
    assert found.loss is None
    assert "auc" not in found.summarise()
    assert found.by_class[0].specificity is None
    assert compute_areas(np.array([True, True]), np.array([0.1, 0.2])) == (None, 1.0)


def test_of_very_many_classes_there_are_no_figures_by_class() -> None:
    y, labels, probabilities = draw(300, MAX_CLASSES + 1)
    found = measure(y, labels, probabilities, 1.0)
    assert (found.confusion, found.auc, found.by_class) == (None, None, [])
    assert found.summarise().keys() == {"accuracy", "brier", "calibration_error", "loss"}


def test_measures_pass_through_json() -> None:
    found = measure(*draw(50, 3), 0.5)
    assert read_measures(json.loads(json.dumps(found.to_mapping()))) == found
    with pytest.raises(TypeError):
        read_measures({"accuracy": 1.0})


def test_intervals_of_the_figures_hold_them() -> None:
    found = measure(*draw(50, 3), 0.5)
    low, high = found.accuracy_interval
    assert low < found.accuracy < high
    for one in found.by_class:
        for value, interval in (
            (one.sensitivity, one.sensitivity_interval),
            (one.specificity, one.specificity_interval),
        ):
            assert value is not None
            assert interval is not None
            assert interval.low < value < interval.high
