"""DFPL's theorem 1 and corollaries under a time budget, with the arithmetic written out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ml.bounds.dfpl import (
    Budget,
    compute_lr_limits,
    compute_max_rounds_to,
    compute_mean_square,
    compute_totals,
    find_best_rounds,
    list_rounds,
    sum_squares,
)
from ml.bounds.fedproto import Constants, compute_change, compute_limits, compute_max_lambda, compute_rounds
from ml.errors import BoundError, BudgetError

HAND = Constants(l1=2, l2=3, sigma=4, g=5)
BUDGET = Budget(100, 2, 4)
GOAL: dict[str, Any] = {"chi": 20, "eta": 0.1, "lambda_": 0.5, "constants": HAND, "budget": BUDGET}


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-9)


def test_a_budget_leaves_iterations() -> None:
    assert BUDGET.compute_iterations(5) == 8  # (100 - 20) / 10
    assert BUDGET.compute_iterations(8) == exactly(68 / 16)
    assert (BUDGET.count_iterations(8), BUDGET.max_rounds) == (4, 16)
    with pytest.raises(BoundError, match="expected a finite number above 0"):
        BUDGET.compute_iterations(25)  # blocks alone take it
    with pytest.raises(BudgetError, match="at least one local iteration"):
        BUDGET.count_iterations(17)
    with pytest.raises(BoundError, match="alpha: expected"):
        Budget(100, 0, 4)


def test_theorem_1_takes_the_iterations_that_a_budget_leaves() -> None:
    # -0.09 * 800 + (0.16 + 0.015) * 8
    assert compute_change(800, BUDGET.compute_iterations(5), 0.1, 0.01, HAND) == exactly(-70.6)


def test_corollary_1_has_a_minus_where_the_paper_prints_a_plus() -> None:
    squares = [100.0] * 8
    first, whole = compute_lr_limits(squares, 5, 0.01, HAND, BUDGET)
    assert whole == exactly(2 * (8000 - 12) / (2 * (8000 + 1280)))
    assert whole == pytest.approx(0.8607758621, abs=1e-10)
    assert first == exactly(2 * (1000 - 12) / (2 * (1000 + 1280)))
    assert first == pytest.approx(0.4333333333, abs=1e-10)
    _, printed = compute_lr_limits(squares, 5, 0.01, HAND, BUDGET, printed=True)
    assert printed == pytest.approx(0.8601293103, abs=1e-10)
    assert compute_max_lambda(100, 8, HAND) == pytest.approx(0.8333333333, abs=1e-10)
    assert compute_change(800, 8, whole, 0.01, HAND) == pytest.approx(0, abs=1e-9)


def test_corollary_2_leaves_fewer_rounds_and_not_more() -> None:
    # D = (0.2 - 0.02) * 20 - 0.1 * (3.2 + 15) = 1.78, and R E has to be above 60 / 1.78
    assert compute_rounds(30, 20, 1, 0.1, 0.5, HAND) == pytest.approx(33.7078652, abs=1e-7)
    most = compute_max_rounds_to(30, **GOAL)
    assert most == pytest.approx(8.1460674157, abs=1e-10)
    at_8, at_9 = (
        compute_mean_square(30, rounds * BUDGET.compute_iterations(rounds), 0.1, 0.5, HAND) for rounds in (8, 9)
    )
    assert at_8 == pytest.approx(19.915, abs=1e-3)
    assert at_9 == pytest.approx(20.528, abs=1e-3)
    assert at_8 < 20 < at_9  # the paper's R > would have 9, and not 8
    assert compute_mean_square(30, (100 - 4 * most) / 2, 0.1, 0.5, HAND) == exactly(20)


def test_whole_iterations_are_enough_in_fewer_rounds() -> None:
    assert list_rounds(30, **GOAL) == [1, 2, 3, 4, 5, 6, 7]  # 8 rounds of 4 iterations are 32
    assert [rounds * BUDGET.count_iterations(rounds) for rounds in range(1, 8)] == [48, 46, 42, 40, 40, 36, 35]
    assert list_rounds(30, **GOAL, rounds=[2, 8, 16]) == [2]


def test_a_budget_may_be_too_small_and_blocks_may_cost_nothing() -> None:
    assert compute_max_rounds_to(100, **GOAL) == pytest.approx(-31.18, abs=1e-2)
    assert list_rounds(100, **GOAL) == []
    free = {**GOAL, "budget": Budget(100, 2, 0)}
    assert compute_max_rounds_to(30, **free) == math.inf
    assert compute_max_rounds_to(100, **free) == -math.inf


def test_no_rounds_are_enough_where_rate_or_lambda_are_above_their_limits() -> None:
    eta, lambda_ = compute_limits(20, 0.5, HAND)
    for given in ({"eta": eta * 1.001}, {"lambda_": lambda_ * 1.001}):
        with pytest.raises(BoundError, match="no number of rounds comes below 20"):
            compute_max_rounds_to(30, **{**GOAL, **given})
        with pytest.raises(BoundError, match="no number of rounds comes below 20"):
            list_rounds(30, **{**GOAL, **given})
    with pytest.raises(BoundError, match="eta: expected below 2 / L1 = 1, got 1"):
        compute_mean_square(30, 32, 1, 0.5, HAND)


def test_squares_that_halve_have_a_best_number_of_rounds_between_the_ends() -> None:
    totals = compute_totals([100 / 2**e for e in range(60)], 0.1, 0.01, HAND, BUDGET)
    first = [-9.6, -27.95, -46.6467, -64.9297, -82.6484375, -100.0125, -115.9375, -129.4]
    last = [-137.025, -152.25, -144.65, -157.8, -114.725, -123.55, -132.375, -141.2]
    assert list(totals.values()) == pytest.approx([*first, *last], abs=1e-4)
    assert totals[6] == exactly(-100.0125)
    assert find_best_rounds(totals) == (12, exactly(-157.8))


def test_squares_that_stay_are_best_used_in_one_round() -> None:
    totals = compute_totals([100], 0.1, 0.01, HAND, BUDGET)
    assert find_best_rounds(totals) == (1, exactly(-423.6))
    assert (totals[4], totals[5], totals[16]) == (exactly(-353), exactly(-353), exactly(-141.2))
    assert find_best_rounds({5: -1.0, 4: -1.0, 6: 0.0}) == (4, -1.0)
    with pytest.raises(BoundError, match="rounds: expected"):
        find_best_rounds({})


def test_the_last_square_goes_on_where_a_round_is_longer_than_what_was_measured() -> None:
    assert sum_squares([4, 2, 1], 2) == 6
    assert sum_squares([4, 2, 1], 5) == 9
    with pytest.raises(BoundError, match="squares: expected at least one"):
        sum_squares([], 1)
