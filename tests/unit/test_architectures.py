from __future__ import annotations

import math
from typing import Any

import pytest

from ml.errors import SpecError
from ml.specs.architectures import embedding_dim, model_schema, num_parameters, parameter_shapes, validate_model

MLP = {"name": "mlp", "hidden": [64, 32]}
CNN = {"name": "cnn_mnist"}


def test_the_mlp_on_digits_has_6570_parameters() -> None:
    assert num_parameters(MLP, (1, 8, 8), 10) == 6_570
    assert num_parameters({"name": "mlp"}, (1, 8, 8), 10) == 6_570
    assert embedding_dim(MLP, (1, 8, 8)) == 32


def test_the_mlps_layers_follow_each_other() -> None:
    assert list(parameter_shapes(MLP, (1, 8, 8), 10).items()) == [
        ("fc1.weight", (64, 64)),
        ("fc1.bias", (64,)),
        ("fc2.weight", (32, 64)),
        ("fc2.bias", (32,)),
        ("fc3.weight", (10, 32)),
        ("fc3.bias", (10,)),
    ]


def test_the_mnist_cnn_has_21840_parameters_in_8_tensors_and_embeds_in_50() -> None:
    shapes = parameter_shapes(CNN, (1, 28, 28), 10)
    assert sum(map(math.prod, shapes.values())) == 21_840
    assert len(shapes) == 8
    assert embedding_dim(CNN, (1, 28, 28)) == 50


def test_prototypes_of_the_mnist_cnn_are_43_times_smaller_than_the_model() -> None:
    model = 4 * num_parameters(CNN, (1, 28, 28), 10)
    prototypes = 4 * 10 * embedding_dim(CNN, (1, 28, 28))
    assert (prototypes, model, round(model / prototypes, 2)) == (2_000, 87_360, 43.68)


def test_a_models_schema_is_every_parameter_in_float32() -> None:
    schema = model_schema(CNN, (1, 28, 28), 10)
    assert {spec.dtype for spec in schema.arrays.values()} == {"float32"}
    assert 87_360 < schema.max_bytes < 87_360 + 1_024


@pytest.mark.parametrize(
    ("model", "shape", "path", "message"),
    [
        ({}, (1, 8, 8), "model.name", "expected one of mlp, cnn_mnist, got None"),
        ({"name": "cnn_mnsit"}, (1, 28, 28), "model.name", "did you mean 'cnn_mnist'"),
        ({"name": "mlp", "hiden": [4]}, (1, 8, 8), "model.hiden", "did you mean 'hidden'"),
        ({"name": "cnn_mnist", "hidden": [4]}, (1, 28, 28), "model.hidden", "nothing is expected here"),
        ({"name": "mlp", "hidden": []}, (1, 8, 8), "model.hidden", "list of 1 to 8 widths"),
        ({"name": "mlp", "hidden": 64}, (1, 8, 8), "model.hidden", "list of 1 to 8 widths"),
        ({"name": "mlp", "hidden": [0]}, (1, 8, 8), "model.hidden", "widths from 1"),
        ({"name": "mlp", "hidden": [True]}, (1, 8, 8), "model.hidden", "widths from 1"),
        ({"name": "mlp", "hidden": [64.0]}, (1, 8, 8), "model.hidden", "widths from 1"),
        (CNN, (1, 8, 8), "input.shape", "cnn_mnist expects"),
        (CNN, (3, 28, 28), "input.shape", "cnn_mnist expects"),
        (MLP, (64,), "input.shape", "channels, height, width"),
        (MLP, (1, 0, 8), "input.shape", "channels, height, width"),
    ],
)
def test_a_wrong_model_is_refused_by_its_place(
    model: dict[str, Any], shape: tuple[int, ...], path: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        validate_model(model, shape)
    assert caught.value.path == path
