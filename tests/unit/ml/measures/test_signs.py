"""Signs against a model that has learned something: each with answers that show it, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.measures.classification import Measures, measure
from ml.measures.collapse import NOT_LEARNED, QUIET, Sign, find_signs
from ml.measures.intervals import compute_auc_error
from ml.measures.multilabel import measure_labels
from ml.measures.signs import Losses

NUM = 60
CLASSES = ("well", "ill")
CALM: dict[str, float] = {"steps": 100, "first_loss": 0.7, "last_loss": 0.2}


def answer(ill: np.ndarray, y: np.ndarray, loss: float = 0.3) -> Measures:
    """Of two classes, by the probability of the second."""
    said = np.stack([1 - ill, ill], axis=1)
    return replace(measure(y, said.argmax(1), said, loss), classes=CLASSES)


def make_good(seed: int = 0, num: int = NUM) -> Measures:
    """A model that is right as often as it says."""
    rng = np.random.default_rng(seed)
    ill = np.where(rng.random(num) < 0.5, rng.uniform(0.02, 0.3, num), rng.uniform(0.7, 0.98, num))
    return answer(ill, (rng.random(num) < ill).astype(np.int64))


def make_losses(train: list[float], val: list[float | None], test: list[float | None] | None = None) -> list[Losses]:
    return [
        Losses(number, *one) for number, one in enumerate(zip(train, val, test or [None] * len(val), strict=True), 1)
    ]


RISING = make_losses([0.5, 0.4, 0.3, 0.2, 0.15], [0.6, 0.5, 0.6, 0.7, 0.8])


def test_a_good_model_shows_none() -> None:
    falling = make_losses([0.5, 0.4, 0.3, 0.2, 0.15], [0.6, 0.5, 0.45, 0.44, 0.44])
    assert find_signs(make_good(), CALM, make_good(), falling) == {}


def test_a_training_loss_that_falls_while_that_of_val_rises() -> None:
    assert find_signs(make_good(), CALM, make_good(), RISING) == {
        Sign.OVERFITTING: "it overfits: since round 2, the best, the training loss fell from 0.4 to 0.15, and the loss "
        "on val samples rose from 0.5 to 0.8; fewer local steps or weight decay help"
    }


@pytest.mark.parametrize(
    "losses",
    [
        make_losses([0.5, 0.5, 0.5, 0.5, 0.5], [0.6, 0.5, 0.6, 0.7, 0.8]),  # training gets no better
        make_losses([0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 0.6, 0.7]),  # two rounds since the best
        make_losses([0.5, 0.4, 0.3, 0.2, 0.15], [0.6, 0.5, 0.6, 0.52, 0.8]),  # it comes and goes
        make_losses([0.5, 0.4, 0.3, 0.2, 0.15], [0.06, 0.05, 0.09, 0.09, 0.09]),  # by next to nothing
        make_losses([0.5] * 5, [None] * 5),
        [],
    ],
)
def test_other_courses_are_no_overfitting(losses: list[Losses]) -> None:
    assert find_signs(make_good(), CALM, None, losses) == {}


def test_without_val_it_goes_by_the_test_samples() -> None:
    losses = make_losses([0.5, 0.4, 0.3, 0.2, 0.15], [None] * 5, [0.5, 0.6, 0.7, 0.8, 1.0])
    assert "since round 1, the best" in (text := find_signs(make_good(), CALM, None, losses)[Sign.OVERFITTING])
    assert "the loss on test samples rose from 0.5 to 1" in text
    assert text.endswith("or a run that selects its best round")


def test_overfitting_is_not_taken_for_a_model_that_has_learned_nothing() -> None:
    y = np.arange(NUM) % 2
    coin = answer(np.where(np.arange(NUM) // 2 % 2 == 0, 0.01, 0.99), y, loss=2.3)  # sure, and no better than chance
    assert find_signs(coin, {}).keys() == {Sign.MAJORITY}
    assert find_signs(coin, {}, None, RISING).keys() == {Sign.OVERFITTING}


def test_a_loss_that_still_falls_is_of_a_model_that_has_not_learned_yet() -> None:
    coin = answer(np.full(NUM, 0.6), np.arange(NUM) % 2, loss=0.7)
    falling = make_losses([0.9] * 5, [None] * 5, [0.9, 0.9, 0.88, 0.86, 0.84])
    assert find_signs(coin, CALM).keys() == {Sign.ONE_CLASS}
    assert find_signs(coin, CALM, None, falling) == {
        Sign.NOT_YET: "it has not learned yet, but learns: the loss on test samples fell from 0.9 in round 2 to 0.84 "
        "in round 5; more rounds help, or a higher lr"
    }
    assert find_signs(coin, CALM, None, falling[:2]).keys() == {Sign.ONE_CLASS}
    assert find_signs(make_good(), CALM, None, falling) == {}
    assert Sign.NOT_YET in QUIET


def test_an_average_that_costs_a_site_explains_a_model_that_has_learned_nothing_there() -> None:
    y = np.arange(NUM) % 2
    after = answer(np.full(NUM, 0.6), y, loss=0.7)
    assert find_signs(after, CALM, make_apart(2.0)).keys() == {Sign.AVERAGING}


def test_classes_without_training_samples_are_named_and_not_said_to_be_unfound() -> None:
    found = replace(make_three(10), calibration_chance=None)
    assert find_signs(found, CALM, missing=["c"]) == {
        Sign.MISSING: "classes are missing here: no training samples of c; what the model says of them it has from the "
        "others, and a method that gives everyone's answer helps (mpfedcl with prior=0)"
    }
    assert find_signs(found, CALM, missing=["a", "d"]).keys() == {Sign.MISSING, Sign.UNFOUND}
    assert Sign.MISSING in QUIET


def test_losses_are_read_from_metrics() -> None:
    assert Losses.of(3, {"loss": 0.5}, {"loss": 0.7, "val_loss": 0.6}) == Losses(3, 0.5, 0.6, 0.7)
    assert Losses.of(3, {"loss": 0.5}, {"loss": None}) == Losses(3, 0.5, None, None)
    assert Losses.of(3, {}, {"loss": 0.7}) is None  # nothing was trained


def make_three(unfound: int) -> Measures:
    """Of three classes, the last of which is never given and has so many samples."""
    y = np.array([0] * 25 + [1] * 25 + [2] * unfound)
    given = np.where(y == 2, np.arange(len(y)) % 2, y)
    said = np.full((len(y), 3), 0.05)
    said[np.arange(len(y)), given] = 0.9
    return replace(measure(y, given, said, 0.3), classes=("a", "b", "c"))


def test_a_class_that_is_never_found() -> None:
    assert find_signs(replace(make_three(10), calibration_chance=None), CALM) == {
        Sign.UNFOUND: "a class is never found: none of 10 of c; class weights (class_weights), or more samples of it, "
        "help"
    }
    assert find_signs(replace(make_three(9), calibration_chance=None), CALM) == {}  # by chance, perhaps


def test_a_label_that_is_never_found() -> None:
    y = np.stack([np.arange(NUM) % 2, np.arange(NUM) % 4 == 0], axis=1).astype(np.int64)
    said = np.stack([np.where(y[:, 0] == 1, 0.9, 0.1), np.full(NUM, 0.3)], axis=1)
    found = replace(measure_labels(y, (said > 0.5).astype(np.int64), said, 0.2), classes=("fever", "rash"))
    assert find_signs(found, CALM).keys() == {Sign.UNFOUND}
    assert "none of 15 of rash" in find_signs(found, CALM)[Sign.UNFOUND]


def test_one_that_ranks_well_and_is_too_sure() -> None:
    y = np.arange(NUM) % 2
    ill = np.where(y == 1, 0.99, 0.01)
    ill[:12] = 1 - ill[:12]
    ill[12:24] = np.where(y[12:24] == 1, 0.995, 0.005)
    assert find_signs(answer(ill, y), CALM).keys() == {Sign.MISCALIBRATED}
    text = find_signs(answer(ill, y), CALM)[Sign.MISCALIBRATED]
    assert text.startswith(
        "it is too sure of its answers: their probabilities are off by 0.191, where chance explains 0.0"
    )


def test_the_calibration_error_of_a_good_model_is_what_chance_explains() -> None:
    shown = [Sign.MISCALIBRATED in find_signs(make_good(seed), {}) for seed in range(200)]
    assert sum(shown) <= 4  # one in a hundred


def test_a_young_model_that_is_less_sure_than_right_is_not_miscalibrated() -> None:
    y = np.arange(NUM) % 2
    unsure = answer(np.where(y == 1, 0.6, 0.4), y, loss=0.5)
    assert unsure.calibration_error == pytest.approx(0.4)
    assert find_signs(unsure, CALM) == {}


def test_a_young_model_that_finds_few_classes_is_not_told_which_it_does_not_find() -> None:
    y = np.arange(200) % 10
    given = y % 3  # of the ten it gives three
    said = np.full((200, 10), 0.05)
    said[np.arange(200), given] = 0.5 + y / 100
    assert Sign.UNFOUND not in find_signs(measure(y, given, said, 1.5), {})


def make_apart(shift: float, num: int = NUM) -> Measures:
    """Of classes that are so far apart, in deviations."""
    y = np.arange(num) % 2
    score = np.linspace(-1.5, 1.5, num // 2).repeat(2) + shift * (y - 0.5)
    return replace(answer(1 / (1 + np.exp(-score)), y), calibration_chance=None)


def test_an_average_that_is_worse_than_what_was_before_it() -> None:
    signs = find_signs(make_apart(0.6), CALM, make_apart(2.0))
    assert signs.keys() == {Sign.AVERAGING}
    assert signs[Sign.AVERAGING].startswith("averaging costs this site: AUC 0.9")
    for before in (make_apart(0.75), make_apart(0.6), make_apart(0.2), None, make_apart(2.0, 58)):
        assert find_signs(make_apart(0.6), CALM, before) == {}


def test_without_areas_the_recalls_tell() -> None:
    before, after = (replace(make_apart(shift), auc=None) for shift in (3.0, 0.3))
    text = find_signs(after, CALM, before)[Sign.AVERAGING]
    assert text.startswith("averaging costs this site: balanced accuracy 0.983 before the exchange, 0.533 after")


def test_one_that_ranks_well_below_the_majority_is_no_alarm() -> None:
    y = np.array([1] * 46 + [0] * 4)
    ill = np.concatenate([np.linspace(0.6, 0.95, 41), [0.4, 0.35, 0.45, 0.42, 0.38], [0.25, 0.45, 0.2, 0.3]])
    signs = find_signs(replace(answer(ill, y), calibration_chance=None), CALM)
    assert signs.keys() == {Sign.BEHIND}
    assert signs[Sign.BEHIND].startswith("accuracy 0.900 is no better than 0.920, which calling every test sample ill")
    assert Sign.BEHIND in QUIET


def make_few(num_ill: int, num_well: int) -> Measures:
    """Of a model that is right half of the time, in either class."""
    y = np.array([1] * num_ill + [0] * num_well)
    ill = np.where(np.arange(len(y)) % 2 == 0, 0.6, 0.4)
    return answer(ill, y, loss=0.5)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((5, 4), "9 test samples are too few to tell, fewer than 10"),
        ((20, 0), "all 20 test samples are of one class, which tells nothing"),
        ((7, 7), "too few test samples of a class to tell: AUC 0.57, give or take 0.31"),
    ],
)
def test_too_few_to_tell_is_no_alarm(counts: tuple[int, int], told: str) -> None:
    found = replace(make_few(*counts), num_correct=sum(counts))  # nothing else speaks against it
    signs = find_signs(found, {})
    assert signs.keys() == {Sign.FEW}
    assert signs[Sign.FEW].startswith(told)
    assert Sign.FEW in QUIET
    assert not QUIET & NOT_LEARNED


def test_the_error_of_an_area() -> None:
    """Hanley and McNeil's own example (1982, table II): 0.893 of 51 and 58 samples has 0.032; and chance's."""
    assert compute_auc_error(0.893, 51, 58) == pytest.approx(0.032, abs=1e-3)
    assert compute_auc_error(0.5, 21, 36) == pytest.approx((58 / (12 * 21 * 36)) ** 0.5)
    assert compute_auc_error(1.0, 3, 4) == 0.0


def test_nothing_is_said_of_nothing() -> None:
    nothing: Any = None
    assert find_signs(nothing, {}, make_good()) == {}
