"""The accountant: against the formula where there is one, and a bound of another kind."""

from __future__ import annotations

import math

import pytest

import ml.accountant
from ml.accountant import (
    ROUGH_EPSILON,
    Release,
    Told,
    check_accountant,
    compute_epsilon,
    compute_worst_epsilon,
    count_phases_within,
)
from ml.errors import MlError
from ml.simulation.run import SimulationConfig, simulate

DELTA = 1e-5


def compute_renyi_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """An upper bound: Renyi divergence of whole orders (Mironov, Talwar and Zhang, 2019, eq. 6 of Section 3.3), turned
    into epsilon (Mironov, 2017, proposition 3)."""
    best = math.inf
    for order in range(2, 200):
        terms = [
            math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp(min(k * (k - 1) / (2 * noise**2), 700))
            for k in range(order + 1)
        ]
        divergence = steps * math.log(math.fsum(terms)) / (order - 1)
        best = min(best, divergence + math.log(1 / delta) / (order - 1))
    return best


def test_nothing_told_is_nothing() -> None:
    assert compute_epsilon(Told(), DELTA) == 0.0


def test_one_release_of_prototypes_is_what_the_formula_says() -> None:
    release = Release(steps=0, rate=0.1, noise=1.0, prototype_noise=1.0)
    assert compute_epsilon(Told.of([release]), DELTA) == pytest.approx(
        4.3772, abs=1e-3
    )  # Balle and Wang (2018), theorem 8
    four = compute_epsilon(Told.of([Release(0, 0.1, 1.0, 2.0)] * 4), DELTA)
    assert four == pytest.approx(4.3772, abs=1e-3)  # four with twice the noise are one


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.1, 2.0, 200), (0.2, 4.0, 500)])
def test_steps_are_within_a_bound_of_another_kind_and_not_far_below(rate: float, noise: float, steps: int) -> None:
    epsilon = compute_epsilon(Told.of([Release(steps, rate, noise)]), DELTA)
    bound = compute_renyi_epsilon(rate, noise, steps, DELTA)
    assert 0.6 * bound < epsilon < bound


def test_phases_add_up_whatever_their_order() -> None:
    few, many = Release(20, 0.2, 2.0, 5.0), Release(40, 0.1, 2.0)
    assert compute_epsilon(Told.of([few, many]), DELTA) == compute_epsilon(Told.of([many, few]), DELTA)
    halves = [Release(20, 0.1, 2.0), Release(20, 0.1, 2.0)]
    assert (
        compute_epsilon(Told.of(halves), DELTA)
        == compute_epsilon(Told.of([many]), DELTA)
        < compute_epsilon(Told.of([few, many]), DELTA)
    )


def test_the_worst_client_is_the_one_whose_samples_were_drawn_most() -> None:
    clients = [[Release(20, rate, 2.0)] * 3 for rate in (0.05, 0.2, 0.1)]
    assert compute_worst_epsilon(clients, DELTA) == compute_epsilon(Told.of(clients[1]), DELTA)
    mixed = [[Release(20, 0.2, 2.0)], [Release(500, 0.1, 2.0)]]  # neither in each phase
    assert compute_worst_epsilon(mixed, DELTA) == max(compute_epsilon(Told.of(one), DELTA) for one in mixed)
    assert compute_worst_epsilon([], DELTA) == 0.0


def test_without_the_library_it_is_said_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml.accountant, "find_spec", lambda name: None)
    with pytest.raises(MlError, match=r"pip install 'fednode\[privacy\]'"):
        check_accountant()
    with pytest.raises(MlError, match=r"pip install 'fednode\[privacy\]'"):
        simulate(SimulationConfig(method={"name": "fedavg", "dp_noise": 1.0}, clients=2, rounds=1))


def test_a_simulation_says_what_its_clients_have_told() -> None:
    method = {"name": "dfpl", "dp_noise": 2.0, "local_iterations": 3}
    result = simulate(SimulationConfig(method=method, clients=3, rounds=2, shots=20))
    smallest = min(client.num_train for client in result.clients)
    told = [Release(3, min(32, smallest) / smallest, 2.0, 5.0)] * 2
    assert result.epsilon == pytest.approx(compute_epsilon(Told.of(told), DELTA))
    assert result.delta == DELTA
    assert result.to_json()["epsilon"] == result.epsilon
    plain = simulate(SimulationConfig(method={"name": "local", "local_iterations": 1}, clients=2, rounds=1, shots=5))
    assert (plain.epsilon, plain.delta, "epsilon" in plain.to_json()) == (None, None, False)


@pytest.mark.outer
def test_a_budget_lasts_for_so_many_phases_and_not_for_one_more() -> None:
    told, release = Told.of([Release(20, 0.1, 2.0)]), Release(20, 0.1, 2.0, 5.0)
    num = count_phases_within(3.0, DELTA, told, release)
    assert num > 0
    assert compute_epsilon(told.plus(release, num), DELTA) <= 3.0 < compute_epsilon(told.plus(release, num + 1), DELTA)
    assert told.phases == 1
    assert count_phases_within(0.01, DELTA, told, release) == 0
    assert count_phases_within(1e6, DELTA, told, release, most=3) == 3


def test_what_was_told_can_be_written_down() -> None:
    told = Told.of([Release(20, 0.25, 2.0, 5.0), Release(20, 0.25, 2.0), Release(3, 0.5, 1.0, 5.0)])
    written = told.to_json()
    assert written == {"phases": 3, "steps": [[0.25, 2.0, 40], [0.5, 1.0, 3]], "prototypes": [[5.0, 2]]}
    assert Told.from_json(written) == told


def test_noise_that_can_be_guessed_is_none() -> None:
    told = Told.of([Release(20, 0.25, 2.0, 5.0)])
    told.guessable = 1
    assert compute_epsilon(told, DELTA) == math.inf
    assert Told.from_json(told.to_json()) == told
    more = told.plus(Release(20, 0.25, 2.0, 5.0))
    assert (more.phases, more.guessable) == (2, 1)
    assert count_phases_within(100.0, DELTA, more, Release(1, 0.1, 100.0)) == 0
    assert compute_epsilon(told.set_aside(), DELTA) == compute_epsilon(Told.of([Release(20, 0.25, 2.0, 5.0)]), DELTA)
    assert told.guessable == 1


@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        {"phases": 1, "steps": [[0.1, 1.0]], "prototypes": []},
        {"phases": -1, "steps": [], "prototypes": []},
        {"phases": 1, "steps": [[0.1, 0.0, 5]], "prototypes": []},
        {"phases": 1, "steps": [[1.5, 1.0, 5]], "prototypes": []},
        {"phases": 1, "steps": [], "prototypes": [], "guessable": -1},
        {"phases": 1, "steps": [], "prototypes": [[math.nan, 5]]},
    ],
)
def test_what_nobody_wrote_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        Told.from_json(values)


@pytest.mark.parametrize("noise", [0.2, 0.01, 1e-9, 1e-200])
def test_noise_that_hides_nothing_is_said_to_at_once_and_fails_nothing(noise: float) -> None:
    """The exact sum would take gigabytes, or end in an error, in whichever worker trains such a run."""
    assert compute_epsilon(Told.of([Release(2000, 0.15, noise, noise)]), 1e-5) > ROUGH_EPSILON


@pytest.mark.outer
def test_the_rough_bound_takes_over_where_it_is_no_less_than_the_exact_one() -> None:
    exact, rough = (compute_epsilon(Told.of([Release(20, 0.15, 1.0, 5.0)] * count), 1e-5) for count in (400, 500))
    assert 200 < exact < ROUGH_EPSILON < rough
