"""Agreed statistics with noise: what a sample has in them is bounded as claimed, the noise is what is counted, and what
comes of it are sums that validators take and that normalise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as drawn_arrays

from ml.accountant import Release, Told, compute_epsilon
from ml.clients.agreed import AgreedClient
from ml.clients.build import Federation, make_clients
from ml.data import get_classes
from ml.data.hidden_statistics import StatisticsPrivacy, add_up_hidden, compute_hidden_statistics, sum_moments
from ml.data.statistics import compute_statistics
from ml.errors import DataError, SpecError
from ml.payload import Arrays, decode_arrays
from ml.secret_stream import SecretStream
from ml.seeding import derive_key
from ml.simulation.run import SimulationConfig, simulate
from ml.specs import AuthorPayloads, compute_aggregate, get_kind, get_spec
from ml.specs.correlations import compute_correlations
from ml.specs.statistics import MAX_BOUND, Agreement, Constants, StatisticsSpec

MODEL = {"name": "mlp", "hidden": [8]}
DIGITS = {"format": "digits"}
INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "normalize": "agreed"}
AGREEMENT = Agreement(min_count=5)
HYPER = {"name": "fedavg", "local_iterations": 3, "dp_noise": 2.0}


def hide(x: np.ndarray, bounds: Any, noise: float, seed: int = 0) -> Arrays:
    privacy = StatisticsPrivacy(noise, bounds, SecretStream(derive_key(seed)))
    return compute_hidden_statistics(x.astype(np.float32), np.zeros(len(x), np.int64), 1, AGREEMENT, privacy)


def get_constants(payload: Arrays, num_values: int) -> Constants:
    told = {
        "counts": np.full(len(payload["sums"]), payload["count"]),
        "sites": np.array(1),
        "samples": payload["count"],
    }
    return Constants.from_arrays({**payload, **told}, num_values)


@given(
    drawn_arrays(np.float64, (1, 3, 2, 2), elements=st.floats(-10, 10)),
    st.sampled_from([(0.0, 1.0), (-3.0, 7.0), (-10.0, -9.0)]),
)
def test_no_sample_has_more_in_the_sums_than_is_claimed(x: np.ndarray, ends: tuple[float, float]) -> None:
    low, high = (np.full(3, end) for end in ends)
    first, second = sum_moments(x.astype(np.float32), low, high)
    assert np.sum(first**2) + np.sum(second**2) <= 1.25 * 3 + 1e-9


def test_a_sample_can_have_as_much_as_is_claimed() -> None:
    privacy = StatisticsPrivacy(1.0, [(0.0, 1.0)] * 3, SecretStream.fresh())
    first, second = sum_moments(np.ones((1, 3, 2, 2), np.float32), np.zeros(3), np.ones(3))
    assert math.sqrt(np.sum(first**2) + np.sum(second**2)) == pytest.approx(privacy.get_sensitivity(AGREEMENT))


def test_without_noise_to_speak_of_they_are_those_of_the_values_within_the_bounds() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(0, 10, (200, 1, 2, 2)), rng.normal(5, 4, (200, 1, 2, 2))], axis=1)
    constants = get_constants(hide(x, [(0.0, 10.0), (2.0, 9.0)], 1e-9), 4)
    cut = np.stack([x[:, 0].clip(0, 10), x[:, 1].clip(2, 9)], axis=1).astype(np.float32)
    np.testing.assert_allclose(constants.mean, cut.mean(axis=(0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(constants.std, cut.std(axis=(0, 2, 3)), rtol=1e-5)


def test_the_noise_is_what_is_counted() -> None:
    """Of the mean of 100 samples of two channels in [-1, 1]: sigma sqrt(5 C / 4) / n."""
    x = np.zeros((100, 2, 1, 1))
    means = np.array([get_constants(hide(x, [(-1.0, 1.0)] * 2, 3.0, seed), 1).mean for seed in range(2000)])
    assert means.std() == pytest.approx(3.0 * math.sqrt(2.5) / 100, rel=0.05)
    assert abs(means.mean()) < 0.005
    assert abs(np.corrcoef(means.T)[0, 1]) < 0.1


@settings(deadline=None)
@given(
    st.integers(5, 40),
    st.sampled_from([0.1, 5.0, 1000.0]),
    st.sampled_from(
        [(0.0, 1.0), (-1e6, 3.0), (1e6, 1e6 + 1.0), (-float(MAX_BOUND - 1), float(MAX_BOUND - 1)), (0.0, 1e-9)]
    ),
    st.integers(0, 10**6),
)
def test_validators_take_what_comes_of_it_and_it_normalises(
    count: int, noise: float, ends: tuple[float, float], seed: int
) -> None:
    x = np.random.default_rng(seed).uniform(*ends, (count, 2, 1, 1))
    payload = hide(x, [ends] * 2, noise, seed)
    input_ = {"shape": [2, 1, 1], "resize": None, "normalize": "agreed", "low": [ends[0]], "high": [ends[1]]}
    spec = get_spec({**HYPER}, MODEL, 2, (2, 1, 1), input_=input_)
    spec.validate_payload("statistics", payload, 1)
    constants = get_constants(payload, 1)
    half = (ends[1] - ends[0]) / 2
    least = math.sqrt(min(noise * math.sqrt(2.5) / count, 1.0))
    for mean, std in zip(constants.mean, constants.std, strict=True):
        assert ends[0] - 1e-3 * half <= mean <= ends[1] + 1e-3 * half
        assert least * 0.99 * half <= std + 2**-44 <= half * 1.01 + 2**-43


def test_of_few_samples_nothing_is_told() -> None:
    payload = hide(np.ones((4, 2, 1, 1)), [(0.0, 1.0)] * 2, 1.0)
    assert all(not np.any(array) for array in payload.values())


def test_what_is_no_number_is_the_sites_own_trouble() -> None:
    with pytest.raises(DataError, match="expected numbers for agreed statistics"):
        hide(np.full((9, 1, 1, 1), np.nan), [(0.0, 1.0)], 1.0)


# ---- counts, and sums by class

TABLE: dict[str, Any] = {
    "shape": [4, 1, 1],
    "resize": None,
    "normalize": "agreed",
    "min_count": 5,
    "class_counts": True,
    "correlations": True,
    "missing": "mean",
    "columns": [{"name": "sex", "values": ["f", "m"]}, {"name": "age", "edges": [40, 60]}, {"name": "bmi"}],
    "low": [0, 0, 0, 10],
    "high": [1, 1, 120, 60],
}


def make_table(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of sex, age and bmi, of which some are empty, and the class of each."""
    rng = np.random.default_rng(seed)
    x, y = np.zeros((count, 4), np.float32), rng.integers(0, 2, count)
    x[np.arange(count), rng.integers(0, 2, count)] = 1
    x[:, 2], x[:, 3] = rng.normal(50, 9, count) + 9 * y, rng.normal(25, 3, count)
    x[rng.random(count) < 0.2, 3] = np.nan
    return x.reshape(count, 4, 1, 1), y.astype(np.int64)


