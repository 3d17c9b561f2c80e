"""Temperature scaling, against what can be done by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ml.tasks import CLASSIFICATION, MULTILABEL
from ml.training.temperature import DEVIATION, TEMPERATURES, find_temperature

STEP = 2 ** (1 / 24)
SURE = torch.tensor([[4.0, 0.0]])


def test_a_model_that_is_right_three_times_in_four_is_made_as_sure_as_that() -> None:
    """Of answers with logits 4 and 0 three in four are right: log 3 apart is what the probability 3/4 is."""
    found = find_temperature(SURE.repeat(4000, 1), torch.tensor([0, 0, 0, 1] * 1000), CLASSIFICATION)
    assert found == pytest.approx(4 / math.log(3), rel=STEP - 1)


def test_labels_have_one_temperature_for_all() -> None:
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])  # three of four of each are right
    found = find_temperature(torch.tensor([[2.0, -2.0]]).repeat(4000, 1), y.repeat(1000, 1), MULTILABEL)
    assert found == pytest.approx(2 / math.log(3), rel=STEP - 1)


def test_few_samples_change_little_and_many_much() -> None:
    y = torch.tensor([0, 0, 0, 1])
    found = [find_temperature(SURE.repeat(4 * n, 1), y.repeat(n), CLASSIFICATION) for n in (1, 4, 16, 64)]
    assert found == sorted(found)
    assert 1 < found[0] < 2 < found[-1]
    assert find_temperature(SURE, y[:1], CLASSIFICATION) == pytest.approx(1, rel=0.1)


def test_it_is_the_likeliest_by_samples_and_prior() -> None:
    """Of one answer with logits 4 and 0 that is wrong, the log loss is log(1 + exp(4 / T))."""

    def weigh(t: float) -> float:
        return math.log1p(math.exp(4 / t)) + (math.log(t) / DEVIATION) ** 2 / 2

    found = find_temperature(SURE, torch.tensor([1]), CLASSIFICATION)
    assert weigh(found) == pytest.approx(min(weigh(t) for t in TEMPERATURES))
    assert found > 1


def test_answers_that_are_all_right_or_all_wrong_end_at_the_bounds() -> None:
    for y, bound, sure in ((0, 0.25, SURE / 100), (1, 16.0, SURE)):
        assert find_temperature(sure.repeat(10**4, 1), torch.full((10**4,), y), CLASSIFICATION) == bound
