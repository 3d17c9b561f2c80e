"""Two models' answers mixed: by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION
from ml.training.mixture import WEIGHTS, find_weight, mix

SURE = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
UNSURE = torch.tensor([[0.4, 0.6]], dtype=torch.float64)


def test_probabilities_are_mixed_and_not_logits() -> None:
    mixed = mix(SURE.log(), UNSURE.log(), 0.75, CLASSIFICATION)
    assert mixed.exp()[0].tolist() == pytest.approx([0.775, 0.225])
    labels = mix(torch.logit(SURE), torch.logit(UNSURE), 0.75, MULTILABEL)
    assert labels.sigmoid()[0].tolist() == pytest.approx([0.775, 0.225])
    assert mix(SURE, UNSURE, 0.75, REGRESSION)[0].tolist() == pytest.approx([0.775, 0.225])


@pytest.mark.parametrize("kind", [CLASSIFICATION, MULTILABEL, REGRESSION])
def test_a_weight_of_one_or_none_is_one_model(kind: str) -> None:
    one, other = torch.tensor([[50.0, -50.0]]).double(), torch.tensor([[-1.0, 2.0]]).double()
    for weight, model in ((1.0, one), (0.0, other)):
        mixed = mix(one, other, weight, kind)
        told = (mixed, model) if kind != CLASSIFICATION else (mixed.softmax(1), model.softmax(1))
        assert torch.allclose(*told)


def test_the_weight_is_the_mean_of_all_by_how_likely_each_makes_the_samples() -> None:
    """One sample, of a class that one model gives 0.9 and the other 0.4: each mixture counts by its probability."""
    y = torch.tensor([0])
    likely = [0.9 * w + 0.4 * (1 - w) for w in WEIGHTS]
    expected = sum(w * p for w, p in zip(WEIGHTS, likely, strict=True)) / sum(likely)
    assert find_weight(SURE.log(), UNSURE.log(), y, CLASSIFICATION) == pytest.approx(expected)
    assert find_weight(UNSURE.log(), SURE.log(), y, CLASSIFICATION) == pytest.approx(1 - expected)


def test_few_samples_choose_little_and_many_much_and_none_nothing() -> None:
    one, other = SURE.log(), UNSURE.log()
    found = [
        find_weight(one.repeat(n, 1), other.repeat(n, 1), torch.zeros(n, dtype=torch.int64), CLASSIFICATION)
        for n in (0, 1, 10, 100)
    ]
    assert found[0] == 0.5
    assert found == sorted(found)
    assert found[-1] > 0.99


def test_values_count_by_a_gaussian_of_their_own_error_whatever_the_unit() -> None:
    y = torch.tensor([[0.0], [2.0]])
    near, far = y.double() + 1, y.double() - 3  # errors of 1 and -3: a mixture of weight 3/4 has none
    squared = [(w - 3 * (1 - w)) ** 2 for w in WEIGHTS]
    assert squared[3] == 0
    assert find_weight(near, far, y, REGRESSION) == pytest.approx(0.75)
    off = far - 2  # errors of 1 and -5, and by weight -5 + 6 w
    likely = [1 / (6 * w - 5) ** 2 for w in WEIGHTS]  # exp(-2 log(e^2) / 2)
    expected = sum(w * p for w, p in zip(WEIGHTS, likely, strict=True)) / sum(likely)
    assert find_weight(near, off, y, REGRESSION) == pytest.approx(expected)
    assert find_weight(1000 * near, 1000 * off, 1000 * y, REGRESSION) == pytest.approx(expected)
    assert math.isfinite(find_weight(y.double(), y.double(), y, REGRESSION))
