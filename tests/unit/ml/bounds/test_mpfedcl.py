"""MP-FedCL's lemmas and theorems as they are printed and as they hold, with the arithmetic written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ml.errors import BoundError
from support.theory.mpfedcl import compute_drift, compute_max_lr, compute_round_change, compute_rounds

L1, L2, G, TAU, DELTA, ETA = 2, 3, 5, 0.5, 1.5, 0.1
PRINTED, CORRECTED = 90.0, 60.0  # S, of four classes
NUMBERS: dict[str, Any] = {"eta": ETA, "square": 100, "l1": L1, "delta": DELTA, "drift": 1}


def test_the_drift_is_of_two_prototypes_and_not_of_all_other_classes() -> None:
    assert compute_drift(4, L2, G, TAU, printed=True) == pytest.approx(PRINTED, rel=1e-9)
    assert compute_drift(4, L2, G, TAU) == pytest.approx(CORRECTED, rel=1e-9)
    assert compute_drift(4, L2, G, TAU, weight=0.5, length=2) == pytest.approx(CORRECTED, rel=1e-9)


def test_a_rounds_change_is_descent_and_drift() -> None:
    # printed: -0.09 * 2.25 * 100 + 0.1 * 90; corrected: -(0.1 - 0.01 * 2.25) * 100 + 0.1 * 60
    assert compute_round_change(ETA, 100, L1, DELTA, PRINTED, printed=True) == pytest.approx(-11.25, rel=1e-9)
    assert compute_round_change(ETA, 100, L1, DELTA, CORRECTED) == pytest.approx(-1.75, rel=1e-9)


def test_the_rate_is_low_enough_up_to_where_a_round_changes_nothing() -> None:
    assert compute_max_lr(100, L1, DELTA, PRINTED, printed=True) == pytest.approx(0.6, rel=1e-9)
    assert compute_max_lr(100, L1, DELTA, CORRECTED) == pytest.approx(0.1777777778, abs=1e-10)
    assert compute_max_lr(50, L1, DELTA, PRINTED, printed=True) == pytest.approx(0.2, rel=1e-9)
    assert compute_max_lr(60, L1, DELTA, CORRECTED) == 0
    for drift, printed in ((PRINTED, True), (CORRECTED, False)):
        limit = compute_max_lr(100, L1, DELTA, drift, printed=printed)
        assert compute_round_change(limit, 100, L1, DELTA, drift, printed=printed) == pytest.approx(0, abs=1e-9)


def test_rounds_to_a_mean_square() -> None:
    assert compute_rounds(6, 100, ETA, L1, DELTA, PRINTED, printed=True) == pytest.approx(0.5333333333, abs=1e-10)
    assert compute_rounds(6, 50, ETA, L1, DELTA, PRINTED, printed=True) == pytest.approx(5.3333333333, abs=1e-10)
    assert compute_rounds(6, 100, ETA, L1, DELTA, CORRECTED) == pytest.approx(3.4285714286, abs=1e-10)
    with pytest.raises(BoundError, match="no number of rounds comes to 40, whatever eta: the drift S is 90"):
        compute_rounds(6, 40, ETA, L1, DELTA, PRINTED, printed=True)
    with pytest.raises(BoundError, match=r"no number of rounds comes to 70: expected eta below 0.0634\d*, got 0.1"):
        compute_rounds(6, 70, ETA, L1, DELTA, CORRECTED)


def test_alike_clients_and_three_classes_have_the_printed_bound() -> None:
    drift = compute_drift(3, L2, G, TAU)
    assert drift == compute_drift(3, L2, G, TAU, printed=True)
    printed, corrected = (
        (
            compute_round_change(ETA, 100, L1, 1, drift, printed=is_printed),
            compute_max_lr(100, L1, 1, drift, printed=is_printed),
            compute_rounds(6, 100, ETA, L1, 1, drift, printed=is_printed),
        )
        for is_printed in (True, False)
    )
    assert printed == pytest.approx(corrected, rel=1e-12)


def compute_contrast(v: np.ndarray, prototypes: np.ndarray, tau: float) -> float:
    """Eq. (11) of one sample of class 0, of one codebook."""
    logits = prototypes @ v / tau
    return float(np.log(np.exp(logits - logits[0]).sum()))


def test_two_classes_rise_by_more_than_lemma_2_prints() -> None:
    v, before, after = np.array([1.0, 0.0]), np.zeros((2, 2)), np.array([[-1.0, 0.0], [1.0, 0.0]])
    # with eta = 1, and prototypes moved by L2 eta G = 1
    risen = compute_contrast(v, after, 0.1) - compute_contrast(v, before, 0.1)
    assert risen == pytest.approx(19.3069, abs=1e-4)
    assert compute_drift(2, 1, 1, 0.1, printed=True) == 10 < risen < compute_drift(2, 1, 1, 0.1) == 20


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_no_move_of_prototypes_raises_the_contrast_beyond_the_drift(num_classes: int) -> None:
    rng = np.random.default_rng(num_classes)
    for _ in range(200):
        v, moved, tau = rng.normal(size=4), rng.uniform(0, 2), rng.uniform(0.05, 2)
        before, step = rng.normal(size=(2, num_classes, 4))
        after = before + moved * step / np.linalg.norm(step, axis=1, keepdims=True)
        risen = compute_contrast(v, after, tau) - compute_contrast(v, before, tau)
        drift = compute_drift(num_classes, 1, moved, tau, length=float(np.linalg.norm(v)))
        assert risen <= drift * (1 + 1e-9)


def test_of_unlike_clients_lemma_1_holds_as_corrected_and_not_as_printed() -> None:
    """Two clients' quadratics a_i (w - c_i)^2 / 2, and one averaged step."""
    rng, missed = np.random.default_rng(1), 0
    for _ in range(200):
        a, c, w = rng.uniform(0.1, 2, 2), rng.normal(size=2), rng.normal()
        gradients = a * (w - c)
        mean = gradients.mean()
        delta = max(np.sqrt((gradients**2).mean() / mean**2), 1.0)
        eta = rng.uniform(0.01, 0.9) / a.max()
        after = w - eta * mean
        change = (a * ((after - c) ** 2 - (w - c) ** 2)).mean() / 2
        given = (eta, mean**2, a.max(), delta, 0.0)
        assert change <= compute_round_change(*given) + 1e-12
        missed += change > compute_round_change(*given, printed=True)
    assert missed > 100


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delta": 0.9}, "delta: expected a finite number of at least 1, got 0.9"),
        ({"l1": 0}, "L1: expected a finite number above 0"),
        ({"eta": 0}, "eta: expected"),
        ({"drift": -1}, "S: expected a finite number of at least 0"),
        ({"square": float("nan")}, "square: expected"),
    ],
    ids=str,
)
def test_numbers_that_no_round_has_are_refused(given: dict[str, float], said: str) -> None:
    with pytest.raises(BoundError, match=said):
        compute_round_change(**NUMBERS | given)
