"""DFPL's time model: training against mining (ALGORITHMS §2.4).

    Eq. (8)   alpha = |D| * rho / f           seconds per local iteration
    Eq. (9)   beta  = mu * tau / (K * f)      expected seconds per block
    Eq. (11)  E     = floor((t_sum / R - beta) / alpha)

The floor is computed from the decimal numbers a person wrote, in exact fractions: (0.9 s / 3) / 0.1 s is 3 iterations,
while in floating point it is 2.9999999999999996 and would be 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ml.errors import BudgetError


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for a time budget. The paper's tables print `available_s`; `used_s` is the time that E iterations
    take."""

    local_iterations: int  # E, per round
    available_s: float  # t_sum - R * beta
    used_s: float  # E * alpha * R


def compute_alpha(num_samples: int, cycles_per_sample: float, cycles_per_s: float) -> float:
    """Computes the seconds per local iteration, Eq. (8). Raises BudgetError."""
    samples = _read("num_samples", num_samples)
    return float(samples * _read("cycles_per_sample", cycles_per_sample) / _read("cycles_per_s", cycles_per_s))


def compute_beta(difficulty: float, cycles_per_difficulty: float, num_clients: int, cycles_per_s: float) -> float:
    """Computes the expected seconds per block when all clients mine, Eq. (9). Raises BudgetError."""
    cycles = _read("difficulty", difficulty) * _read("cycles_per_difficulty", cycles_per_difficulty)
    return float(cycles / (_read("num_clients", num_clients) * _read("cycles_per_s", cycles_per_s)))


def compute_plan(budget_s: float, rounds: int, alpha_s: float, beta_s: float) -> Plan:
    """Computes the local iterations that fit `rounds` rounds into `budget_s`, Eq. (11).

    Raises BudgetError when not even one fits, or when a number is not positive and finite (`beta_s` may be 0).
    """
    budget, num_rounds, alpha = _read("budget_s", budget_s), _read("rounds", rounds), _read("alpha_s", alpha_s)
    beta = _read("beta_s", beta_s, zero=True)
    iterations = math.floor((budget / num_rounds - beta) / alpha)  # Eq. (11)
    if iterations < 1:
        what = f"{budget_s:g} s for {rounds} round{'s' if rounds != 1 else ''}"
        raise BudgetError(
            f"{what} leave {float(budget / num_rounds - beta):g} s of training a round:"
            f" expected at least one local iteration of {alpha_s:g} s"
        )
    return Plan(iterations, float(budget - num_rounds * beta), float(iterations * alpha * num_rounds))


def compute_max_rounds(budget_s: float, alpha_s: float, beta_s: float) -> int:
    """Computes the most rounds that leave each a local iteration: the largest R with E >= 1, 0 when there is none.

    Raises BudgetError for a number that is not positive and finite (`beta_s` may be 0).
    """
    round_s = _read("alpha_s", alpha_s) + _read("beta_s", beta_s, zero=True)
    return math.floor(_read("budget_s", budget_s) / round_s)


def _read(name: str, value: float, *, zero: bool = False) -> Fraction:
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise BudgetError(f"{name}: expected a finite number {'of at least' if zero else 'above'} 0, got {value}")
    return Fraction(str(value))  # the decimal that was written, not its nearest binary fraction
