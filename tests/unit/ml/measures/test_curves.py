"""ROC and reliability curves, held to scikit-learn's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import calibration, metrics

from ml.measures.classification import compute_areas, count_confusion, measure
from ml.measures.curves import MAX_POINTS, compute_reliability, compute_roc, describe_curves


def make_answers(num: int, num_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and probabilities on a grid, so that many are alike and lie on the borders of bins."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, num)
    counts = rng.multinomial(15, np.full(num_classes, 1 / num_classes), num) + 2 * np.eye(num_classes)[y]
    return y, counts / counts.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_classes", [2, 5])
def test_points_are_scikit_learns(num_classes: int, seed: int) -> None:
    y, probabilities = make_answers(80, num_classes, seed)
    for c in range(num_classes):
        roc = compute_roc(y == c, probabilities[:, c])
        assert roc is not None
        expected = metrics.roc_curve(y == c, probabilities[:, c], drop_intermediate=False)
        for ours, theirs in zip(roc, expected, strict=True):
            assert ours == pytest.approx(theirs)
        area, _ = compute_areas(y == c, probabilities[:, c])
        assert area == pytest.approx(metrics.auc(roc.false_rate, roc.true_rate))


@pytest.mark.parametrize("seed", range(5))
def test_bins_are_scikit_learns_and_give_the_calibration_error(seed: int) -> None:
    y, probabilities = make_answers(200, 3, seed)
    told = compute_reliability(y, probabilities)
    right = probabilities.argmax(axis=1) == y
    accuracy, confidence = calibration.calibration_curve(right, probabilities.max(axis=1), n_bins=15)
    assert told.accuracy == pytest.approx(accuracy)
    assert told.confidence == pytest.approx(confidence)
    assert told.counts.sum() == 200
    assert ((told.low < told.confidence) & (told.confidence <= told.high + 1e-12)).all()
    assert told.error == pytest.approx(measure(y, right.astype(int), probabilities, 0.0).calibration_error)


def test_counts_are_scikit_learns() -> None:
    y, probabilities = make_answers(60, 4, 0)
    given = probabilities.argmax(axis=1)
    assert count_confusion(y, given, 4).tolist() == metrics.confusion_matrix(y, given, labels=range(4)).tolist()


def test_samples_of_one_kind_have_no_curve() -> None:
    assert compute_roc(np.ones(3, bool), np.arange(3.0)) is None
    assert compute_roc(np.zeros(3, bool), np.arange(3.0)) is None


def test_curves_are_described_with_few_points_that_draw_the_same() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 500)
    said = rng.dirichlet(np.ones(3), 500)
    said[np.arange(500), y] += 0.4
    said /= said.sum(axis=1, keepdims=True)
    told = describe_curves("classification", y, said)
    assert told is not None
    assert json.loads(json.dumps(told)) == told
    for c, points in enumerate(told["roc"]):
        assert len(points) <= MAX_POINTS
        assert (points[0], points[-1]) == ([0, 0], [1, 1])
        whole = compute_roc(y == c, said[:, c])
        assert whole is not None
        assert np.trapezoid(*np.transpose(points)[::-1]) == pytest.approx(
            np.trapezoid(whole.true_rate, whole.false_rate), abs=0.01
        )
    assert sum(bin_["counts"] for bin_ in told["reliability"]) == 500


def test_where_there_is_no_curve_there_is_none() -> None:
    said = np.full((4, 2), 0.5)
    told = describe_curves("classification", np.zeros(4, np.int64), said)
    assert told is not None
    assert told["roc"] == [None, None]
    labels = describe_curves("multilabel", np.array([[1, 0], [0, 0], [1, 0], [0, 0]]), said)
    assert labels is not None
    assert (labels["roc"][1], labels["reliability"]) == (None, None)
    assert describe_curves("regression", np.zeros((4, 1)), said) is None
    assert describe_curves("classification", np.zeros(4, np.int64), np.full((4, 65), 1 / 65)) is None
