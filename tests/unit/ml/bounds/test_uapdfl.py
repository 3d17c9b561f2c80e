"""UA-PDFL's Eq. (28) as it is printed and as it follows from Eq. (27), with the arithmetic written out."""

from __future__ import annotations

from typing import Any

import pytest

from ml.errors import BoundError
from support.theory.uapdfl import compute_gap, compute_rounds

HAND: dict[str, Any] = {"gap": 6, "smoothness": 2, "mu": 0.5, "sigma": 4, "clients": 10}


def test_noise_leaves_half_of_what_is_printed() -> None:
    # 0.75^5 * 6 = 1.423828125; printed + 16 / (0.5 * 10); corrected + 1.6 * (1 - 0.75^5)
    assert compute_gap(**HAND, rounds=5, printed=True) == pytest.approx(4.623828125, rel=1e-9)
    assert compute_gap(**HAND, rounds=5) == pytest.approx(2.644140625, rel=1e-9)
    assert compute_gap(**HAND, rounds=5, lr=0.5, printed=True) == pytest.approx(4.623828125, rel=1e-9)
    assert compute_gap(**HAND, rounds=10_000) == pytest.approx(1.6, rel=1e-9)
    assert compute_gap(**HAND, rounds=0) == 6


def test_other_rates_have_a_decay_of_their_own() -> None:
    # rho = 1 - 0.05 * 1.8 = 0.91, noise 0.01 * 2 * 16 / 20 = 0.016
    assert compute_gap(**HAND, rounds=5, lr=0.1) == pytest.approx(3.8110316004, abs=1e-10)
    assert compute_gap(**HAND, rounds=10_000, lr=0.1) == pytest.approx(0.1777777778, abs=1e-10)
    with pytest.raises(BoundError, match=r"eta: expected 1 / L = 0.5, of which Eq. \(28\) is, got 0.1"):
        compute_gap(**HAND, rounds=5, lr=0.1, printed=True)


def test_rounds_are_the_least_that_are_enough() -> None:
    rounds = compute_rounds(**HAND, epsilon=2.0)
    assert rounds == 9  # 8.335
    assert compute_gap(**HAND, rounds=9) <= 2 < compute_gap(**HAND, rounds=8)
    assert compute_rounds(**HAND, epsilon=6) == 0
    assert compute_rounds(**HAND | {"mu": 2}, epsilon=0.5) == 1
    with pytest.raises(BoundError, match=r"no number of rounds comes to 1.5: noise leaves 1.6"):
        compute_rounds(**HAND, epsilon=1.5)


def test_the_mean_of_noisy_steps_on_a_quadratic_is_the_bound_itself() -> None:
    """F = mu w^2 / 2 with mu = L: E[w^2] becomes (1 - eta mu)^2 E[w^2] + eta^2 sigma^2 / M, exactly."""
    mu, lr, sigma, clients, square = 2.0, 0.3, 4.0, 10, 6.0
    for _ in range(5):
        square = (1 - lr * mu) ** 2 * square + lr**2 * sigma**2 / clients
    bound = compute_gap(mu * 6 / 2, 5, mu, mu, sigma, clients, lr)
    assert mu * square / 2 == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mu": 3}, "mu: expected at most L = 2, got 3"),
        ({"mu": 0}, "mu: expected a finite number above 0"),
        ({"lr": 1}, "eta: expected below 2 / L = 1, got 1"),
        ({"lr": 0}, "eta: expected a finite number above 0"),
        ({"clients": 0}, "M: expected a finite number of at least 1"),
        ({"rounds": -1}, "R: expected"),
        ({"sigma": -1}, "sigma: expected"),
    ],
    ids=str,
)
def test_numbers_that_no_run_has_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BoundError, match=said):
        compute_gap(**HAND | {"rounds": 5} | given)
