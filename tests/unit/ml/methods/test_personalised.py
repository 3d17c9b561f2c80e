"""FedRep, Ditto and FedBN: their papers' updates on two clients for two rounds, and what stays at a client."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ml.clients.client import Client
from ml.errors import SpecError
from ml.models.base import dump_parameters
from ml.payload import Arrays, encode_arrays
from ml.specs import add_kind, get_kind, get_spec
from ml.specs.methods.fedrep import FedRepSpec
from ml.specs.run_schema import describe_payloads, has_whole_model
from support.data.user_models import Small
from support.federation.simulated import BEACON, NORMED, aggregate_round, get_parent, make_digit_clients

SHAPE = (1, 8, 8)
TINY: dict[str, Any] = {"name": "mlp", "hidden": [3]}
HEAD, BODY = ("fc2.weight", "fc2.bias"), ("fc1.weight", "fc1.bias")
WORK: dict[str, Any] = {"lr": 0.2, "batch_size": 1 << 20, "local_iterations": 2}  # each step sees all samples
PARTS = {"fedrep": TINY, "fedbn": NORMED}  # of which a part is in common
Parameters = dict[str, Tensor]


def make_two(method: Mapping[str, Any], model: Mapping[str, Any] = TINY) -> list[Client]:
    return make_digit_clients({**WORK, **method}, num_clients=2, partition="dirichlet:0.3", model=model)


def play(clients: Sequence[Client], rounds: int) -> None:
    parent = get_parent(clients)
    for height in range(1, rounds + 1):
        trained = [client.train(height, BEACON) for client in clients]
        aggregate = aggregate_round(clients, height, trained, parent)
        for client in clients:
            client.apply(height, aggregate, beacon=BEACON)
        parent = aggregate or parent


def read(arrays: Arrays) -> Parameters:
    return {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}


def compute_loss(client: Client, parameters: Parameters) -> Tensor:
    """F_k, of the tiny network as anyone would write it."""
    samples = client.state.data.train
    z = F.relu(samples.x.double().flatten(1) @ parameters["fc1.weight"].T + parameters["fc1.bias"])
    return F.cross_entropy(z @ parameters["fc2.weight"].T + parameters["fc2.bias"], samples.y)


def differentiate(loss: Callable[[Parameters], Tensor], parameters: Parameters) -> Parameters:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
    return dict(zip(leaves, torch.autograd.grad(loss(leaves), tuple(leaves.values())), strict=True))


def average(models: Sequence[Parameters], clients: Sequence[Client]) -> Parameters:
    weights = [client.num_train / sum(c.num_train for c in clients) for client in clients]
    return {name: sum(w * model[name] for w, model in zip(weights, models, strict=True)) for name in models[0]}  # type: ignore[misc]


def check(arrays: Arrays, expected: Parameters) -> None:
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, expected[name].detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def are_equal(first: Arrays, second: Arrays) -> bool:
    return encode_arrays(first) == encode_arrays(second)


# ---- the papers' updates


def test_fedrep_moves_the_head_and_then_what_is_before_it() -> None:
    clients = make_two({"name": "fedrep", "head_work": 3, "momentum": 0.5, "decay": 0.9, "decay_unit": "step"})
    models = [read(dump_parameters(client.state.model)) for client in clients]
    play(clients, 2)
    for round_number in (1, 2):
        for client, model in zip(clients, models, strict=True):
            velocity: Parameters = {}
            for step in range(5):
                lr = 0.2 * 0.9 ** ((round_number - 1) * 5 + step)
                gradients = differentiate(partial(compute_loss, client), model)
                for name in HEAD if step < 3 else BODY:
                    velocity[name] = 0.5 * velocity.get(name, torch.zeros(())) + gradients[name]
                    model[name] = model[name] - lr * velocity[name]
        common = average([{name: model[name] for name in BODY} for model in models], clients)
        models = [model | common for model in models]
    for client, model in zip(clients, models, strict=True):
        check(dump_parameters(client.state.model), model)


def test_ditto_holds_a_personal_model_near_the_common_one() -> None:
    clients = make_two({"name": "ditto", "lambda": 0.7})
    personal = [read(dump_parameters(client.state.model)) for client in clients]
    w = dict(personal[0])
    play(clients, 2)
    for _ in range(2):
        locals_ = [dict(w) for _ in clients]
        for k, client in enumerate(clients):
            for _ in range(2):
                of_v, of_w = (
                    differentiate(partial(compute_loss, client), model) for model in (personal[k], locals_[k])
                )
                for name in w:
                    personal[k][name] = personal[k][name] - 0.2 * (of_v[name] + 0.7 * (personal[k][name] - w[name]))
                    locals_[k][name] = locals_[k][name] - 0.2 * of_w[name]
        w = average(locals_, clients)
    for client, v in zip(clients, personal, strict=True):
        check(dump_parameters(client.state.model), v)
        check(get_kind(client.state.arrays, "common") or {}, w)


def test_fedbn_averages_all_but_batch_norm() -> None:
    clients = make_two({"name": "fedbn"}, NORMED)
    models = []
    for client in clients:
        model = Small(1, 4, 10)
        model.load_state_dict({**model.state_dict(), **read(dump_parameters(client.state.model))})
        models.append(model.double())
    play(clients, 2)
    for _ in range(2):
        for client, model in zip(clients, models, strict=True):
            samples, weights = client.state.data.train, list(model.parameters())
            for _ in range(2):
                loss = F.cross_entropy(model.classify(model.embed(samples.x.double())), samples.y)
                for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    weight.data.sub_(gradient, alpha=0.2)
        common = average([dict(copy.deepcopy(model).named_parameters()) for model in models], clients)
        shared = {name: tensor.detach() for name, tensor in common.items() if not name.startswith("norm.")}
        for model in models:
            model.load_state_dict(shared, strict=False)
    for client, model in zip(clients, models, strict=True):
        arrays = dump_parameters(client.state.model)
        check(arrays, {name: tensor for name, tensor in model.state_dict().items() if name in arrays})


# ---- what they reduce to


def test_ditto_sends_what_fedavg_does_and_without_lambda_trains_alone() -> None:
    ditto, fedavg, local = (
        make_two({"name": n, **s}) for n, s in (("ditto", {"lambda": 0}), ("fedavg", {}), ("local", {}))
    )
    for clients in (ditto, fedavg, local):
        play(clients, 2)
    for ours, common, alone in zip(ditto, fedavg, local, strict=True):
        assert are_equal(dump_parameters(ours.state.model), dump_parameters(alone.state.model))
        assert are_equal(get_kind(ours.state.arrays, "common") or {}, dump_parameters(common.state.model))
        assert are_equal(ours.train(3, BEACON).payloads["model"], common.train(3, BEACON).payloads["model"])


@pytest.mark.parametrize(
    ("settings", "num_iterations", "num_steps", "expected"),
    [
        ({}, 40, 40, 20),  # as many of either
        ({"head_work": 10, "local_epochs": 2}, 12, 60, 50),  # epochs of five steps
        ({"head_work": 10, "local_epochs": 2}, 6, 30, 25),  # half the time: half of each
        ({"head_work": 10, "local_epochs": 2}, 1, 5, 0),
        ({}, 0, 0, 0),
    ],
)
def test_a_phase_is_split_by_the_work_of_each_part(
    settings: dict[str, Any], num_iterations: int, num_steps: int, expected: int
) -> None:
    spec = get_spec({"name": "fedrep", **settings}, TINY, 10, SHAPE)
    assert isinstance(spec, FedRepSpec)
    assert spec.count_head_steps(num_iterations, num_steps) == expected


# ---- what stays at a client


@pytest.mark.parametrize(
    "settings",
    [
        {"outer": {"optimizer": "nesterov"}},
        {"aggregation": "clipped_mean"},
        {"aggregation": "multi_krum"},
        {"model_dtype": "float16"},
        {"dp_update_noise": 0.1},
        {"weights": "uniform"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", PARTS)
def test_the_common_part_goes_by_any_rule_and_the_rest_stays(name: str, settings: dict[str, Any]) -> None:
    clients = make_two({"name": name, **settings}, PARTS[name])
    common = set(clients[0].spec.schemas(1)["model"].arrays)
    parent = get_parent(clients)
    for height in (1, 2):
        trained = [client.train(height, BEACON) for client in clients]
        assert all(made.payloads["model"].keys() == common for made in trained)
        before = [dump_parameters(client.state.model) for client in clients]
        aggregate = parent = aggregate_round(clients, height, trained, parent) or {}
        assert aggregate.keys() == describe_payloads(clients[0].spec)["aggregate"].keys()
        for client, was in zip(clients, before, strict=True):
            client.apply(height, aggregate, beacon=BEACON)
            for array_name, array in dump_parameters(client.state.model).items():
                expected = aggregate.get(f"model/{array_name}", was[array_name])
                assert (array == expected).all(), array_name
    assert not has_whole_model(clients[0].spec, describe_payloads(clients[0].spec)["aggregate"])


@pytest.mark.parametrize("name", PARTS)
def test_a_whole_model_in_an_aggregate_changes_the_common_part_alone(name: str) -> None:
    """As where a run's first masked sum was not opened, and the model that it began from stays."""
    client, _ = make_two({"name": name}, PARTS[name])
    initial = dump_parameters(client.state.model)
    client.train(1, BEACON)
    own = dump_parameters(client.state.model)
    client.apply(1, add_kind("model", initial), beacon=BEACON)
    common = client.spec.schemas(1)["model"].arrays
    for array_name, array in dump_parameters(client.state.model).items():
        assert (array == (initial if array_name in common else own)[array_name]).all(), array_name


