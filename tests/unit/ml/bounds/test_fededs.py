"""FedEDS's theorem 1, with the arithmetic written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ml.errors import BoundError
from support.theory.fededs import compute_max_lr, compute_mean_square

HAND: dict[str, Any] = {
    "gap": 6,
    "rounds": 100,
    "updates": 4,
    "lr": 0.01,
    "smoothness": 5,
    "sigma": 4,
    "beta2": 2,
    "kappa2": 3,
    "shares": [1 / 2, 1 / 4, 1 / 4],
}


def test_the_terms_are_the_papers() -> None:
    # 24 / 4 = 6; 4 * 0.05 * 16 * 0.375 = 1.2; 3 * 3 * 0.0025 * 16 = 0.36; 6 * 12 * 0.0025 * 3 = 0.54
    assert compute_mean_square(**HAND) == pytest.approx(8.1, rel=1e-9)
    assert compute_mean_square(**HAND | {"updates": 1}) == pytest.approx(24 + 1.2, rel=1e-9)
    # as many updates in all: four rounds of one for one of four
    assert compute_mean_square(**HAND | {"updates": 1, "rounds": 400}) == pytest.approx(6 + 1.2, rel=1e-9)
    assert compute_mean_square(**HAND | {"rounds": 25}) == pytest.approx(24 + 1.2 + 0.36 + 0.54, rel=1e-9)


def test_the_rate_is_limited_by_the_updates() -> None:
    assert compute_max_lr(4, 5, 2) == pytest.approx(0.0182574186, abs=1e-10)
    assert compute_max_lr(1, 5, 2) == pytest.approx(0.1, rel=1e-9)
    with pytest.raises(BoundError, match=r"eta: expected 0.0182574 at most, got 0.019"):
        compute_mean_square(**HAND | {"lr": 0.019})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shares": [0.5, 0.4]}, "shares: expected a sum of 1, got 0.9"),
        ({"shares": [1.5, -0.5]}, "share: expected a finite number of at least 0"),
        ({"beta2": 0.9}, "beta2: expected a finite number of at least 1"),
        ({"kappa2": -1}, "kappa2: expected"),
        ({"updates": 0}, "E: expected a finite number of at least 1"),
        ({"rounds": 0}, "T: expected"),
        ({"gap": -1}, "gap: expected"),
        ({"sigma": float("nan")}, "sigma: expected"),
        ({"smoothness": 0}, "L: expected"),
    ],
    ids=str,
)
def test_numbers_that_no_run_has_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BoundError, match=said):
        compute_mean_square(**HAND | given)


@pytest.mark.parametrize("updates", [1, 2, 4, 8])
def test_fedavg_on_quadratics_stays_below_it(updates: int) -> None:
    """Clients' a_k (w - c_k)^2 / 2, without noise. The proof: within a round the drift S from its start obeys
    S <= 2 eta^2 E (E - 1) (L^2 S + ||grad L_k||^2); with 2 eta^2 L^2 E (E - 1) <= 1 / (2 beta2 + 1) its part of
    ||grad L_G||^2 is at most a half, and the descent lemma with eta E L <= 1 / 2 does the rest."""
    rng, rounds = np.random.default_rng(updates), 20
    a, c, p = rng.uniform(0.5, 2, 3), rng.normal(size=3), np.array([0.5, 0.3, 0.2])
    smoothness, beta2 = float(a.max()), float((p * a**2).sum() / (p * a).sum() ** 2) * 2
    lr = compute_max_lr(updates, smoothness, max(beta2, 1.0))
    least = (p * a * c).sum() / (p * a).sum()
    # grad L_k = a_k (w - least) + a_k (least - c_k), and |x + y|^2 <= 2 |x|^2 + 2 |y|^2
    kappa2 = 2 * float((p * (a * (least - c)) ** 2).sum())
    w, squares = 4.0, []
    gap = (p * a * ((w - c) ** 2 - (least - c) ** 2)).sum() / 2
    for _ in range(rounds):
        squares.append(((p * a).sum() * (w - least)) ** 2)
        own = np.full(3, w)
        for _ in range(updates):
            own = own - lr * a * (own - c)
        w = float(p @ own)
    bound = compute_mean_square(gap, rounds, updates, lr, smoothness, 0.0, max(beta2, 1.0), kappa2, p.tolist())
    assert np.mean(squares) <= bound
