"""Updates that hide a whole client: cut to a length, behind noise that is what is claimed, and counted."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.accountant import Release, Told, compute_epsilon
from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.clients.privacy import hide_update
from ml.data import get_classes
from ml.errors import AggregationError, SpecError
from ml.methods.base import Round
from ml.payload import Array
from ml.simulation.run import SimulationConfig, simulate
from ml.specs import METHODS, get_spec
from ml.specs.hyperparameters import Hyperparameters

DIGITS = {"format": "digits"}
MODEL = {"name": "mlp", "hidden": [8]}
INPUT = {"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]}
SHAPE = (1, 8, 8)
COMMON = {"a": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}
ROUND = Round(1, 1, bytes(32), 1, is_rehearsal=True)
SITE = replace(ROUND, is_rehearsal=False)


def make_hyper(noise: float = 1e-9, clip: float | None = None) -> Hyperparameters:
    method: dict[str, Any] = {"dp_update_noise": noise} | ({} if clip is None else {"dp_update_clip": clip})
    return METHODS["fedavg"].settings.from_mapping(method)


def make(*numbers: float) -> dict[str, Array]:
    return {"a": np.array(numbers[:2], np.float32), "b": np.array(numbers[2:], np.float32)}


# ---- what is sent


def test_an_update_is_cut_to_its_length_over_all_arrays_and_a_short_one_is_not() -> None:
    sent = hide_update(make_hyper(), ROUND, make(2.0, 0.0, 1.5), COMMON)  # of length 2.5
    assert sent["a"] == pytest.approx([0.8, 0.0], abs=1e-6)
    assert sent["b"] == pytest.approx([0.6], abs=1e-6)
    sent = hide_update(make_hyper(clip=3.0), ROUND, make(2.0, 0.0, 1.5), COMMON)
    assert sent["a"] == pytest.approx([2.0, 0.0], abs=1e-6)
    assert all(array.dtype == np.float32 for array in sent.values())


def test_what_is_cut_is_the_change_of_the_common_model() -> None:
    common = {"a": np.array([10.0, 0.0], np.float32), "b": np.array([5.0], np.float32)}
    sent = hide_update(make_hyper(clip=1.0), ROUND, make(12.0, 0.0, 5.0), common)
    assert sent["a"] == pytest.approx([11.0, 0.0], abs=1e-5)
    assert sent["b"] == pytest.approx([5.0], abs=1e-5)


def test_nothing_that_was_changed_is_noise_around_the_common_model() -> None:
    sent = hide_update(make_hyper(noise=1.0), ROUND, COMMON, COMMON)
    assert all(np.all(array != 0) for array in sent.values())


def test_a_model_that_the_common_one_has_not_is_refused() -> None:
    with pytest.raises(AggregationError, match="array 'a': expected one of shape"):
        hide_update(make_hyper(), ROUND, make(1.0, 1.0, 1.0), {"b": np.zeros(1, np.float32)})


def test_without_the_setting_a_model_is_sent_as_it_is() -> None:
    hyper = METHODS["fedavg"].settings.from_mapping({})
    model = make(1.0, 2.0, 3.0)
    assert hide_update(hyper, ROUND, model, COMMON) is model


# ---- the noise


def is_as_claimed(noise: float, claimed: float, count: int = 20_000) -> bool:
    """Whether the noise of a zero update is that of a claim, at five standard deviations of what it may come to."""
    hyper, zeros = make_hyper(noise, clip=0.5), {"a": np.zeros(count, np.float32)}
    sent = hide_update(hyper, SITE, zeros, zeros)["a"].astype(np.float64) / (claimed * 0.5)
    within = abs(float(np.mean(sent**2)) - 1) < 5 * math.sqrt(2 / count)
    return within and abs(float(np.mean(sent))) < 5 / math.sqrt(count)


def test_the_noise_is_as_much_as_is_claimed() -> None:
    assert is_as_claimed(2.0, 2.0)
    assert not is_as_claimed(1.0, 2.0)  # a canary with half of it
    assert not is_as_claimed(1.9, 2.0)


def test_a_sites_noise_is_never_the_same_and_that_of_a_rehearsal_can_be_had_again() -> None:
    one, two = (hide_update(make_hyper(1.0), SITE, COMMON, COMMON) for _ in range(2))
    assert not np.array_equal(one["a"], two["a"])
    one, two = (hide_update(make_hyper(1.0), ROUND, COMMON, COMMON) for _ in range(2))
    assert np.array_equal(one["a"], two["a"])
    other = hide_update(make_hyper(1.0), replace(ROUND, number=2), COMMON, COMMON)
    assert not np.array_equal(one["a"], other["a"])


# ---- a client


def make_client(**method: Any) -> Client:
    classes = get_classes(DIGITS)
    settings = {"name": "fedavg", "local_iterations": 3, **method}
    federation = Federation(method=settings, model=MODEL, classes=classes, input=INPUT, rounds=3, num_members=4)
    initial = make_initial_aggregate(MODEL, SHAPE, len(classes), 1)
    return make_clients(federation, data=DIGITS, partition="iid", run_seed=1, initial=initial)[0]


@pytest.mark.parametrize("more", [{}, {"aggregation": "masked_sum"}, {"weights": "uniform"}])
def test_a_client_trains_as_ever_and_sends_something_else(more: dict[str, Any]) -> None:
    plain, hidden = make_client(**more), make_client(**more, dp_update_noise=0.5)
    sent, told = (client.train(1, bytes(32)) for client in (plain, hidden))
    assert sent.release is None
    assert told.release == Release.of_update(0.5)
    for name, array in plain.state_arrays().items():
        assert np.array_equal(array, hidden.state_arrays()[name])
    for name, array in sent.payloads["model"].items():
        assert not np.array_equal(array, told.payloads["model"][name])


def test_updates_in_half_precision_are_hidden_first() -> None:
    client = make_client(dp_update_noise=1.0, model_dtype="float16")
    payload = client.train(1, bytes(32)).payloads["model"]
    numbers = np.concatenate([array.astype(np.float64).ravel() for array in payload.values()]) / 1024
    assert 0.8 < float(np.std(numbers)) < 1.2


def test_a_client_that_has_missed_a_round_sends_no_update_of_an_older_model() -> None:
    client = make_client(dp_update_noise=1.0)
    with pytest.raises(AggregationError, match="expected the common model of height 1, got that of 0"):
        client.train(2, bytes(32))


def test_what_a_phase_tells_is_known_before_it_begins() -> None:
    client = make_client(dp_update_noise=2.0)
    assert client.plan_release(1) == Release.of_update(2.0)
    assert client.plan_release(1, 7) == Release.of_update(2.0)


# ---- what it comes to


def compute_gaussian_delta(noise: float, epsilon: float) -> float:
    """Balle and Wang (2018), theorem 8."""

    def phi(x: float) -> float:
        return (1 + math.erf(x / math.sqrt(2))) / 2

    half = 1 / (2 * noise)
    return phi(half - epsilon * noise) - math.exp(epsilon) * phi(-half - epsilon * noise)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 1), (4.0, 10), (8.0, 50)])
def test_epsilon_of_updates_is_what_the_formula_says(noise: float, rounds: int) -> None:
    """So many Gaussian releases are one with the noise divided by the root of their number."""
    epsilon = compute_epsilon(Told.of([Release.of_update(noise)] * rounds), 1e-5)
    assert compute_gaussian_delta(noise / math.sqrt(rounds), epsilon) == pytest.approx(1e-5, rel=0.02)


def test_an_account_has_updates_and_an_older_one_none() -> None:
    told = Told.of([Release.of_update(2.0), Release.of_update(2.0), Release(5, 0.1, 3.0, 4.0)])
    values = json.loads(json.dumps(told.to_json()))
    assert values["updates"] == [[2.0, 2]]
    assert Told.from_json(values) == told
    plain = Told.of([Release(5, 0.1, 3.0, 4.0)])
    assert "updates" not in plain.to_json()
    assert Told.from_json(plain.to_json()) == plain
    for broken in ([[0.0, 1]], [[1.0, -1]], [[1.0]], 3, "x"):
        with pytest.raises(ValueError, match="expected"):
            Told.from_json({**values, "updates": broken})


def test_a_simulation_says_epsilon_of_its_rounds() -> None:
    method = {"name": "fedavg", "dp_update_noise": 4.0, "dp_delta": 1e-6, "local_iterations": 1}
    result = simulate(SimulationConfig(method=method, model=MODEL, clients=3, rounds=2))
    assert result.epsilon == compute_epsilon(Told.of([Release.of_update(4.0)] * 2), 1e-6)
    assert result.delta == 1e-6


# ---- which settings go together


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "moon", "blade_fl", "swim"])
def test_methods_that_send_a_model_take_it(name: str) -> None:
    spec = get_spec({"name": name, "dp_update_noise": 1.0}, MODEL, 10, SHAPE, rounds=5)
    assert spec.hyperparameters.is_counted
    assert not spec.hyperparameters.is_private


@pytest.mark.parametrize(
    ("method", "place", "message"),
    [
        ({"name": "fednova", "dp_update_noise": 1.0}, "method.dp_update_noise", "fednova sends something besides"),
        ({"name": "mpfedcl", "dp_update_noise": 1.0}, "method.dp_update_noise", "mpfedcl sends something besides"),
        ({"name": "fedintr", "dp_update_noise": 1.0}, "method.dp_update_noise", "fedintr sends something besides"),
        ({"name": "fededs", "dp_update_noise": 1.0}, "method.dp_update_noise", "fededs sends something besides"),
        ({"name": "fedavg", "dp_update_noise": 1.0, "dp_noise": 1.0}, "method.dp_update_noise", "none with dp_noise"),
        ({"name": "fedavg", "dp_update_clip": 1.0}, "method.dp_update_clip", "none without dp_update_noise"),
        ({"name": "fedavg", "dp_delta": 1e-6}, "method.dp_delta", "none without dp_noise"),
        ({"name": "fedavg", "dp_update_noise": 0.0}, "method.dp_update_noise", "a number in"),
        ({"name": "dfpl", "dp_update_noise": 1.0}, "method.dp_update_noise", "unknown key"),
    ],
)
def test_what_does_not_go_with_it_is_refused_at_its_place(method: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        get_spec(method, MODEL, 10, SHAPE, rounds=5)
    assert refused.value.path == place


def test_agreed_statistics_would_tell_what_is_to_be_hidden() -> None:
    with pytest.raises(SpecError, match="members tell the sums of their features"):
        get_spec({"name": "fedavg", "dp_update_noise": 1.0}, MODEL, 10, SHAPE, rounds=5, input_={"normalize": "agreed"})
