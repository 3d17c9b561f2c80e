"""Architectures as validators know them: the counts of ALGORITHMS §6, without torch."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest

from ml.errors import SpecError
from ml.specs import Task
from ml.specs.architectures import (
    ARCHITECTURES,
    buffer_shapes,
    classifier_names,
    complete_model,
    embedding_dim,
    fit_input_shape,
    frozen_shapes,
    initial_schema,
    is_batchable,
    layer_dims,
    model_schema,
    num_parameters,
    parameter_shapes,
    validate_model,
)
from node.cli.trial.testnet import ModelOption

MLP = {"name": "mlp", "hidden": [64, 32]}
CNN = {"name": "cnn_mnist"}
RESNET = {"name": "resnet18"}
NOBN = {"name": "resnet18_nobn"}
VGG = {"name": "vgg11"}
RGB = (3, 32, 32)


@pytest.mark.parametrize(
    ("model", "shape", "num_classes", "count", "tensors", "embedding"),
    [
        (MLP, (1, 8, 8), 10, 6_570, 6, 32),
        ({"name": "mlp"}, (1, 8, 8), 10, 6_570, 6, 32),
        (CNN, (1, 28, 28), 10, 21_840, 8, 50),
        (RESNET, (3, 224, 224), 1000, 11_689_512, 62, 512),
        (RESNET, RGB, 10, 11_181_642, 62, 512),
        (RESNET, RGB, 100, 11_227_812, 62, 512),
        ({"name": "resnet18_cifar"}, RGB, 10, 11_173_962, 62, 512),
        ({"name": "linear"}, (13, 1, 1), 2, 28, 2, 13),
        ({"name": "wide_deep"}, (13, 1, 1), 2, 13 * 64 + 64 + 77 * 2 + 2, 4, 77),
        ({"name": "mlp_mnist"}, (1, 28, 28), 10, 798_474, 8, 256),
        ({"name": "head_256"}, RGB, 10, 133_898, 4, 256),
        (NOBN, RGB, 10, 11_169_162, 42, 512),
        ({**NOBN, "stem": "7x7"}, RGB, 10, 11_176_842, 42, 512),
        (NOBN, (1, 28, 28), 10, 11_169_162 - 1_152, 42, 512),
        ({**NOBN, "stem": "7x7"}, (1, 28, 28), 10, 11_176_842 - 6_272, 42, 512),
        ({"name": "cnn_cifar"}, RGB, 10, 878_538, 8, 1_600),
        (VGG, RGB, 10, 9_220_480 + 5_130, 18, 512),
        ({**VGG, "batch_norm": True}, RGB, 10, 9_225_984 + 5_130, 16 + 16 + 2, 512),
        ({**VGG, "classifier": 4096}, RGB, 10, 9_220_480 + 18_923_530, 16 + 6, 512),
    ],
)
def test_parameters_tensors_and_embedding_are_as_many_as_the_table_says(
    model: dict[str, Any], shape: tuple[int, int, int], num_classes: int, count: int, tensors: int, embedding: int
) -> None:
    assert num_parameters(model, shape, num_classes) == count
    assert len(parameter_shapes(model, shape, num_classes)) == tensors
    assert embedding_dim(model, shape) == embedding


@pytest.mark.parametrize(
    ("model", "shape", "in_h"),
    [
        (MLP, (1, 8, 8), 330),
        (CNN, (1, 28, 28), 510),
        (RESNET, RGB, 5_130),
        ({"name": "cnn_cifar"}, RGB, 824_842),
        (VGG, RGB, 5_130),
        ({**VGG, "classifier": 4096}, RGB, 18_923_530),
        ({"name": "head_256"}, RGB, 2_570),
        ({"name": "mlp_mnist"}, (1, 28, 28), 2_570),
    ],
)
def test_the_classifier_is_the_last_of_the_parameters(
    model: dict[str, Any], shape: tuple[int, int, int], in_h: int
) -> None:
    shapes = parameter_shapes(model, shape, 10)
    names = classifier_names(model, shape)
    assert tuple(shapes)[-len(names) :] == names
    assert sum(math.prod(shapes[name]) for name in names) == in_h


def test_the_mlps_layers_follow_each_other() -> None:
    assert list(parameter_shapes(MLP, (1, 8, 8), 10).items()) == [
        ("fc1.weight", (64, 64)),
        ("fc1.bias", (64,)),
        ("fc2.weight", (32, 64)),
        ("fc2.bias", (32,)),
        ("fc3.weight", (10, 32)),
        ("fc3.bias", (10,)),
    ]


def test_resnet18_has_torchvisions_names() -> None:
    names = list(parameter_shapes(RESNET, RGB, 10))
    assert names[:6] == ["conv1.weight", "bn1.weight", "bn1.bias"] + [
        f"layer1.0.{name}" for name in ("conv1.weight", "bn1.weight", "bn1.bias")
    ]
    assert [name for name in names if name.startswith("layer2.0.")] == [
        f"layer2.0.{module}.{name}"
        for module, has_bias in (("conv1", 0), ("bn1", 1), ("conv2", 0), ("bn2", 1))
        for name in ("weight", "bias")[: 1 + has_bias]
    ] + ["layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight", "layer2.0.downsample.1.bias"]
    assert [stage for stage in range(1, 5) if f"layer{stage}.0.downsample.0.weight" in names] == [2, 3, 4]
    assert names[-2:] == ["fc.weight", "fc.bias"]


def test_vgg11_has_torchvisions_names() -> None:
    plain, normed = (parameter_shapes({**VGG, "batch_norm": on}, RGB, 10) for on in (False, True))
    assert [name for name in plain if name.endswith(".weight")] == [
        *(f"features.{i}.weight" for i in (0, 3, 6, 8, 11, 13, 16, 18)),
        "classifier.weight",
    ]
    convs = [name for name, shape in normed.items() if len(shape) == 4]
    assert convs == [f"features.{i}.weight" for i in (0, 4, 8, 11, 15, 18, 22, 25)]
    wide = parameter_shapes({**VGG, "classifier": 4096}, RGB, 10)
    assert [name for name in wide if name.startswith("classifier")][::2] == [
        f"classifier.{i}.weight" for i in (0, 3, 6)
    ]


def test_batch_norm_has_a_mean_and_a_variance_and_no_counter() -> None:
    buffers = buffer_shapes(RESNET, RGB, 10)
    assert len(buffers) == 40
    assert sum(math.prod(shape) for shape in buffers.values()) == 9_600
    assert {name.rpartition(".")[2] for name in buffers} == {"running_mean", "running_var"}
    assert not buffer_shapes(NOBN, RGB, 10)


def test_buffers_travel_with_the_model_unless_they_stay_at_home() -> None:
    task = Task(RESNET, RGB, 10)
    assert (
        task.model_schema.arrays.keys() - task.parameter_schema.arrays.keys() == buffer_shapes(RESNET, RGB, 10).keys()
    )
    assert task.parameter_schema.arrays.keys() == parameter_shapes(RESNET, RGB, 10).keys()
    assert task.initial_schema == task.model_schema


def test_a_frozen_encoder_is_in_block_0_and_never_travels_again() -> None:
    head = {"name": "head_256"}
    frozen = frozen_shapes(head, RGB, 10)
    assert sum(math.prod(shape) for shape in frozen.values()) == 11_181_642 - 5_130 + 9_600
    assert all(name.startswith("encoder.") for name in frozen)
    assert len(model_schema(head, RGB, 10).arrays) == 4
    assert initial_schema(head, RGB, 10).arrays.keys() == model_schema(head, RGB, 10).arrays.keys() | frozen.keys()
    assert not frozen_shapes(RESNET, RGB, 10)


def test_layers_end_in_the_embedding() -> None:
    assert layer_dims(MLP, (1, 8, 8)) == (64, 32)
    assert layer_dims(CNN, (1, 28, 28)) == (10, 20, 50)
    assert layer_dims(RESNET, RGB) == (64, 128, 256, 512)
    assert layer_dims(VGG, RGB) == (64, 128, 256, 512, 512)
    assert layer_dims({"name": "cnn_cifar"}, RGB) == (32, 1_600)
    task = Task(CNN, (1, 28, 28), 10)
    assert (task.layer_dims, task.embedding_dim) == ((10, 20, 50), 50)
    assert task.classifier_names == ("fc2.weight", "fc2.bias")


@pytest.mark.parametrize(
    ("model", "shape", "slot"),
    [
        (MLP, (1, 8, 8), 32),
        (CNN, (1, 28, 28), 50),
        ({"name": "mlp_mnist"}, (1, 28, 28), 256),
        (NOBN, RGB, 512),
        (VGG, RGB, 512),
        ({"name": "cnn_cifar"}, RGB, 512),  # not its 1,600 maps
        ({**VGG, "classifier": 4096}, RGB, 4096),
    ],
)
def test_the_slot_is_what_the_last_linear_takes(model: dict[str, Any], shape: tuple[int, int, int], slot: int) -> None:
    task = Task(model, shape, 10)
    assert task.slot_dim == slot
    last = [shape for shape in parameter_shapes(model, shape, 10).values() if len(shape) == 2][-1]
    assert last == (10, slot)


def test_batch_norm_keeps_clients_out_of_one_batched_pass_and_dropout_does_not() -> None:
    batchable = {name for name in ARCHITECTURES if is_batchable({"name": name})}
    assert batchable == {
        *("linear", "mlp", "wide_deep", "mlp_mnist", "cnn_mnist", "cnn_cifar", "resnet18_nobn", "vgg11", "head_256")
    }
    assert not is_batchable({**VGG, "batch_norm": True})
    assert not is_batchable({**VGG, "classifier": 4096, "batch_norm": True})
    assert is_batchable({**VGG, "classifier": 4096})


def test_prototypes_of_the_mnist_cnn_are_43_times_smaller_than_the_model() -> None:
    model = 4 * num_parameters(CNN, (1, 28, 28), 10)
    prototypes = 4 * 10 * embedding_dim(CNN, (1, 28, 28))
    assert (prototypes, model, round(model / prototypes, 2)) == (2_000, 87_360, 43.68)


def test_a_models_schema_is_every_parameter_in_float32() -> None:
    schema = model_schema(CNN, (1, 28, 28), 10)
    assert {spec.dtype for spec in schema.arrays.values()} == {"float32"}
    assert 87_360 < schema.max_bytes < 87_360 + 1_024


def test_every_initial_model_fits_below_the_payload_limit() -> None:
    largest = initial_schema({**VGG, "classifier": 4096}, RGB, 10).max_bytes
    assert max(initial_schema({"name": name}, entry.native, 10).max_bytes for name, entry in ARCHITECTURES.items()) < (
        largest
    )
    assert largest < 512 << 20


def test_the_command_lines_help_names_them_all() -> None:
    words = get_args(ModelOption)[1].help.replace(",", "").split()
    assert set(ARCHITECTURES) <= set(words)


@pytest.mark.parametrize(
    ("model", "shape", "fitted"),
    [
        (MLP, (1, 8, 8), (1, 8, 8)),
        (CNN, (1, 8, 8), (1, 28, 28)),
        (CNN, (3, 32, 32), (1, 28, 28)),
        (VGG, (1, 8, 8), (1, 32, 32)),
        (VGG, (3, 64, 48), (3, 64, 48)),
        (RESNET, (3, 28, 28), (3, 28, 28)),
        ({"name": "mine:make"}, (2, 5, 7), (2, 5, 7)),
    ],
)
def test_images_are_scaled_only_for_a_model_that_does_not_take_them(
    model: dict[str, Any], shape: tuple[int, int, int], fitted: tuple[int, int, int]
) -> None:
    assert fit_input_shape(model, shape) == fitted


def test_fitting_an_input_hides_no_other_mistake() -> None:
    with pytest.raises(SpecError, match="did you mean 'mlp'"):
        fit_input_shape({"name": "mpl"}, (1, 8, 8))
    with pytest.raises(SpecError, match="stem: expected one of 3x3, 7x7"):
        fit_input_shape({**NOBN, "stem": "5x5"}, (1, 4, 4))


def test_defaults_that_genesis_should_not_hang_on_are_written_out() -> None:
    assert complete_model({"name": "mlp"}) == {"name": "mlp", "hidden": [64, 32]}
    assert complete_model({"name": "mlp", "hidden": [8]}) == {"name": "mlp", "hidden": [8]}
    assert complete_model({"name": "vgg11", "frozen": []}) == {"name": "vgg11"}
    assert complete_model({"name": "vgg11", "frozen": ["fc.*"]}) == {"name": "vgg11", "frozen": ["fc.*"]}
    assert complete_model({"name": "mine:make"}) == {"name": "mine:make", "args": {}}


@pytest.mark.parametrize(
    ("model", "shape", "path", "message"),
    [
        ({}, (1, 8, 8), "model.name", "expected one of linear, mlp, wide_deep, cnn_mnist, .*, head_256, got None"),
        ({"name": "unet2"}, RGB, "model.name", "unknown model 'unet2'"),
        ({"name": "cnn_mnsit"}, (1, 28, 28), "model.name", "did you mean 'cnn_mnist'"),
        ({"name": "mlp", "hiden": [4]}, (1, 8, 8), "model.hiden", "did you mean 'hidden'"),
        ({"name": "cnn_mnist", "hidden": [4]}, (1, 28, 28), "model.hidden", "expected one of frozen"),
        ({"name": "mlp", "hidden": []}, (1, 8, 8), "model.hidden", "list of 1 to 8 widths"),
        ({"name": "mlp", "hidden": 64}, (1, 8, 8), "model.hidden", "list of 1 to 8 widths"),
        ({"name": "mlp", "hidden": [0]}, (1, 8, 8), "model.hidden", "widths from 1"),
        ({"name": "mlp", "hidden": [True]}, (1, 8, 8), "model.hidden", "widths from 1"),
        ({"name": "mlp", "hidden": [64.0]}, (1, 8, 8), "model.hidden", "widths from 1"),
        ({**VGG, "batch_norm": 1}, RGB, "model.batch_norm", "expected one of false, true, got 1"),
        ({**VGG, "classifier": "4096"}, RGB, "model.classifier", "expected one of single, 4096, got '4096'"),
        ({"name": "mlp_mnist", "normalize": None}, (1, 28, 28), "model.normalize", "one of true, false, got None"),
        ({**RESNET, "stem": "3x3"}, RGB, "model.stem", "expected one of frozen"),
        ({**MLP, "frozen": "fc1.*"}, (1, 8, 8), "model.frozen", "list of 1 to 64 patterns, got 'fc1"),
        ({**MLP, "frozen": []}, (1, 8, 8), "model.frozen", "list of 1 to 64 patterns"),
        ({**MLP, "frozen": ["fc[12].*"]}, (1, 8, 8), "model.frozen", r"names of parameters with \* and \?"),
        ({**MLP, "frozen": ["conv.*"]}, (1, 8, 8), "model.frozen", "'conv.*' matches no parameter: .* fc1.weight"),
        ({**MLP, "frozen": ["*"]}, (1, 8, 8), "model.frozen", "parameters left to train, got none"),
        ({**MLP, "frozen": ["*", "!*"]}, (1, 8, 8), "model.frozen", "parameters to be frozen, got none"),
        (CNN, (1, 8, 8), "input.shape", "cnn_mnist expects"),
        (CNN, (3, 28, 28), "input.shape", "cnn_mnist expects"),
        (VGG, (3, 28, 28), "input.shape", r"vgg11 expects images of at least 32x32, got \[3, 28, 28\]"),
        (RESNET, (1, 8, 32), "input.shape", "resnet18 expects images of at least 16x16"),
        ({"name": "resnet18_cifar"}, (1, 7, 7), "input.shape", "resnet18_cifar expects images of at least 8x8"),
        ({"name": "cnn_cifar"}, (3, 15, 32), "input.shape", "cnn_cifar expects images of at least 16x16"),
        ({"name": "head_256"}, (3, 15, 32), "input.shape", "head_256 expects images of at least 16x16"),
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
