"""SCAFFOLD: numbers by hand, and what a client's control variate is when rounds go on with it and without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ml.clients.client import Client
from ml.errors import SpecError
from ml.methods.base import Trained
from ml.models.base import dump_parameters
from ml.payload import Array, Arrays, decode_arrays, make_empty_arrays
from ml.specs import AuthorPayloads, MethodSpec, add_kind, compute_aggregate, get_kind, get_spec
from ml.specs.methods.scaffold import read_last_rounds, step_control
from ml.specs.run_schema import describe_payloads
from support.federation.simulated import BEACON, get_parent, make_digit_clients

MLP: dict[str, Any] = {"name": "mlp", "hidden": [4]}
SHAPE = (1, 2, 2)
METHOD = {"name": "scaffold", "local_iterations": 1, "lr": 0.5}
IDS = [bytes([i + 1]) * 32 for i in range(4)]


def make_spec(**settings: Any) -> MethodSpec:
    return get_spec({"name": "scaffold", **settings}, MLP, 3, SHAPE, max_weight=1000, rounds=10, num_members=4)


def fill(spec: MethodSpec, value: float) -> dict[str, Array]:
    empty = make_empty_arrays(spec.task.parameter_schema)
    return {name: np.full(array.shape, value, np.float32) for name, array in empty.items()}


def combine(spec: MethodSpec, height: int, changes: dict[int, float], parent: Arrays) -> dict[str, Array]:
    """The aggregate of models of 0 and of changes that are everywhere one number."""
    given = [
        AuthorPayloads(IDS[i], 1, {"model": fill(spec, 0), "control": fill(spec, change)})
        for i, change in changes.items()
    ]
    encoded = compute_aggregate(spec, height, given, parent)
    assert encoded is not None
    return decode_arrays(encoded, len(encoded))


def get_control(aggregate: Arrays) -> list[float]:
    return sorted({float(x) for array in (get_kind(aggregate, "control") or {}).values() for x in array.ravel()})


# ---- what all compute


def test_the_common_control_variate_moves_by_the_share_of_the_members_in_the_block() -> None:
    """c 0; of all four the changes are 2 in the mean: c 2. Then two of four change by 3: c = 2 + (2 / 4) 3 = 3.5."""
    spec = make_spec()
    parent: Arrays = add_kind("model", fill(spec, 0))
    first = combine(spec, 1, {0: 1, 1: 2, 2: 2, 3: 3}, parent)
    assert get_control(first) == [2]
    second = combine(spec, 2, {0: 2, 2: 4}, first)
    assert get_control(second) == [3.5]
    assert read_last_rounds(second) == {IDS[0]: 2, IDS[1]: 1, IDS[2]: 2, IDS[3]: 1}
    assert get_control(combine(spec, 1, {0: 2, 2: 4}, second)) == [1.5]  # a run begins anew
    assert set(second) == set(describe_payloads(spec)["aggregate"])


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "clipped_mean", "multi_krum"])
def test_a_robust_rule_holds_for_the_control_variates_around_0(rule: str) -> None:
    spec = make_spec(aggregation=rule)
    before = {**add_kind("model", fill(spec, 0)), **add_kind("control", fill(spec, 900))}
    made = combine(spec, 2, {0: 1, 1: 1, 2: 1, 3: 1e6}, before)
    assert get_control(made) == [900.75 if rule == "clipped_mean" else 901]  # which counts the liar as one at 0


def test_weights_count_as_in_the_models_mean() -> None:
    spec = make_spec()
    given = [
        AuthorPayloads(IDS[i], weight, {"model": fill(spec, 0), "control": fill(spec, change)})
        for i, (weight, change) in enumerate([(3, 1), (1, 5), (1, 0), (1, 0)])
    ]
    encoded = compute_aggregate(spec, 1, given, add_kind("model", fill(spec, 0)))
    assert encoded is not None
    assert get_control(decode_arrays(encoded, len(encoded))) == [float(np.float32(8 / 6))]


def test_an_outer_optimiser_moves_the_model_and_not_the_control_variates() -> None:
    spec = make_spec(outer={"optimizer": "momentum", "lr": 0.5})
    made = combine(spec, 1, {0: 1, 1: 1, 2: 1, 3: 1}, add_kind("model", fill(spec, 1)))
    assert {name.partition("/")[0] for name in made} == {"control", "model", "outer", "scaffold"}
    assert get_control(made) == [1]
    assert made["model/fc1.bias"].tolist() == [0.5] * 4


def test_what_is_kept_is_finite() -> None:
    most = np.full(1, np.finfo(np.float32).max, np.float32)
    assert step_control(most, most, 1.0, "w").tolist() == most.tolist()


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"momentum": 0.5}, "method.momentum"),
        ({"optimizer": "adam"}, "method.optimizer"),
        ({"decay_unit": "step", "decay": 0.9}, "method.decay_unit"),
        ({"aggregation": "masked_sum"}, "method.aggregation"),
        ({"dp_noise": 1.0}, "method.dp_noise"),
        ({"dp_update_noise": 1.0}, "method.dp_update_noise"),
    ],
)
def test_what_it_cannot_be_is_refused(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(**settings)
    assert caught.value.path == path


# ---- clients


def play(
    clients: list[Client], height: int, parent: Arrays, left_out: frozenset[int] = frozenset()
) -> tuple[list[Trained], dict[str, Array]]:
    """One round in which all train, and some contributions come too late for the block."""
    trained = [client.train(height, BEACON, me=me) for client, me in zip(clients, IDS, strict=False)]
    given = [
        AuthorPayloads(me, 1, made.payloads)
        for i, (me, made) in enumerate(zip(IDS, trained, strict=False))
        if i not in left_out
    ]
    encoded = compute_aggregate(clients[0].spec, height, given, parent)
    assert encoded is not None
    aggregate = decode_arrays(encoded, len(encoded))
    for client, me in zip(clients, IDS, strict=False):
        client.apply(height, aggregate, me=me)
    return trained, aggregate


def get_own(client: Client) -> dict[str, Array]:
    return get_kind(client.state.arrays, "own") or {}


def test_a_step_is_corrected_and_a_clients_control_variate_is_its_gradient() -> None:
    """One step each: c_i' = c_i - c + (x - y) / eta is the gradient at x, whatever the correction was."""
    clients = make_digit_clients(METHOD)
    parent = get_parent(clients)
    _, aggregate = play(clients, 1, parent)
    common = get_kind(aggregate, "control") or {}
    for name, c in common.items():
        mean = np.mean([get_own(client)[name] for client in clients], 0)
        assert np.allclose(c, mean, atol=1e-6)
    plain = make_digit_clients({**METHOD, "name": "fedavg"})
    x = get_kind(aggregate, "model") or {}
    for client, other in zip(clients, plain, strict=True):
        own = get_own(client)
        other.apply(1, add_kind("model", x))
        y_plain = other.train(2, BEACON).payloads["model"]
        sent = client.train(2, BEACON).payloads
        for name in common:
            gradient = (x[name] - y_plain[name]) / 0.5
            expected = x[name] - 0.5 * (gradient - own[name] + common[name])
            assert np.allclose(sent["model"][name], expected, atol=1e-6)
            assert np.allclose(sent["control"][name], gradient - own[name], atol=1e-5)