def hide_table(
    x: np.ndarray, y: np.ndarray, noise: float, seed: int = 0, **input_: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is told with noise, which validators take, and without."""
    spec = get_spec(HYPER, {"name": "linear"}, 2, (4, 1, 1), input_={**TABLE, **input_})
    assert isinstance(spec, StatisticsSpec)
    agreement = spec.agreement
    assert agreement.bounds is not None
    privacy = StatisticsPrivacy(noise, agreement.bounds, SecretStream(derive_key(seed)))
    told = compute_hidden_statistics(x, y, 2, agreement, privacy)
    spec.validate_payload("statistics", told, 1)
    return dict(told), dict(compute_statistics(x, y, 2, agreement))


@settings(deadline=None, max_examples=20)
@given(st.integers(5, 60), st.sampled_from([0.1, 5.0, 1000.0, 1e30]), st.booleans(), st.integers(0, 10**6))
def test_validators_take_noisy_counts_and_sums_by_class(count: int, noise: float, fills: bool, seed: int) -> None:
    x, y = make_table(count, seed)
    if not fills:
        x = np.nan_to_num(x, nan=25.0)
    hide_table(x, y, noise, seed, missing="mean" if fills else "zero")


def test_without_noise_to_speak_of_counts_are_those_without_noise() -> None:
    hidden, plain = hide_table(*make_table(400, 3), 1e-9)
    assert hidden.keys() == plain.keys()
    for name in ("count", "present", "bins", "classes", "class_present"):
        assert hidden[name].tolist() == plain[name].tolist(), name
    told = [{**one, "sites": np.array(1), "counts": one["present"]} for one in (hidden, plain)]
    own, exact = (np.array(compute_correlations(one, 1)) for one in told)
    np.testing.assert_allclose(own[2:], exact[2:], atol=1e-4)
    np.testing.assert_allclose(own[:2], exact[:2], atol=0.05)  # counts of a category, which are rounded down


@pytest.mark.parametrize(
    ("input_", "square"),
    [
        ({}, 4 * 2.25 * 2 + 1 + 1),
        ({"correlations": False}, 4 * 2.25 + 1 + 1),
        ({"correlations": False, "missing": "zero"}, 4 * 1.25 + 1 + 1),
        ({"correlations": False, "class_counts": False, "missing": "zero", "columns": None}, 4 * 1.25),
    ],
)
def test_no_sample_has_more_in_all_numbers_than_is_claimed(input_: dict[str, Any], square: float) -> None:
    """Of so little noise, and as many other samples as leave the counts alone, what one sample adds is seen."""
    agreement = Agreement.from_input({**TABLE, **input_})
    assert agreement is not None
    assert agreement.bounds is not None
    privacy = StatisticsPrivacy(1.0, agreement.bounds, SecretStream.fresh())
    assert privacy.get_sensitivity(agreement) == pytest.approx(math.sqrt(square))
    most = 0.0
    for row in ([1, 1, 120, 60], [0, 0, 0, 10], [1, 0, 130, -3], [1, 0, 60, 35]):
        x, y = np.array(row, np.float32).reshape(1, 4, 1, 1), np.array([1])
        parts = add_up_hidden(x, y, 2, agreement, privacy.bounds)
        most = max(most, sum(float(np.sum(part**2)) for part in parts.values()))
    assert most == pytest.approx(square)


# ---- a client's


def make(is_rehearsal: bool = True, **settings: Any) -> AgreedClient:
    federation = Federation(
        method={**HYPER, **settings}, model=MODEL, classes=get_classes(DIGITS), input=INPUT, num_members=3
    )
    client = make_clients(federation, data=DIGITS, partition="iid", run_seed=5)[0]
    assert isinstance(client, AgreedClient)
    client.is_rehearsal = is_rehearsal
    return client


def test_a_rehearsal_tells_the_same_again_and_a_site_never() -> None:
    def tell(*, is_rehearsal: bool) -> Any:
        return make(is_rehearsal).train(1, b"").payloads["statistics"]["sums"].tolist()

    assert tell(is_rehearsal=True) == tell(is_rehearsal=True)
    assert tell(is_rehearsal=False) != tell(is_rehearsal=False)


def test_it_is_counted_as_one_gaussian_mechanism() -> None:
    client = make(dp_statistics_noise=3.0)
    release = Release(0, 0.0, 2.0, 3.0)
    assert client.plan_release(1) == client.train(1, b"").release == release
    assert Told.from_json(Told.of([release]).to_json()) == Told.of([release])
    alone = compute_epsilon(Told.of([release]), 1e-5)
    assert alone == compute_epsilon(Told.of([Release.of_update(3.0)]), 1e-5)  # another of the same noise
    assert alone > 0
    assert make().plan_release(1) == Release(0, 0.0, 2.0, 5.0)
    after = client.plan_release(2)
    assert after is not None
    assert after.steps == 3


def test_rounds_go_on_by_what_was_agreed_and_the_simulation_says_epsilon_of_it() -> None:
    config = SimulationConfig(
        method={**HYPER, "lr": 0.5}, model=MODEL, input=INPUT, clients=3, partition="iid", rounds=3
    )
    result = simulate(config)
    plain = simulate(SimulationConfig(
        method={**HYPER, "lr": 0.5}, model=MODEL, clients=3, partition="iid", rounds=2,
        input={"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]},
    ))  # fmt: skip
    assert result.epsilon is not None
    assert plain.epsilon is not None
    assert result.epsilon > plain.epsilon
    assert all(math.isfinite(each.tal) for each in result.rounds)


def test_what_members_agree_on_is_near_what_they_have() -> None:
    federation = Federation(method=HYPER, model=MODEL, classes=get_classes(DIGITS), input=INPUT, num_members=3)
    clients = make_clients(federation, data=DIGITS, partition="iid", run_seed=5)
    given_ = [AuthorPayloads(bytes([i]) * 32, 1, client.train(1, b"").payloads) for i, client in enumerate(clients)]
    encoded = compute_aggregate(clients[0].spec, 1, given_, {"model/w": np.zeros(1, np.float32)})
    assert encoded is not None
    statistics = get_kind(decode_arrays(encoded, len(encoded)), "statistics")
    assert statistics is not None
    constants = Constants.from_arrays(statistics, 64)
    assert isinstance(clients[0], AgreedClient)
    assert clients[0].unplaced is not None
    exact = get_constants(compute_statistics(clients[0].unplaced.read(), np.zeros(479, np.int64), 1, AGREEMENT), 64)
    assert constants.mean[0] == pytest.approx(exact.mean[0], abs=0.02)
    assert constants.std[0] == pytest.approx(exact.std[0], abs=0.03)


# ---- which settings go together


def test_tables_need_what_their_features_lie_between() -> None:
    input_ = {"shape": [3, 1, 1], "resize": None, "normalize": "agreed"}
    with pytest.raises(SpecError, match="expected low and high with dp_noise") as refused:
        get_spec(HYPER, MODEL, 2, (3, 1, 1), input_=input_)
    assert refused.value.path == "input.low"
    spec = get_spec(HYPER, MODEL, 2, (3, 1, 1), input_={**input_, "low": [0.0, -1.0, 2.0], "high": [1.0, 1.0, 9.0]})
    assert isinstance(spec, StatisticsSpec)
    assert spec.agreement.bounds == ((0.0, 1.0), (-1.0, 1.0), (2.0, 9.0))
    get_spec({"name": "fedavg"}, MODEL, 2, (3, 1, 1), input_=input_)  # without noise nothing is cut
    inherited = {**input_, "normalize": "inherited"}
    get_spec(HYPER, MODEL, 2, (3, 1, 1), input_=inherited)  # they are told already


@pytest.mark.parametrize(
    ("bounds", "path"),
    [
        ({"low": [0.0]}, "input.high"),
        ({"high": [0.0]}, "input.low"),
        ({"low": [0.0, 1.0], "high": [2.0]}, "input.low"),
        ({"low": [1.0], "high": [1.0]}, "input.high"),
        ({"low": [0.0], "high": [1e13]}, "input.high"),
        ({"low": [True], "high": [2.0]}, "input.low"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        Agreement.from_input({**INPUT, **bounds, "shape": [3, 1, 1]})
    assert refused.value.path == path
