"""Measures of numbers: equal to scikit-learn's, in the targets' own units."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import metrics as sk

from ml.measures.collapse import Sign, find_signs
from ml.measures.evaluation import evaluate
from ml.measures.kinds import measure_answers, read_measures
from ml.measures.regression import TargetMeasures, measure_targets
from ml.tasks import TargetScale


def draw(num: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.normal((150.0, 0.002), (70.0, 0.001), (num, 2))
    return y, y + rng.normal(0, (50.0, 0.0005), (num, 2))


def test_figures_are_scikit_learns() -> None:
    y, said = draw()
    summary = measure_targets(y, said, 0.5).summarise()
    assert summary["mae"] == pytest.approx(sk.mean_absolute_error(y, said))
    assert summary["rmse"] == pytest.approx(sk.root_mean_squared_error(y, said))
    assert summary["r2"] == pytest.approx(sk.r2_score(y, said))


def test_figures_of_each_target_are_scikit_learns() -> None:
    y, said = draw()
    found = measure_targets(y, said, 0.5).by_class
    for t, one in enumerate(found):
        values = one.get_values()
        assert values["mae"] == pytest.approx(sk.mean_absolute_error(y[:, t], said[:, t]))
        assert values["rmse"] == pytest.approx(sk.root_mean_squared_error(y[:, t], said[:, t]))
        assert values["r2"] == pytest.approx(sk.r2_score(y[:, t], said[:, t]))
        assert values["bias"] == pytest.approx((said - y)[:, t].mean())


def test_targets_without_spread_have_no_r2() -> None:
    y = np.full((20, 1), 0.1)
    found = measure_targets(y, y + 1, 1.0)
    assert found.r2 == [None]
    assert "r2" not in found.summarise()


def test_measures_come_back_from_json() -> None:
    found = measure_targets(*draw(), 0.5)
    assert read_measures(json.loads(json.dumps(found.to_mapping()))) == found


def test_evaluation_gives_intervals_and_the_loss_at_the_runs_scale() -> None:
    y, said = draw(200)
    scale = TargetScale.measure(y)
    found, intervals = evaluate(y, said, said, ("glucose", "iron"), 100, kind="regression", scale=scale)
    assert isinstance(found, TargetMeasures)
    for name, value in found.summarise().items():
        assert intervals[name].low < value < intervals[name].high
    assert intervals["rmse/glucose"].low < found.rmse[0] < intervals["rmse/glucose"].high
    assert found.loss == pytest.approx((np.square(said - y) / y.var(0)).mean(), rel=1e-6)


def test_a_model_that_says_the_mean_is_caught() -> None:
    y, _ = draw()
    said = np.tile(y.mean(0), (len(y), 1))
    signs = find_signs(measure_answers("regression", y, said, said, 1.0), {})
    assert list(signs) == [Sign.MEAN]
    assert "no better than saying the mean" in signs[Sign.MEAN]


def test_a_model_that_learns_shows_no_sign() -> None:
    assert find_signs(measure_targets(*draw(), 0.5), {}) == {}


def test_a_scale_takes_each_target_to_mean_0_and_deviation_1_and_back() -> None:
    y, _ = draw()
    scale = TargetScale.measure(y)
    scaled = scale.scale(y)
    assert np.allclose(scaled.mean(0), 0, atol=1e-6)
    assert np.allclose(scaled.std(0), 1, atol=1e-6)
    assert np.allclose(scale.unscale(scaled), y)
    assert TargetScale.measure(np.full((5, 1), 3.0)).to_mapping() == {"mean": [3.0], "std": [1.0]}
