"""FedEDS's theorem 1, Eq. (13) (Li et al., *Efficient Federated Learning with Encrypted Data Sharing for
Data-Heterogeneous Edge Devices*): how small the gradients of FedAvg become, once annealing has ended.

    L       smoothness: how much a client's gradient changes along the weights, at most
    sigma   the spread of a mini-batch's gradient about that of all samples
    beta2, kappa2   dissimilarity: sum_k p_k ||grad L_k||^2 <= beta2 ||grad L_G||^2 + kappa2, beta2 at least 1
    p_k     the shares of all samples that clients have
    E, T    updates of a client in a round, and rounds

    (13) mean over t of E||grad L_G||^2  <=  4 gap / (E eta T) + 4 eta L sigma^2 sum_k p_k^2
                                             + 3 (E - 1) eta^2 L^2 sigma^2 + 6 E (E - 1) eta^2 L^2 kappa2

The statement and its constants are right. E is of *updates*, epochs * ceil(n_k / batch): the paper calls it that, but
sets it to 1, as it does epochs, and of one update the bound would say nothing of skew.

It begins where annealing has ended, at the paper's T_beta, from where on one fixed loss is trained by (Eqs. (8) to (10)
leave nothing of sharing then): of what sharing brings it says nothing. It is of plain SGD, and of clients that make as
many updates each; momentum, FedProx, FedNova and unequal clients are not covered. By the largest E of unequal clients
it is a stand-in, and no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ml.bounds.checks import check
from ml.errors import BoundError
from support.theory.checks import check_at_least

MAX_ERROR = 1e-9  # allowed error of the sum of shares


def compute_max_lr(updates: int, smoothness: float, beta2: float) -> float:
    """Returns the highest learning rate that the bound holds for."""
    num, beta2 = check_at_least("E", updates, 1), check_at_least("beta2", beta2, 1)
    skew = 2 * num * (num - 1) * (2 * beta2 + 1)
    return min(1 / (2 * num), 1 / math.sqrt(skew) if skew else math.inf) / check("L", smoothness)


def compute_mean_square(
    gap: float,
    rounds: int,
    updates: int,
    lr: float,
    smoothness: float,
    sigma: float,
    beta2: float,
    kappa2: float,
    shares: Sequence[float],
) -> float:
    """Bounds from above the mean, over the rounds, of the squared length of the whole loss's gradient, where that loss
    is `gap` above its least at first; the least of these squares is no larger. Raises BoundError where lr is above
    `compute_max_lr`."""
    limit, num, lr = compute_max_lr(updates, smoothness, beta2), updates, check("eta", lr)
    if lr > limit:
        raise BoundError(f"eta: expected {limit:g} at most, got {lr:g}")
    weights = [check("share", share, zero=True) for share in shares]
    if abs(math.fsum(weights) - 1) > MAX_ERROR:
        raise BoundError(f"shares: expected a sum of 1, got {math.fsum(weights):g}")
    gap, rounds_ = check("gap", gap, zero=True), check_at_least("T", rounds, 1)
    noise, kappa2 = check("sigma", sigma, zero=True) ** 2, check("kappa2", kappa2, zero=True)
    return (
        4 * gap / (num * lr * rounds_)
        + 4 * lr * smoothness * noise * math.fsum(weight**2 for weight in weights)
        + 3 * (num - 1) * lr**2 * smoothness**2 * noise
        + 6 * num * (num - 1) * lr**2 * smoothness**2 * kappa2
    )
