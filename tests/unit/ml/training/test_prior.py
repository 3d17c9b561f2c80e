"""Answers adjusted to a client's own prior, against the formula by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ml.training.prior import ClassScores, adjust, choose_kappa, compute_log_prior

SCORES = torch.tensor([[2.0, 1.0, -1.0], [0.0, 0.5, 0.4]])


def test_a_prior_is_the_shares_of_the_classes_smoothed_by_one_of_each() -> None:
    log_prior = compute_log_prior(torch.tensor([0, 0, 0, 2]), 3)
    assert log_prior.exp().tolist() == pytest.approx([4 / 7, 1 / 7, 2 / 7])
    assert compute_log_prior(torch.empty(0, dtype=torch.int64), 4).exp().tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("kappa", [0.0, 0.25, 1.0, 3.0])
def test_logits_are_shifted_by_kappa_times_the_log_of_the_prior(kappa: float) -> None:
    prior = [4 / 7, 1 / 7, 2 / 7]
    said = adjust(ClassScores(SCORES), torch.tensor(prior).log(), kappa)
    for row, scores in zip(said.logits.tolist(), SCORES.tolist(), strict=True):
        weights = [math.exp(s) * q**kappa for s, q in zip(scores, prior, strict=True)]
        assert [math.exp(value) for value in row] == pytest.approx([w / sum(weights) for w in weights], rel=1e-5)
        assert said.labels.tolist()[SCORES.tolist().index(scores)] == weights.index(max(weights))


def test_classes_that_nobody_can_answer_with_stay_so_whatever_the_prior() -> None:
    scores = torch.tensor([[-1.0, -math.inf, -2.0]])
    said = adjust(ClassScores(scores), torch.tensor([0.01, 0.98, 0.01]).log(), 5.0)
    assert said.labels.tolist() == [0]
    assert said.logits.softmax(1)[0].tolist() == pytest.approx([1 / (1 + math.exp(-1)), 0, 1 / (1 + math.exp(1))])


def test_the_distance_and_the_author_are_those_of_the_class_that_was_chosen() -> None:
    distances, authors = torch.tensor([[3.0, 4.0], [1.0, 2.0]]), torch.tensor([[5, 6], [7, 8]])
    said = ClassScores(-distances.square(), distances, authors)
    same = adjust(said, torch.tensor([0.5, 0.5]).log(), 1.0)
    assert [each.tolist() for each in same[1:] if each is not None] == [[0, 0], [3.0, 1.0], [5, 7]]
    other = adjust(said, torch.tensor([1e-3, 1 - 1e-3]).log(), 1.0)  # log of 999 is 6.9: more than 3, less than 7
    assert [each.tolist() for each in other[1:] if each is not None] == [[0, 1], [3.0, 2.0], [5, 8]]


def test_a_clients_own_kappa_is_the_smallest_of_those_that_answer_best() -> None:
    log_prior = torch.tensor([0.9, 0.05, 0.05]).log()
    said = ClassScores(torch.tensor([[1.0, 1.5, 0.0], [0.0, 9.0, 0.0]]))
    assert choose_kappa(said, torch.tensor([0, 1]), log_prior) == 0.25  # 0.1 * log(18) is 0.29, less than 0.5
    assert choose_kappa(said, torch.tensor([1, 1]), log_prior) == 0
    assert choose_kappa(said, torch.tensor([0, 2]), log_prior, [0.5, 1.0]) == 0.5