def test_a_personal_model_and_the_common_one_come_back_from_a_checkpoint() -> None:
    clients = make_two({"name": "ditto"})
    play(clients, 1)
    fresh = make_two({"name": "ditto"})
    for new, old in zip(fresh, clients, strict=True):
        new.load_state_arrays(old.state_arrays())
        assert are_equal(new.train(2, BEACON).payloads["model"], old.train(2, BEACON).payloads["model"])
        assert are_equal(new.state_arrays(), old.state_arrays())


# ---- what is refused


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        ({"name": "fedbn"}, TINY, "model.name: fedbn expects a model with batch norm that trains, mlp has none"),
        ({"name": "fedbn"}, {"name": "head_256"}, "model.name: fedbn expects a model with batch norm that trains"),
        ({"name": "fedbn", "bn_buffers": "average"}, NORMED, "method.bn_buffers: expected local, got 'average'"),
        ({"name": "fedbn", "dp_noise": 1}, NORMED, "method.dp_noise"),
        ({"name": "fedrep", "dp_noise": 1}, TINY, "method.dp_noise: expected none: fedrep sends what has no noise"),
        ({"name": "ditto", "dp_noise": 1}, TINY, "method.dp_noise: expected none: the personal model of ditto"),
        ({"name": "ditto", "lambda": -1}, TINY, r"method.lambda: expected a number in \[0, inf\), got -1"),
        ({"name": "fedrep"}, {**TINY, "frozen": ["fc1.*"]}, "model.frozen: fedrep expects parameters before the class"),
        ({"name": "fedrep"}, {**TINY, "frozen": ["fc2.*"]}, "model.frozen: fedrep expects parameters in the class"),
        ({"name": "fedrep"}, {"name": "linear"}, "model.frozen: fedrep expects parameters before the classifier"),
    ],
)
def test_what_they_cannot_be_is_refused(method: dict[str, Any], model: dict[str, Any], message: str) -> None:
    shape = (1, 16, 16) if model["name"] == "head_256" else SHAPE
    with pytest.raises(SpecError, match=message):
        get_spec(method, model, 10, shape)
