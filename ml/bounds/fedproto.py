"""Bounds on the change of the loss by a round of learning with prototypes: FedProto's theorems 1 and 2 and corollary 1
(Tan et al., *FedProto: Federated Prototype Learning across Heterogeneous Clients*, 2022).

They are for one client whose model nobody averages, and whose loss is cross-entropy and lambda times the distance of
its prototypes from the common ones. DFPL's Eqs. (3) and (4) are such a loss, too: the proof needs that moving the
common prototypes by d changes the loss by at most lambda * d, and that they move by no more than their owners' do.

    L1      smoothness: how much the loss's gradient changes along the weights, at most
    L2      how much the embedding changes along the weights, at most
    sigma   the spread of a mini-batch's gradient about that of all samples
    G       the length of a mini-batch's gradient
    E, eta, lambda   local iterations of a round, learning rate, weight of the prototypes

Gradients are passed as the squares of their lengths. All functions raise BoundError for numbers that cannot be such.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ml.bounds.checks import check
from ml.errors import BoundError


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants that the theorems assume: L1 above 0, the others at least 0. Raises BoundError for other values."""

    l1: float
    l2: float
    sigma: float
    g: float

    def __post_init__(self) -> None:
        for name in ("l1", "l2", "sigma", "g"):
            check(name, getattr(self, name), zero=name != "l1")


def compute_round_change(squares: Sequence[float], eta: float, lambda_: float, constants: Constants) -> float:
    """Computes the most that a client's loss is expected to rise over a round (to fall, below 0), including the change
    of prototypes; `squares` are of its E local iterations. Theorem 1."""
    return compute_change(sum(squares), len(squares), eta, lambda_, constants)


def compute_change(total: float, iterations: float, eta: float, lambda_: float, constants: Constants) -> float:
    """Computes the change of `compute_round_change` by the sum of the squares and by E, which need not be whole: DFPL's
    E follows from a time budget."""
    l1, l2, sigma, g = constants.l1, constants.l2, constants.sigma, constants.g
    eta, lambda_, num = check("eta", eta), check("lambda", lambda_, zero=True), check("E", iterations)
    descent = (eta - l1 * eta**2 / 2) * check("squares", total, zero=True)
    return -descent + num * (l1 * eta**2 / 2 * sigma**2 + lambda_ * l2 * eta * g)


def compute_max_lr(total: float, iterations: float, lambda_: float, constants: Constants) -> float:
    """Computes the bound that the learning rate of an iteration has to be below, of E = `iterations` in the round, for
    the loss to fall; `total` is the sum of all squares up to it. Returns 0 where no rate is low enough. Corollary 1."""
    num, lambda_ = check("E", iterations), check("lambda", lambda_, zero=True)
    seen = check("squares and sigma", check("squares", total, zero=True) + num * constants.sigma**2)
    pull = lambda_ * constants.l2 * num * constants.g
    return max(2 * (total - pull) / (constants.l1 * seen), 0.0)


def compute_max_lambda(square: float, iterations: int, constants: Constants) -> float:
    """Computes the bound that lambda has to be below for the loss to fall; `square` is that of a round's first
    iteration. Returns infinity where the prototypes cannot move. Corollary 1."""
    moved = constants.l2 * check("E", iterations) * constants.g
    return check("square", square, zero=True) / moved if moved else math.inf


def compute_rounds(
    gap: float, epsilon: float, iterations: int, eta: float, lambda_: float, constants: Constants
) -> float:
    """Computes the number of rounds T after which the mean of all squares is below `epsilon`, where the loss is at
    first `gap` above its least value. Theorem 2. Raises BoundError where eta or lambda is above `compute_limits`, and
    there is no T."""
    l1, l2, sigma, g = constants.l1, constants.l2, constants.sigma, constants.g
    gap, epsilon, num = check("gap", gap, zero=True), check("epsilon", epsilon), check("E", iterations)
    eta, lambda_ = check("eta", eta), check("lambda", lambda_, zero=True)
    gained = epsilon * (2 * eta - l1 * eta**2) - eta * (l1 * eta * sigma**2 + 2 * lambda_ * l2 * g)
    if gained <= 0:
        max_eta, max_lambda = compute_limits(epsilon, lambda_, constants)
        raise BoundError(
            f"no number of rounds comes below {epsilon:g}: expected lambda below {max_lambda:g} (got {lambda_:g})"
            f" and eta below {max_eta:g} (got {eta:g})"
        )
    return 2 * gap / (num * gained)


def compute_limits(epsilon: float, lambda_: float, constants: Constants) -> tuple[float, float]:
    """Computes the bounds that eta, with this lambda, and lambda have to be below for some number of rounds to suffice
    for `epsilon`. Theorem 2."""
    epsilon, lambda_ = check("epsilon", epsilon), check("lambda", lambda_, zero=True)
    moved = constants.l2 * constants.g
    eta = 2 * (epsilon - lambda_ * moved) / (constants.l1 * (epsilon + constants.sigma**2))
    return max(eta, 0.0), epsilon / moved if moved else math.inf
