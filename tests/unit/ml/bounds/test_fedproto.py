"""FedProto's bounds, with the arithmetic written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ml.bounds.fedproto import (
    Constants,
    compute_limits,
    compute_max_lambda,
    compute_max_lr,
    compute_round_change,
    compute_rounds,
)
from ml.errors import BoundError

HAND = Constants(l1=2, l2=3, sigma=4, g=5)


def test_a_rounds_change_is_descent_noise_and_moved_prototypes() -> None:
    # eta 0.1, lambda 0.01, E 3, squares 100 + 80 + 60 = 240:
    #   descent      (0.1 - 2 * 0.01 / 2) * 240 = 0.09 * 240      = 21.6
    #   noise        2 * 3 * 0.01 / 2 * 16      = 0.03 * 16       =  0.48
    #   prototypes   0.01 * 3 * 0.1 * 3 * 5                       =  0.045
    change = compute_round_change([100, 80, 60], 0.1, 0.01, HAND)
    assert change == pytest.approx(-21.6 + 0.48 + 0.045)
    assert compute_round_change([100, 80, 60], 0.1, 0, HAND) == pytest.approx(-21.6 + 0.48)


def test_a_rate_is_low_enough_as_far_as_the_gradients_outweigh_the_pull() -> None:
    # E 3, lambda 1: the pull is 3 * 3 * 5 = 45; after two iterations 180: 2 * (180 - 45) / (2 * (180 + 3 * 16))
    assert compute_max_lr(180, 3, 1, HAND) == pytest.approx(2 * 135 / (2 * 228))
    assert compute_max_lr(240, 3, 1, HAND) == pytest.approx(2 * 195 / (2 * 288))
    assert compute_max_lr(40, 3, 1, HAND) == 0  # 40 is less than the pull of 45


def test_lambda_is_low_enough_as_long_as_the_first_gradient_outweighs_the_pull() -> None:
    assert compute_max_lambda(90, 3, HAND) == pytest.approx(90 / (3 * 3 * 5))
    assert compute_max_lr(90, 3, compute_max_lambda(90, 3, HAND), HAND) == 0  # there no rate is left
    assert compute_max_lambda(90, 3, Constants(2, 0, 4, 5)) == math.inf


def test_at_the_limit_of_the_rate_a_rounds_change_is_none() -> None:
    squares = [100.0, 80.0, 60.0]
    eta = compute_max_lr(sum(squares), 3, 1, HAND)
    assert compute_round_change(squares, eta, 1, HAND) == pytest.approx(0, abs=1e-9)
    assert compute_round_change(squares, 0.9 * eta, 1, HAND) < 0 < compute_round_change(squares, 1.1 * eta, 1, HAND)


def test_rounds_grow_as_the_goal_comes_near_what_noise_and_pull_leave() -> None:
    # gap 6, epsilon 20, E 3, eta 0.1, lambda 0.5:
    #   20 * (0.2 - 2 * 0.01) - 0.1 * (2 * 0.1 * 16 + 2 * 0.5 * 3 * 5) = 3.6 - 0.1 * 18.2 = 1.78
    assert compute_rounds(6, 20, 3, 0.1, 0.5, HAND) == pytest.approx(2 * 6 / (3 * 1.78))
    assert compute_rounds(6, 40, 3, 0.1, 0.5, HAND) == pytest.approx(12 / (3 * (40 * 0.18 - 1.82)))
    # eta below 2 * (20 - 0.5 * 15) / (2 * (20 + 16)), lambda below 20 / 15
    assert compute_limits(20, 0.5, HAND) == pytest.approx((25 / 72, 4 / 3))
    assert compute_rounds(6, 20, 3, 0.999 * 25 / 72, 0.5, HAND) > 400
    for eta, lambda_ in ((25 / 72, 0.5), (0.001, 4 / 3)):
        with pytest.raises(BoundError, match="no number of rounds comes below 20"):
            compute_rounds(6, 20, 3, eta, lambda_, HAND)


@pytest.mark.parametrize(("name", "value"), [("l1", 0), ("l2", -1), ("sigma", math.nan), ("g", math.inf)])
def test_constants_that_are_none_are_refused(name: str, value: float) -> None:
    given = {"l1": 1.0, "l2": 1.0, "sigma": 1.0, "g": 1.0, name: value}
    with pytest.raises(BoundError, match=f"{name}: expected a finite number"):
        Constants(**given)
    with pytest.raises(BoundError, match="eta: expected a finite number above 0"):
        compute_round_change([1], 0, 1, HAND)


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda: compute_rounds(6, 20, 0, 0.1, 0.5, HAND), "E: expected a finite number above 0, got 0"),
        (lambda: compute_rounds(6, 20, 3, -0.1, 0.5, HAND), "eta: expected a finite number above 0, got -0.1"),
        (lambda: compute_rounds(6, 20, 3, 0.1, -1, HAND), "lambda: expected a finite number of at least 0, got -1"),
        (lambda: compute_limits(20, -1, HAND), "lambda: expected"),
        (lambda: compute_limits(0, 1, Constants(1, 1, 0, 1)), "epsilon: expected"),
        (lambda: compute_max_lr(0, 3, 1, Constants(1, 1, 0, 1)), "squares and sigma: expected a finite number above 0"),
        (lambda: compute_max_lr(math.nan, 3, 1, HAND), "squares: expected"),
        (lambda: compute_max_lr(1, 0, 1, HAND), "E: expected"),
        (lambda: compute_max_lambda(1, 0, HAND), "E: expected"),
        (lambda: compute_max_lambda(math.nan, 1, HAND), "square: expected"),
    ],
)
def test_numbers_that_no_round_has_are_refused(compute: Callable[[], object], said: str) -> None:
    with pytest.raises(BoundError, match=said):
        compute()


def test_the_bound_holds_where_everything_is_known() -> None:
    """A loss of which all constants are known: x^2 * L1 / 2 + lambda * |x - P|, without noise, with the prototype P
    moved after the round as far as the owner moved."""
    l1, lambda_, eta, x, p = 0.5, 0.2, 0.3, 4.0, 0.0

    def compute_loss(x: float, p: float) -> float:
        return l1 * x * x / 2 + lambda_ * abs(x - p)

    before, squares, start = compute_loss(x, p), [], x
    for _ in range(5):
        gradient = l1 * x + lambda_ * math.copysign(1, x - p)
        squares.append(gradient**2)
        x -= eta * gradient
    after = compute_loss(x, p - (start - x))  # away from it: the worst that owners may do
    constants = Constants(l1=l1, l2=1, sigma=0, g=max(map(math.sqrt, squares)))
    assert after - before <= compute_round_change(squares, eta, lambda_, constants) < 0
