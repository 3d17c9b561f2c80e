"""MP-FedCL's lemmas, theorems 1 and 2 and corollary 1 (Qiao et al., *MP-FedCL: Multiprototype Federated Contrastive
Learning for Edge Intelligence*, appendix A): what one gradient step and one exchange of prototypes do to the loss.

    L1      smoothness: how much a client's gradient changes along the weights, at most
    delta   dissimilarity, at least 1: the mean over clients of ||grad L_i||^2 is at most delta^2 ||grad L||^2
    G       the length of a mini-batch's gradient
    L2      how much the embedding (with `normalize` the one of unit length) changes along the encoder's weights
    tau     temperature of the contrast
    S       drift: what the new prototypes add to the loss at most, for each unit of eta

The lemmas do not hold as they are printed. Lemma 1 uses the dissimilarity against its direction, so that for delta
above 1 the loss seems to fall delta^2 times as fast. Lemma 2 takes a quotient of sums for the sum of quotients: its
factor C - 1 is false for two classes, and loose above three. What holds, and is computed by default:

    log( sum_a exp(b_a) / sum_a exp(a_a) )  <=  max_a (b_a - a_a)      so S = 2 weight ||v|| L2 G / tau
    E[L after the round]  <=  L before - (eta - L1 eta^2 delta^2 / 2) ||grad L||^2 + eta S

For delta = 1 and three classes both are the same. A floor remains whatever the number of rounds: the mean square
cannot be bounded below S / (1 - L1 eta delta^2 / 2), which does not vanish with eta. At the paper's tau of 0.07 S is
28.6 L2 G (printed, with ten classes: 128.6), so that the bound says nothing of real networks. That centres of k-means
move no more than the embeddings do is assumed; it holds of `cluster: mean`, and not where a sample changes its cluster.
"""

from __future__ import annotations

from ml.bounds.checks import check
from ml.errors import BoundError
from support.theory.checks import check_at_least


def compute_drift(
    num_classes: int,
    l2: float,
    g: float,
    tau: float,
    weight: float = 1.0,
    length: float = 1.0,
    *,
    printed: bool = False,
) -> float:
    """Computes S, for the contrast's `weight` in Eq. (12) and embeddings no longer than `length`. Lemma 2.

    It holds for the mean over samples (`reduction: mean`). `printed` has C - 1 in place of 2.
    """
    moved = check("L2", l2, zero=True) * check("G", g, zero=True) / check("tau", tau)
    scale = check("weight", weight, zero=True) * check("length", length, zero=True)
    factor = int(check_at_least("classes", num_classes, 2)) - 1 if printed else 2
    return scale * moved * factor


def compute_round_change(
    eta: float, square: float, l1: float, delta: float, drift: float, *, printed: bool = False
) -> float:
    """Computes the most that the loss is expected to rise over a round (below 0 it falls), where `square` is that of
    the gradient at first. Theorem 1."""
    fall = _compute_fall(eta, l1, delta, printed=printed)
    return -fall * check("square", square, zero=True) + eta * check("S", drift, zero=True)


def compute_max_lr(square: float, l1: float, delta: float, drift: float, *, printed: bool = False) -> float:
    """Computes the learning rate below which the loss falls in a round that begins with `square` (corollary 1), or
    below which some number of rounds brings the mean under it (theorem 2); 0 where no rate is low enough."""
    square, drift = check("square", square), check("S", drift, zero=True)
    spread = check_at_least("delta", delta, 1) ** 2
    l1 = check("L1", l1)
    limit = 2 / l1 * (1 - drift / (spread * square)) if printed else 2 / (l1 * spread) * (1 - drift / square)
    return max(limit, 0.0)


def compute_rounds(
    gap: float, epsilon: float, eta: float, l1: float, delta: float, drift: float, *, printed: bool = False
) -> float:
    """Computes the rounds after which the mean of all squares is at most `epsilon`, where the loss is `gap` above its
    least at first. Theorem 2. Raises BoundError where eta is not below `compute_max_lr`, as there is no such number
    then."""
    gained = -compute_round_change(eta, check("epsilon", epsilon), l1, delta, drift, printed=printed)
    if gained <= 0:
        limit = compute_max_lr(epsilon, l1, delta, drift, printed=printed)
        raise BoundError(
            f"no number of rounds comes to {epsilon:g}: expected eta below {limit:g}, got {eta:g}"
            if limit
            else f"no number of rounds comes to {epsilon:g}, whatever eta: the drift S is {drift:g}"
        )
    return check("gap", gap, zero=True) / gained


def _compute_fall(eta: float, l1: float, delta: float, *, printed: bool) -> float:
    """Computes how much a step lowers the loss for each unit of the square. Lemma 1."""
    eta, l1, spread = check("eta", eta), check("L1", l1), check_at_least("delta", delta, 1) ** 2
    return (eta - l1 * eta**2 / 2) * spread if printed else eta - l1 * eta**2 * spread / 2
