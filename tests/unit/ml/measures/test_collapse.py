"""Signs that a classifier has not learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ml.measures.classification import Measures, measure
from ml.measures.collapse import MIN_SAMPLES, Sign, find_signs

CLASSES = ("malignant", "benign", "none")
Y = np.array([0] * 21 + [1] * 36)
HELPS = "look at the data first (fednode data inspect), then try another lr"


def answer(labels: np.ndarray, sure: float = 0.9, loss: float = 0.2, y: np.ndarray = Y) -> Measures:
    probabilities = np.full((len(y), 3), (1 - sure) / 2)
    probabilities[np.arange(len(y)), labels] = sure
    return replace(measure(y, labels, probabilities, loss), classes=CLASSES)


def test_a_model_that_tells_the_classes_apart_shows_no_sign() -> None:
    labels = Y.copy()
    labels[:3] = 1
    assert find_signs(answer(labels), {"steps": 100, "first_loss": 0.7, "last_loss": 0.2}) == {}


def test_one_answer_to_all() -> None:
    signs = find_signs(answer(np.ones(57, np.int64), loss=0.4), {})
    assert signs == {Sign.ONE_CLASS: f"all 57 test samples are called benign, of which 36 are; {HELPS}"}


def test_one_answer_of_who_ranks_well_is_the_best_one_where_most_are_of_that_class() -> None:
    ill = np.linspace(0.51, 0.99, 50)
    said = np.stack([1 - ill, ill], axis=1)
    for well, shown in ((4, {Sign.BEHIND}), (20, {Sign.UNFOUND}), (25, {Sign.ONE_CLASS})):
        measures = measure((np.arange(50) >= well).astype(np.int64), np.ones(50, np.int64), said, 0.3)
        assert find_signs(replace(measures, calibration_chance=None), {}).keys() == shown


def test_no_better_than_the_most_common_class() -> None:
    labels = np.ones(57, np.int64)
    labels[40:] = 0  # which finds none of the others
    signs = find_signs(answer(labels, loss=0.5), {})
    assert signs == {
        Sign.MAJORITY: "accuracy 0.333 is no better than 0.632, which calling every test sample benign has; " + HELPS
    }


def test_a_loss_no_better_than_the_shares_of_the_classes() -> None:
    by_luck = answer(Y.copy(), loss=0.6580)
    nothing = replace(by_luck, auc=[0.5, 0.5, None])
    assert find_signs(nothing, {}) == {}
    assert find_signs(replace(nothing, loss=0.6582), {}) == {
        Sign.PRIOR: "loss 0.658 on the test samples is no better than 0.658, which the shares of the classes alone "
        f"have; {HELPS}"
    }


def test_who_ranks_better_than_by_chance_has_learned_whatever_is_most_common() -> None:
    y = np.array([1] * 23 + [0] * 2)
    ill = np.concatenate([np.linspace(0.55, 0.95, 20), [0.3, 0.2, 0.4], [0.25, 0.45]])
    labels = (ill > 0.5).astype(np.int64)
    measures = measure(y, labels, np.stack([1 - ill, ill], axis=1), 0.384)
    assert measures.accuracy == 0.88 < 23 / 25
    assert find_signs(measures, {}).keys() == {Sign.BEHIND}  # which is no alarm
    backwards = measure(y, labels, np.stack([ill, 1 - ill], axis=1), 0.384)
    assert find_signs(backwards, {}).keys() == {Sign.MAJORITY}


def test_a_model_that_may_have_learned_is_not_said_not_to() -> None:
    """As at VA Long Beach: 40 test samples, 30 of them ill, and an AUC of 0.60."""
    y = np.array([0] * 10 + [1] * 30)
    ill = np.concatenate([[0.4] * 4 + [0.9] * 6, [0.6] * 30])
    measures = measure(y, np.ones(40, np.int64), np.stack([1 - ill, ill], axis=1), 0.7)
    assert measures.auc == [0.4, 0.4]
    better = replace(measures, auc=[0.6, 0.6])
    assert find_signs(better, {})[Sign.FEW].startswith("too few test samples of a class to tell: AUC 0.60, give or")
    assert find_signs(measures, {}).keys() == {Sign.ONE_CLASS}


def test_a_phase_that_ends_worse_than_it_began() -> None:
    train = {"steps": 20, "first_loss": 0.5, "last_loss": 0.56}
    assert find_signs(None, train) == {
        Sign.WORSE: "the learning rate is too high: the local phase ended worse than it began, loss 0.5 at first and "
        "0.56 at last; a lower lr helps, or clip_norm"
    }
    assert find_signs(None, train | {"last_loss": 0.54}) == {}
    assert find_signs(None, train | {"steps": 19}) == {}
    assert find_signs(None, train | {"loss_error": 0.031}) == {}
    assert find_signs(None, train | {"loss_error": 0.029}).keys() == {Sign.WORSE}
    near_zero = {"first_loss": 0.0255, "last_loss": 0.0346}  # of a model that answers all test samples as labelled
    assert find_signs(None, train | near_zero) == {}
    assert Sign.WORSE in find_signs(None, train | {"first_loss": 0.0255, "last_loss": 0.0756})
    assert find_signs(None, {}) == {}
    nothing = answer(np.ones(57, np.int64), loss=0.7)
    assert find_signs(nothing, train).keys() == {Sign.WORSE}  # which explains the other


@pytest.mark.parametrize("y", [Y[: MIN_SAMPLES - 1], np.zeros(57, np.int64)], ids=["few samples", "one class"])
def test_of_few_samples_or_one_class_there_is_no_telling(y: np.ndarray) -> None:
    assert find_signs(answer(np.ones(len(y), np.int64), loss=9.0, y=y), {}).keys() == {Sign.FEW}
