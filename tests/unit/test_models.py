"""Models: their sizes, their names in genesis's terms, their two parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ml.errors import SpecError
from ml.models import build_model, dump_parameters, initial_parameters, load_parameters
from ml.specs.architectures import embedding_dim, parameter_shapes

CASES: list[tuple[dict[str, Any], tuple[int, int, int], int]] = [
    ({"name": "mlp", "hidden": [64, 32]}, (1, 8, 8), 6_570),
    ({"name": "mlp", "hidden": [16]}, (3, 8, 8), 192 * 16 + 16 + 16 * 10 + 10),
    ({"name": "cnn_mnist"}, (1, 28, 28), 21_840),
]


@pytest.mark.parametrize(("model", "shape", "count"), CASES)
def test_parameters_are_as_many_and_named_as_validators_expect(
    model: dict[str, Any], shape: tuple[int, int, int], count: int
) -> None:
    state = build_model(model, shape, 10).state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == parameter_shapes(model, shape, 10)
    assert list(state) == list(parameter_shapes(model, shape, 10))
    assert sum(tensor.numel() for tensor in state.values()) == count


@pytest.mark.parametrize(("model", "shape", "count"), CASES)
def test_forward_is_classify_of_embed(model: dict[str, Any], shape: tuple[int, int, int], count: int) -> None:
    net = build_model(model, shape, 10).eval()
    x = torch.rand(5, *shape)
    z_BD = net.embed(x)
    assert z_BD.shape == (5, embedding_dim(model, shape))
    assert bool((z_BD >= 0).all())  # after ReLU
    assert torch.equal(net(x), net.classify(z_BD))
    assert net(x).shape == (5, 10)


def test_cnn_drops_out_in_training_only() -> None:
    net = build_model({"name": "cnn_mnist"}, (1, 28, 28), 10)
    x = torch.rand(4, 1, 28, 28)
    assert not torch.equal(net.train()(x), net(x))
    assert torch.equal(net.eval()(x), net(x))


def test_initial_parameters_come_from_the_seed_and_disturb_nothing() -> None:
    before = torch.get_rng_state()
    first = initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 7)
    assert torch.equal(torch.get_rng_state(), before)
    again = initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 7)
    other = initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 8)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["fc1.weight"], other["fc1.weight"])
    assert {array.dtype for array in first.values()} == {np.dtype(np.float32)}


def test_parameters_survive_a_round_trip_and_are_copies() -> None:
    parameters = initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 1)
    net = build_model({"name": "mlp"}, (1, 8, 8), 10)
    load_parameters(net, parameters)
    dumped = dump_parameters(net)
    assert all(np.array_equal(dumped[name], parameters[name]) for name in parameters)
    dumped["fc1.weight"][:] = 0
    assert np.array_equal(dump_parameters(net)["fc1.weight"], parameters["fc1.weight"])


def test_parameters_of_another_model_are_refused() -> None:
    net = build_model({"name": "mlp"}, (1, 8, 8), 10)
    before = dump_parameters(net)
    with pytest.raises(ValueError, match="do not fit the model"):
        load_parameters(net, initial_parameters({"name": "mlp", "hidden": [64, 31]}, (1, 8, 8), 10, 1))
    assert all(np.array_equal(dump_parameters(net)[name], before[name]) for name in before)


def test_unknown_model_is_named() -> None:
    with pytest.raises(SpecError, match="did you mean 'mlp'"):
        build_model({"name": "mlpp"}, (1, 8, 8), 10)
