"""UA-PDFL's Eq. (28) (Zhu, Fan, Xie, *UA-PDFL: A Personalized Approach for Decentralized Federated Learning*): how far
a loss is above its least after R steps of averaged SGD.

    L, mu   smoothness and strong convexity of every client's loss, 0 < mu <= L; this mu is not Eq. (12)'s weight
    sigma   the spread of a gradient over samples
    M       clients, of equal weights and with noise that is independent between them
    rho     1 - mu eta (2 - eta L): what is left of the distance after a step

    E[d_R] <= rho^R d_0 + eta^2 L sigma^2 / (2 M) * (1 - rho^R) / (1 - rho)        d_r = F(w^r) - F(w*)

It is the recursion of Eq. (27) added up, with the decay that its proof gives for any eta below 2 / L. At eta = 1 / L,
of which Eq. (28) is, that leaves sigma^2 / (2 mu M); the printed sigma^2 / (mu M) is true, and twice as large.

The bound is of one strongly convex function of one model. No network is that, and neither skew (the divergence of the
paper's assumption 3) nor who is drawn, dropout, personalised layers or the auxiliary loss enter it: it describes
averaged SGD, and nothing that is UA-PDFL's own.
"""

from __future__ import annotations

import math

from ml.bounds.checks import check
from ml.errors import BoundError
from support.theory.checks import check_at_least


def compute_gap(
    gap: float,
    rounds: int,
    smoothness: float,
    mu: float,
    sigma: float,
    clients: int,
    lr: float | None = None,
    *,
    printed: bool = False,
) -> float:
    """Bounds how far the expected loss is above its least after the rounds, from a `gap` at first; `lr` is by default 1
    / L. `printed` holds for that rate alone, with twice the remaining noise."""
    decay, floor = _compute_decay_and_floor(smoothness, mu, sigma, clients, lr)
    gap, left = check("gap", gap, zero=True), math.pow(decay, check_at_least("R", rounds, 0))
    if not printed:
        return left * gap + floor * (1 - left)
    if lr is not None and not math.isclose(lr, 1 / smoothness, rel_tol=1e-12):
        raise BoundError(f"eta: expected 1 / L = {1 / smoothness:g}, of which Eq. (28) is, got {lr:g}")
    return left * gap + 2 * floor


def compute_rounds(
    gap: float, epsilon: float, smoothness: float, mu: float, sigma: float, clients: int, lr: float | None = None
) -> int:
    """Computes the least number of rounds after which the bound is no more than `epsilon`. Raises BoundError where the
    noise keeps it above that."""
    decay, floor = _compute_decay_and_floor(smoothness, mu, sigma, clients, lr)
    gap, epsilon = check("gap", gap, zero=True), check("epsilon", epsilon)
    if gap <= epsilon:
        return 0
    if epsilon <= floor:
        raise BoundError(f"no number of rounds comes to {epsilon:g}: noise leaves {floor:g}")
    return math.ceil(math.log((epsilon - floor) / (gap - floor)) / math.log(decay)) if decay else 1


def _compute_decay_and_floor(
    smoothness: float, mu: float, sigma: float, clients: int, lr: float | None
) -> tuple[float, float]:
    """Computes rho, and the bound that noise leaves after any number of rounds."""
    noise = check("sigma", sigma, zero=True) ** 2 / check_at_least("M", clients, 1)
    if check("mu", mu) > check("L", smoothness):
        raise BoundError(f"mu: expected at most L = {smoothness:g}, got {mu:g}")
    eta = 1 / smoothness if lr is None else check("eta", lr)
    if eta * smoothness >= 2:
        raise BoundError(f"eta: expected below 2 / L = {2 / smoothness:g}, got {eta:g}")
    decay = 1 - mu / smoothness if lr is None else 1 - mu * eta * (2 - eta * smoothness)
    return decay, eta * smoothness * noise / (2 * mu * (2 - eta * smoothness))
