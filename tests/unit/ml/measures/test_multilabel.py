"""Measures of labels: equal to scikit-learn's, and to what a hand counts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn import metrics as sk

from ml.measures.collapse import Sign, find_signs
from ml.measures.evaluation import evaluate
from ml.measures.kinds import measure_answers, read_measures
from ml.measures.multilabel import LabelMeasures, measure_labels


def draw(num: int = 60, labels: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = (rng.random((num, labels)) < (0.2, 0.5, 0.7)[:labels]).astype(np.int64)
    said = np.clip(0.35 * y + 0.65 * rng.random((num, labels)), 0.01, 0.99).round(2)
    return y, (said > 0.5).astype(np.int64), said


def measure_drawn(num: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray, LabelMeasures]:
    y, given, said = draw(num)
    return y, given, said, measure_labels(y, given, said, 0.5)


def test_figures_of_all_labels_are_scikit_learns() -> None:
    y, given, said, found = measure_drawn()
    summary = found.summarise()
    assert summary["exact_match"] == pytest.approx(sk.accuracy_score(y, given))
    assert summary["hamming_loss"] == pytest.approx(sk.hamming_loss(y, given))
    assert summary["macro_f1"] == pytest.approx(sk.f1_score(y, given, average="macro"))
    assert summary["micro_f1"] == pytest.approx(sk.f1_score(y, given, average="micro"))
    assert summary["auc"] == pytest.approx(sk.roc_auc_score(y, said, average="macro"))
    assert summary["average_precision"] == pytest.approx(sk.average_precision_score(y, said, average="macro"))


def test_figures_of_each_label_are_scikit_learns() -> None:
    y, given, said, found = measure_drawn()
    sensitivity, specificity = sk.recall_score(y, given, average=None), sk.recall_score(1 - y, 1 - given, average=None)
    for i, one in enumerate(found.by_class):
        assert one.sensitivity == pytest.approx(sensitivity[i])
        assert one.specificity == pytest.approx(specificity[i])
        assert one.auc == pytest.approx(sk.roc_auc_score(y[:, i], said[:, i]))
        assert one.average_precision == pytest.approx(sk.average_precision_score(y[:, i], said[:, i]))


def test_a_label_that_no_sample_has_has_no_curve() -> None:
    y, given, said = draw()
    y[:, 1] = 0
    found = measure_labels(y, given, said, 0.5)
    assert found.by_class[1].auc is None
    assert found.by_class[1].sensitivity is None
    assert math.isfinite(found.summarise()["auc"])


def test_measures_come_back_from_json() -> None:
    *_, found = measure_drawn()
    assert read_measures(json.loads(json.dumps(found.to_mapping()))) == found


def test_many_labels_have_no_figures_of_their_own() -> None:
    y = np.zeros((12, 65), np.int64)
    y[0] = 1
    found = measure_labels(y, y, y.astype(np.float64), 0.1)
    assert found.by_class == []
    assert found.summarise()["micro_f1"] == 1.0


def test_evaluation_gives_intervals_around_each_figure() -> None:
    y, given, said = draw(200)
    found, intervals = evaluate(y, given, said, ("a", "b", "c"), 100, kind="multilabel")
    assert isinstance(found, LabelMeasures)
    summary = found.summarise()
    for name in ("hamming_loss", "macro_f1", "micro_f1", "auc"):
        assert intervals[name].low < summary[name] < intervals[name].high
    assert "exact_match" not in intervals
    assert "exact_match" in found.intervals  # which is Wilson's
    assert intervals["auc/a"].low < intervals["auc/a"].high
    likelihoods = -np.log(np.where(y > 0, said, 1 - said))
    assert summary["loss"] == pytest.approx(likelihoods.mean())


def test_a_model_that_gives_everyone_the_same_labels_is_caught() -> None:
    y, _, _ = draw(40)
    shares = y.mean(0)
    said = np.tile(shares, (40, 1))
    prior = float(-(shares * np.log(shares) + (1 - shares) * np.log(1 - shares)).mean())
    signs = find_signs(measure_answers("multilabel", y, (said > 0.5).astype(np.int64), said, prior), {})
    assert set(signs) == {Sign.ONE_CLASS}
    said[:, 0] = np.resize([0.6, 0.4], 40)
    signs = find_signs(measure_answers("multilabel", y, (said > 0.5).astype(np.int64), said, prior), {})
    assert set(signs) == {Sign.PRIOR}
    assert "the prevalences of the labels alone" in signs[Sign.PRIOR]


def test_a_model_that_learns_shows_no_sign() -> None:
    y, given, said = draw(200)
    found, _ = evaluate(y, given, said, ("a", "b", "c"), 0, kind="multilabel")
    assert find_signs(found, {}) == {}
