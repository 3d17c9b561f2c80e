"""The verdict on federating: the measures are those of one model, the difference is a paired one, and words follow."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.measures.kinds import Answers, measure_answers
from ml.measures.verdict import Outcome, Verdict, compare
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION


def classify(y: Any, noise: float, seed: int, num_classes: int = 2) -> Answers:
    """Answers that are right the more often, the less noise there is."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * (y[:, None] == np.arange(num_classes)) + noise * rng.normal(size=(len(y), num_classes))
    said = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return Answers(y, said.argmax(1), np.round(said, 2))  # with ties


def make_labels(num: int, num_classes: int = 2) -> Any:
    return np.arange(num) % num_classes


@pytest.mark.parametrize("num_classes", [2, 5])
def test_auc_is_that_of_one_model(num_classes: int) -> None:
    y = make_labels(200, num_classes)
    both = classify(y, 1.0, 1, num_classes), classify(y, 3.0, 2, num_classes)
    found = compare(CLASSIFICATION, *both)
    assert found is not None
    assert found.measure == "auc"
    for value, answers in zip((found.together, found.alone), both, strict=True):
        assert value == pytest.approx(measure_answers(CLASSIFICATION, *answers, 0.0).summarise()["auc"])


def test_of_very_many_classes_it_is_the_balanced_accuracy_and_of_one_class_too() -> None:
    for y, num_classes in ((make_labels(300, 70), 70), (np.zeros(40, np.int64), 2)):
        both = classify(y, 1.0, 1, num_classes), classify(y, 2.0, 2, num_classes)
        found = compare(CLASSIFICATION, *both)
        assert found is not None
        assert found.measure == "balanced_accuracy"
        right = [np.mean([(each.labels == c)[y == c].mean() for c in np.unique(y)]) for each in both]
        assert [found.together, found.alone] == pytest.approx(right)


def test_of_labels_it_is_the_mean_auc_and_of_targets_r2() -> None:
    rng = np.random.default_rng(3)
    y = (rng.random((120, 3)) < 0.4).astype(np.int64)
    both = [Answers(y, y, y + noise * rng.standard_normal(y.shape)) for noise in (0.5, 2.0)]
    found = compare(MULTILABEL, *both)
    assert found is not None
    assert found.measure == "auc"
    assert found.together == pytest.approx(measure_answers(MULTILABEL, *both[0], 0.0).summarise()["auc"])
    values = rng.normal(size=(120, 2)) * [1, 1000] + 1e4
    both = [Answers(values, said, said) for said in (values + noise * rng.normal(size=(120, 2)) for noise in (0.5, 1))]
    found = compare(REGRESSION, *both)
    assert found is not None
    assert found.measure == "r2"
    assert found.together == pytest.approx(measure_answers(REGRESSION, *both[0], 0.0).summarise()["r2"])


def test_what_has_no_measure_has_no_verdict() -> None:
    alike = np.full((20, 1), 7.1)
    said = alike + np.arange(20.0)[:, None]
    assert compare(REGRESSION, Answers(alike, said, said), Answers(alike, alike, alike)) is None
    with pytest.raises(ValueError, match="the same samples"):
        compare(CLASSIFICATION, classify(make_labels(20), 1, 1), classify(make_labels(21), 1, 1))


def test_the_interval_is_that_of_resamples_one_by_one() -> None:
    y = make_labels(61)
    both = classify(y, 1.5, 1), classify(y, 3.0, 2)
    found = compare(CLASSIFICATION, *both)
    assert found is not None
    rng = np.random.default_rng(9)
    differences = []
    for _ in range(400):
        at = rng.integers(0, 61, 61)
        aucs = [
            measure_answers(CLASSIFICATION, y[at], each.labels[at], each.said[at], 0.0).summarise()["auc"]
            for each in both
        ]
        differences.append(aucs[0] - aucs[1])
    assert [found.low, found.high] == pytest.approx(np.percentile(differences, [2.5, 97.5]), abs=0.03)


