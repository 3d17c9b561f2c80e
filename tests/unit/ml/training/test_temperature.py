"""Temperature scaling, against what can be done by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ml.tasks import CLASSIFICATION, MULTILABEL
from ml.training.metrics import compute_loss
from ml.training.temperature import HIGHEST, LOWEST, find_temperature


def test_a_model_that_is_right_three_times_in_four_is_made_as_sure_as_that() -> None:
    """Of four answers with logits 4 and 0 three are right: log 3 apart is what the probability 3/4 is."""
    logits = torch.tensor([[4.0, 0.0]] * 4)
    found = find_temperature(logits, torch.tensor([0, 0, 0, 1]), CLASSIFICATION)
    assert found == pytest.approx(4 / math.log(3), rel=1e-6)
    assert (logits / found).softmax(1)[0, 0].item() == pytest.approx(0.75)


def test_labels_have_one_temperature_for_all() -> None:
    logits = torch.tensor([[2.0, -2.0]] * 4)
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])  # three of four of each are right
    assert find_temperature(logits, y, MULTILABEL) == pytest.approx(2 / math.log(3), rel=1e-6)


def test_it_is_the_lowest_loss_of_any_and_is_found_again() -> None:
    torch.manual_seed(0)
    logits = 6 * torch.randn(40, 5)
    y = (logits + 6 * torch.randn(40, 5)).argmax(1)
    found = find_temperature(logits, y, CLASSIFICATION)
    loss = compute_loss(logits.double() / found, y, CLASSIFICATION)
    assert all(
        loss <= compute_loss(logits.double() / t, y, CLASSIFICATION) for t in (1.0, 2.0, 4.0, 0.99 * found, 16.0)
    )
    assert find_temperature(logits, y, CLASSIFICATION) == found


def test_answers_that_are_all_right_or_all_wrong_end_at_the_bounds() -> None:
    logits = torch.tensor([[4.0, 0.0]] * 4)
    for y, bound in ((0, LOWEST), (1, HIGHEST)):
        assert find_temperature(logits, torch.tensor([y] * 4), CLASSIFICATION) == pytest.approx(bound, rel=1e-6)
