"""An evaluation: figures, and intervals that hold them."""

from __future__ import annotations

import numpy as np
import pytest

from ml.measures.evaluation import evaluate

CLASSES = ("malignant", "benign")


def test_each_figure_that_does_not_follow_from_counts_has_an_interval_around_it() -> None:
    rng = np.random.default_rng(3)
    y = np.array([0] * 40 + [1] * 60)
    sure = np.clip(rng.normal(0.65, 0.2, 100), 0.01, 0.99)
    probabilities = np.where((y == 0)[:, None], np.stack([sure, 1 - sure], 1), np.stack([1 - sure, sure], 1))
    measures, intervals = evaluate(y, probabilities.argmax(1), probabilities, CLASSES, 300)
    told = measures.summarise()
    assert told["loss"] == pytest.approx(-np.log(sure).mean())
    assert intervals.keys() == (told.keys() - {"accuracy"}) | {
        f"{name}/{one}" for name in ("auc", "average_precision") for one in CLASSES
    }
    for name in told.keys() - {"accuracy"}:
        assert intervals[name].low <= told[name] <= intervals[name].high
        assert intervals[name].low < intervals[name].high
    auc = measures.by_class[0].get_values()["auc"]
    assert intervals["auc/malignant"].low < auc < intervals["auc/malignant"].high
    assert evaluate(y, probabilities.argmax(1), probabilities, CLASSES, 0)[1] == {}


def test_a_probability_of_nothing_costs_much_and_not_everything() -> None:
    measures, _ = evaluate(np.array([0]), np.array([1]), np.array([[0.0, 1.0]]), CLASSES, 0)
    assert measures.loss == pytest.approx(87.3, abs=0.1)
