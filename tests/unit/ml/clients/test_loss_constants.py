"""Constants of losses that are known, and of digits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from ml.bounds.fedproto import compute_max_lr, compute_round_change
from ml.clients import loss_constants
from ml.clients.loss_constants import PLACES, compute_curvature, compute_jacobian_norm, measure_constants
from ml.data import load_dataset
from ml.errors import BoundError
from ml.models import build_model


def test_the_curvature_of_a_quadratic_is_its_largest_eigenvalue() -> None:
    rng = torch.Generator().manual_seed(1)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=rng, dtype=torch.float64))
    for eigenvalues in ([3.0, 1.0, 0.5, 0.1], [-5.0, 3.0, 1.0, 0.5]):
        a = rotation @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ rotation.T
        x, y = torch.zeros(3, dtype=torch.float64, requires_grad=True), torch.ones(1, dtype=torch.float64)
        y.requires_grad_()

        def compute_loss(a: torch.Tensor = a, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            both = torch.cat([x, y])
            return both @ a @ both / 2

        size = compute_curvature(compute_loss, [x, y], torch.Generator().manual_seed(2))
        assert size == pytest.approx(max(map(abs, eigenvalues)), rel=1e-4)


def test_the_jacobian_of_a_linear_map_has_its_largest_singular_value() -> None:
    a = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])  # and one weight that changes nothing
    w = torch.ones(3, requires_grad=True)
    unused = torch.ones(2, requires_grad=True)
    size = compute_jacobian_norm(lambda: a @ w, [w, unused], torch.Generator().manual_seed(1))
    assert size == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize("place", range(1, PLACES))
def test_training_that_diverges_has_no_constants(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was fine up to a place: a number that is none is greater than no other."""
    torch.manual_seed(1)
    model = build_model({"name": "mlp", "hidden": [8]}, (1, 2, 2), 2)
    x, y = torch.randn(8, 1, 2, 2), torch.arange(8) % 2
    real, calls = loss_constants.compute_curvature, [0]

    def compute(*given: Any) -> float:
        calls[0] += 1
        return math.nan if calls[0] == place + 1 else real(*given)

    monkeypatch.setattr(loss_constants, "compute_curvature", compute)
    with pytest.raises(BoundError, match="l1: expected a finite number"):
        measure_constants(model, x, y, lr=0.1, batch_size=4, seed=1)


def test_a_class_whose_embedding_has_no_slope_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = build_model({"name": "mlp", "hidden": [8]}, (1, 2, 2), 2)
    slopes = itertools.cycle([1.0, math.nan])
    monkeypatch.setattr(loss_constants, "compute_jacobian_norm", lambda *_: next(slopes))
    with pytest.raises(BoundError, match="l2: expected a finite number"):
        measure_constants(model, torch.randn(8, 1, 2, 2), torch.arange(8) % 2, lr=0.1, batch_size=4, seed=1)


def test_a_round_on_digits_changes_the_loss_by_no_more_than_is_bounded() -> None:
    train, _ = load_dataset({"format": "digits"}, {"shape": [1, 8, 8], "resize": None, "mean": [0.5], "std": [0.5]})
    x, y = torch.from_numpy(train.x), torch.from_numpy(train.y)
    torch.manual_seed(1)
    model = build_model({"name": "mlp", "hidden": [64, 32]}, (1, 8, 8), 10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measured = measure_constants(model, x, y, lr=0.05, batch_size=32, seed=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # a copy was trained
    again = measure_constants(model, x, y, lr=0.05, batch_size=32, seed=1)
    assert again == measured
    constants, squares = measured.constants, measured.squares
    assert constants.g**2 + constants.sigma**2 > squares[0] > 0
    assert all(map(math.isfinite, (constants.l1, constants.l2)))

    eta = min(0.05, 0.5 * compute_max_lr(squares[0], 1, 0, constants))
    weights, rng, passed = list(model.parameters()), torch.Generator().manual_seed(3), []
    start = model.criterion(model(x), y).item()
    for _ in range(10):
        whole = torch.autograd.grad(model.criterion(model(x), y), weights)
        passed.append(sum(slope.square().sum().item() for slope in whole))
        rows = torch.randperm(len(y), generator=rng)[:32]
        slopes = torch.autograd.grad(model.criterion(model(x[rows]), y[rows]), weights)
        for weight, slope in zip(weights, slopes, strict=True):
            weight.data -= eta * slope
    change = model.criterion(model(x), y).item() - start
    assert change <= compute_round_change(passed, eta, 0, constants) + 0.05  # in expectation: this is one draw
    assert change < 0
