"""DFPL's theorem 1 and corollaries 1 and 2 (Zhang et al., *DFPL: Decentralized Federated Prototype Learning Across
Heterogeneous Data Distributions*): FedProto's bounds where a time budget says how many local iterations a round has.

    E_R  = (t_sum - beta R) / (alpha R)             local iterations of each of R rounds; what runs is its floor
    j    = (L1 eta^2 / 2 - eta) Q + (L1 eta^2 sigma^2 / 2 + lambda L2 eta G) E_R
                                                    theorem 1: what a round adds to the loss at most
    s(e) = sum of the squares up to iteration e     Q = s(E)

The assumptions are FedProto's, with two that the paper does not state: plain SGD, without momentum and weight decay,
and that a class has the same owners in two consecutive rounds. The distance of Eq. (4) has no gradient where a
prototype equals the common one, so strictly no L1 is large enough there. All constants are of the loss with its pull.

By default E is rounded down, as in a run. `printed=True` is as in the paper, which does not round here, although its
Eq. (11) does. Two of its signs are wrong: corollary 1 prints t_sum + beta R, where its Eq. (23) has the minus, and
corollary 2 prints R > where Eq. (29) has R <: each round costs beta seconds of training.

None of these counts the benefit of an exchange: it enters as harm, at most lambda L2 eta G for each iteration. Where
all squares are alike, one round is therefore the best by theorem 1. A best number of rounds between the ends comes only
from squares that fall within a round (`compute_totals`, which is ours), and does not predict the paper's tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ml.bounds.checks import check
from ml.bounds.fedproto import Constants, compute_change, compute_max_lr, compute_rounds
from ml.budget import compute_max_rounds, compute_plan
from ml.errors import BoundError


@dataclass(frozen=True, slots=True)
class Budget:
    """A time budget in seconds: for all rounds (t_sum), for a local iteration (alpha) and for a block (beta, which may
    be 0)."""

    budget_s: float
    alpha_s: float
    beta_s: float

    def __post_init__(self) -> None:
        check("t_sum", self.budget_s)
        check("alpha", self.alpha_s)
        check("beta", self.beta_s, zero=True)

    def compute_iterations(self, rounds: int) -> float:
        """Computes E_R, not rounded down. Raises BoundError where blocks alone take the budget."""
        rounds_s = check("R", rounds) * self.beta_s
        return check("(t_sum - beta R) / (alpha R)", (self.budget_s - rounds_s) / (self.alpha_s * rounds))

    def count_iterations(self, rounds: int) -> int:
        """Computes E, rounded down, Eq. (11). Raises BudgetError where not one fits."""
        return compute_plan(self.budget_s, rounds, self.alpha_s, self.beta_s).local_iterations

    @property
    def max_rounds(self) -> int:
        """The most rounds that have an iteration each."""
        return compute_max_rounds(self.budget_s, self.alpha_s, self.beta_s)


def sum_squares(squares: Sequence[float], iterations: int) -> float:
    """Computes Q(E), of squares measured at the iterations of a round: where E is more than were measured, the last one
    is repeated. Raises BoundError where none was measured."""
    if not squares:
        raise BoundError("squares: expected at least one")
    return sum(squares[:iterations]) + max(iterations - len(squares), 0) * squares[-1]


def compute_lr_limits(
    squares: Sequence[float],
    rounds: int,
    lambda_: float,
    constants: Constants,
    budget: Budget,
    *,
    printed: bool = False,
) -> tuple[float, float]:
    """Returns two limits that the learning rate has to be below for the loss to fall: that of a round's first
    iteration, the least of all iterations', and that of a rate which stays the same in the whole round. Corollary 1.

    `printed` has lambda L2 G (t_sum + beta R) for lambda L2 G (t_sum - beta R): stricter, and not what is proved.
    """
    num: float = budget.count_iterations(rounds)
    first, total = sum_squares(squares, 1), sum_squares(squares, budget.count_iterations(rounds))
    if printed:
        num = budget.compute_iterations(rounds)
        lambda_ *= (budget.budget_s + budget.beta_s * rounds) / (budget.budget_s - budget.beta_s * rounds)
    return compute_max_lr(first, num, lambda_, constants), compute_max_lr(total, num, lambda_, constants)


def compute_mean_square(gap: float, iterations: float, eta: float, lambda_: float, constants: Constants) -> float:
    """Bounds the mean of the squares over all R E = `iterations` of a run from above, where the loss is `gap` above its
    least at first. Corollary 2. Raises BoundError where eta is not below 2 / L1, and there is no such bound."""
    l1, l2, sigma, g = constants.l1, constants.l2, constants.sigma, constants.g
    num, eta = check("R E", iterations), check("eta", eta)
    lambda_, descent = check("lambda", lambda_, zero=True), 2 * eta - l1 * eta**2
    if descent <= 0:
        raise BoundError(f"eta: expected below 2 / L1 = {2 / l1:g}, got {eta:g}")
    risen = (l1 * sigma**2 * eta**2 + 2 * lambda_ * l2 * g * eta) * num
    return (2 * check("gap", gap, zero=True) + risen) / (descent * num)


def compute_max_rounds_to(
    gap: float, chi: float, eta: float, lambda_: float, constants: Constants, budget: Budget
) -> float:
    """Computes R_max, the bound that the number of rounds has to be below for the mean of all squares to be below chi,
    with E not rounded down. Corollary 2, which prints that R has to be above it.

    Below 1 no number of rounds is enough; it is infinity where blocks cost nothing and the budget suffices, and minus
    infinity where it does not. Raises BoundError as `compute_rounds` does.
    """
    spare_s = budget.budget_s - budget.alpha_s * compute_rounds(gap, chi, 1, eta, lambda_, constants)
    if budget.beta_s:
        return spare_s / budget.beta_s
    return math.inf if spare_s > 0 else -math.inf


def list_rounds(
    gap: float,
    chi: float,
    eta: float,
    lambda_: float,
    constants: Constants,
    budget: Budget,
    rounds: Iterable[int] | None = None,
) -> list[int]:
    """Lists those of `rounds`, by default of all that the budget has an iteration for, after which the mean of all
    squares is below chi: R E, E rounded down, is enough iterations. Corollary 2. Raises BoundError as
    `compute_rounds`."""
    least = compute_rounds(gap, chi, 1, eta, lambda_, constants)
    numbers = range(1, budget.max_rounds + 1) if rounds is None else rounds
    return [number for number in numbers if number * budget.count_iterations(number) > least]


def compute_totals(
    squares: Sequence[float],
    eta: float,
    lambda_: float,
    constants: Constants,
    budget: Budget,
    rounds: Iterable[int] | None = None,
) -> dict[int, float]:
    """Bounds what a run of R rounds adds to the loss from above, by R: theorem 1 for each round, all of which begin
    with the `squares`. Of `rounds`, by default of all that the budget has an iteration for."""
    numbers = range(1, budget.max_rounds + 1) if rounds is None else rounds
    totals = {}
    for number in numbers:
        iterations = budget.count_iterations(number)
        change = compute_change(sum_squares(squares, iterations), iterations, eta, lambda_, constants)
        totals[number] = number * change
    return totals


def find_best_rounds(totals: Mapping[int, float]) -> tuple[int, float]:
    """Returns the number of rounds with the least total of `compute_totals`, the smaller of equals, and that total.
    Raises BoundError where there is none."""
    if not totals:
        raise BoundError("rounds: expected a number of rounds that leaves each a local iteration")
    best = min(totals, key=lambda number: (totals[number], number))
    return best, totals[best]
