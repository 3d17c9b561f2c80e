"""DFPL's time model against ALGORITHMS §12.2, exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.budget import compute_alpha, compute_beta, compute_max_rounds, compute_plan
from ml.errors import BudgetError

# beta, R, t_sum - R*beta, E for alpha 1 to 4, E*alpha*R; t_sum = 100
TABLE = [
    (4, 6, 76, (12, 6, 4, 3), (72, 72, 72, 72)),
    (4, 5, 80, (16, 8, 5, 4), (80, 80, 75, 80)),
    (4, 4, 84, (21, 10, 7, 5), (84, 80, 84, 80)),
    (5, 6, 70, (11, 5, 3, 2), (66, 60, 54, 48)),
    (5, 5, 75, (15, 7, 5, 3), (75, 70, 75, 60)),
    (6, 6, 64, (10, 5, 3, 2), (60, 60, 54, 48)),
    (6, 5, 70, (14, 7, 4, 3), (70, 70, 60, 60)),
    (6, 4, 76, (19, 9, 6, 4), (76, 72, 72, 64)),
    (7, 6, 58, (9, 4, 3, 2), (54, 48, 54, 48)),
    (7, 5, 65, (13, 6, 4, 3), (65, 60, 60, 60)),
    (7, 4, 72, (18, 9, 6, 4), (72, 72, 72, 64)),
]


@pytest.mark.parametrize(("beta", "rounds", "available", "iterations", "used"), TABLE)
def test_the_papers_table(
    beta: float, rounds: int, available: float, iterations: tuple[int, ...], used: tuple[float, ...]
) -> None:
    plans = [compute_plan(100, rounds, alpha, beta) for alpha in (1, 2, 3, 4)]
    assert tuple(plan.local_iterations for plan in plans) == iterations
    assert tuple(plan.used_s for plan in plans) == used
    assert {plan.available_s for plan in plans} == {available}


def test_the_papers_alpha_and_beta() -> None:
    assert compute_alpha(32, 1e6, 32e6) == 1.0
    assert compute_beta(20, 4e9, 20, 1e9) == 4.0


def test_a_quotient_that_is_whole_in_decimals_is_not_floored_away() -> None:
    assert math.floor((0.9 / 3) / 0.1) == 2
    assert compute_plan(0.9, 3, 0.1, 0).local_iterations == 3
    assert compute_plan(1.1, 1, 0.1, 0.4).local_iterations == 7


@settings(deadline=None)
@given(
    st.decimals("0.01", "1000", places=2),
    st.integers(1, 50),
    st.decimals("0.01", "10", places=2),
    st.decimals("0", "10", places=2),
)
def test_the_plan_fills_the_budget_and_never_exceeds_it(
    budget: object, rounds: int, alpha: object, beta: object
) -> None:
    exact_budget, exact_alpha, exact_beta = (Fraction(str(x)) for x in (budget, alpha, beta))
    per_round = exact_budget / rounds - exact_beta
    args = (float(exact_budget), rounds, float(exact_alpha), float(exact_beta))
    if per_round < exact_alpha:
        with pytest.raises(BudgetError, match="at least one local iteration"):
            compute_plan(*args)
        return
    iterations = compute_plan(*args).local_iterations
    assert iterations * exact_alpha <= per_round < (iterations + 1) * exact_alpha


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ((0, 5, 1, 1), "budget_s"),
        ((100, 0, 1, 1), "rounds"),
        ((100, 5, 0, 1), "alpha_s"),
        ((100, 5, 1, -1), "beta_s"),
        ((math.inf, 5, 1, 1), "budget_s"),
        ((100, 5, math.nan, 1), "alpha_s"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(args: tuple[float, int, float, float], name: str) -> None:
    with pytest.raises(BudgetError, match=name):
        compute_plan(*args)


def test_mining_that_takes_the_whole_round_leaves_no_plan() -> None:
    with pytest.raises(BudgetError, match="leave -5 s of training a round"):
        compute_plan(100, 4, 1, 30)


@settings(deadline=None)
@given(st.decimals("0.01", "1000", places=2), st.decimals("0.01", "10", places=2), st.decimals("0", "10", places=2))
def test_one_round_more_than_the_most_has_no_plan(budget: object, alpha: object, beta: object) -> None:
    budget_s, alpha_s, beta_s = (float(str(x)) for x in (budget, alpha, beta))
    most = compute_max_rounds(budget_s, alpha_s, beta_s)
    if most:
        assert compute_plan(budget_s, most, alpha_s, beta_s).local_iterations >= 1
    with pytest.raises(BudgetError):
        compute_plan(budget_s, most + 1, alpha_s, beta_s)