def test_a_paired_difference_is_seen_where_the_intervals_of_both_overlap() -> None:
    """One model is the other with some of its mistakes mended; the intervals of each are wider than that."""
    y = make_labels(100)
    alone = classify(y, 3.0, 1)
    said = alone.said.copy()
    wrong = np.flatnonzero(alone.labels != y)[:8]
    said[wrong] = said[wrong, ::-1]
    found = compare(CLASSIFICATION, Answers(y, said.argmax(1), said), alone)
    assert found is not None
    assert found.outcome is Outcome.TOGETHER
    assert found.low is not None
    assert 0 < found.low < found.difference
    assert found.together - found.alone < 0.15


def test_two_models_that_differ_by_chance_seldom_get_a_verdict() -> None:
    y = make_labels(60)
    outcomes = [compare(CLASSIFICATION, classify(y, 2.0, i), classify(y, 2.0, i + 500)) for i in range(30)]
    assert sum(one is not None and one.outcome is not Outcome.NO_DIFFERENCE for one in outcomes) <= 5


@pytest.mark.parametrize("y", [make_labels(8), np.array([0] * 60 + [1] * 3)], ids=["samples", "of a class"])
def test_too_few_samples_are_told(y: Any) -> None:
    found = compare(CLASSIFICATION, classify(y, 0.1, 1), classify(y, 9.0, 2))
    assert found is not None
    assert (found.outcome, found.interval) == (Outcome.TOO_FEW, None)
    assert found.sentence.startswith("Too few test samples to tell whether federating helps here: AUC 1.000 against 0.")


def test_words() -> None:
    def tell(low: float, high: float, together: float = 0.91, **more: Any) -> str:
        return Verdict("auc", together, 0.88, 61, low, high, **more).sentence

    assert tell(0.004, 0.06) == (
        "Federating helps here: AUC 0.910 against 0.880 alone (+0.030, +0.004 to +0.060), on 61 test samples."
    )
    assert tell(-0.01, 0.06) == (
        "No difference that 61 test samples could show: AUC 0.910 against 0.880 alone (+0.030, -0.010 to +0.060)."
    )
    assert tell(-0.07, -0.01, 0.84).startswith(
        "Training alone is better here by 0.040: AUC 0.840 against 0.880 alone (-0.040, -0.070 to -0.010), on 61 test "
        "samples. Try answers of both models mixed"
    )
    assert "(0.000, -0.010 to 0.000)" in tell(-0.01, 0.0004, 0.8797)
    assert tell(-0.01, 0.06, owed_steps=9).startswith("Training alone lags by 9 steps: no difference that 61 test")
    lagging = Verdict("auc", 0.91, 0.88, 61, 0.004, 0.06, rounds=15).of_newest(20)
    assert lagging.sentence.startswith("At round 15 of 20, as far as training alone has come: federating helps here")
    assert lagging.of_newest(15).sentence == tell(0.004, 0.06)


def test_what_a_site_publishes_is_the_same_verdict_to_four_digits() -> None:
    for verdict in (
        Verdict("balanced_accuracy", 0.91234, 0.88888, 61, 0.00412, 0.05678),
        Verdict("r2", -2.5, 0.5, 61, -4.0, -1.0),
        Verdict("auc", 1.0, 0.5, 9, None, None),
    ):
        told = Verdict.from_values({name: round(value, 4) for name, value in verdict.to_values().items()}, 61)
        assert told is not None
        assert (told.measure, told.outcome) == (verdict.measure, verdict.outcome)
        assert told.together == pytest.approx(verdict.together, abs=2e-4)
        assert told.sentence == replace(verdict, num_samples=61).sentence


@pytest.mark.parametrize(
    "values",
    [
        {"auc": 0.9},
        {"gain": 0.1},
        {"alone_auc": 0.9},
        {"alone_auc": 0.9, "gain": 0.2},
        {"alone_auc": 0.1, "gain": -0.2},
        {"alone_auc": 0.1, "gain": 0.2, "gain_low": 0.3, "gain_high": 0.4},
        {"alone_auc": 0.1, "gain": 0.2, "gain_low": 0.1, "gain_high": 0.15},
    ],
)
def test_numbers_that_are_no_verdict_or_contradict_each_other_are_none(values: dict[str, float]) -> None:
    assert Verdict.from_values(values, 60) is None


def test_it_outlives_json() -> None:
    verdict = compare(CLASSIFICATION, classify(make_labels(60), 1, 1), classify(make_labels(60), 3, 2), rounds=7)
    assert verdict is not None
    assert Verdict(**json.loads(json.dumps(verdict.to_mapping()))) == verdict