def test_who_was_not_in_the_block_keeps_the_control_variate_that_is_in_the_common_one() -> None:
    clients = make_digit_clients({**METHOD, "weights": "uniform"})
    _, first = play(clients, 1, get_parent(clients))
    before = [get_own(client) for client in clients]
    _, second = play(clients, 2, first, frozenset({1}))
    after = [get_own(client) for client in clients]
    name = "fc1.weight"
    assert after[1][name].tobytes() == before[1][name].tobytes()
    assert after[0][name].tobytes() != before[0][name].tobytes()
    assert np.allclose(second[f"control/{name}"], np.mean([own[name] for own in after], 0), atol=1e-6)
    assert sorted(clients[1].state.arrays) == sorted(clients[0].state.arrays)


def test_a_restart_between_training_and_the_block_loses_nothing() -> None:
    clients, others = (make_digit_clients(METHOD) for _ in range(2))
    parent = get_parent(clients)
    _, first = play(clients, 1, parent)
    trained = [client.train(2, BEACON, me=me) for client, me in zip(clients, IDS, strict=False)]
    given = [AuthorPayloads(me, 1, made.payloads) for me, made in zip(IDS, trained, strict=False)]
    encoded = compute_aggregate(clients[0].spec, 2, given, first)
    assert encoded is not None
    second = decode_arrays(encoded, len(encoded))
    others[0].load_state_arrays(clients[0].state_arrays())
    for client in (clients[0], others[0]):
        client.apply(2, second, me=IDS[0])
    assert get_own(others[0])["fc1.weight"].tobytes() == get_own(clients[0])["fc1.weight"].tobytes()
    others[1].apply(2, second, me=IDS[1])  # set up anew: it knows nothing of what it had sent
    assert get_own(others[1])["fc1.weight"].tobytes() == second["control/fc1.weight"].tobytes()
    others[2].apply(2, second, me=IDS[3])  # has never been in a block
    assert get_own(others[2]) == {}


def test_a_run_that_goes_on_from_another_begins_with_control_variates_of_0() -> None:
    clients, next_run = make_digit_clients(METHOD), make_digit_clients(METHOD)
    play(clients, 1, get_parent(clients))
    next_run[0].go_on_from(clients[0].state_arrays())
    assert get_own(next_run[0])
    start = dump_parameters(next_run[0].state.model)
    sent = next_run[0].train(1, BEACON).payloads
    change = (start["fc1.bias"] - sent["model"]["fc1.bias"]) / 0.5
    assert np.allclose(sent["control"]["fc1.bias"], change, atol=1e-6)
