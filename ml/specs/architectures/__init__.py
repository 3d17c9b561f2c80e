"""The shapes of each architecture's parameters, without torch: all that a validator must know of a model (ALGORITHMS
§6).

Names and order are those of the torch module's `state_dict()`; `ml.models` builds the modules, and a test there
compares the two. `input_shape` is (channels, height, width). Each family has its file here, which describes its models.
A name with a colon is a user's own model; genesis then holds what these functions return.

Three kinds of arrays: *parameters* are trained, *buffers* are the running statistics of batch norm, *frozen* ones are
the encoder of `head_256` and what `model.frozen` names. Parameters are sent each round, buffers with them or not;
frozen arrays are in the initial model and never sent again. An array with two names is sent under the first.
`num_batches_tracked` is part of nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ml.errors import SpecError, suggest
from ml.payload import ArraySchema, ArraySpec
from ml.plugins import list_offered
from ml.specs.architectures.cnn import describe_cnn_cifar, describe_cnn_mnist
from ml.specs.architectures.frozen import check_patterns, freeze_layout
from ml.specs.architectures.layout import MAX_WIDTH, Architecture, Layout, Shape, Shapes, check_keys
from ml.specs.architectures.mlp import (
    HIDDEN,
    MLP_HIDDEN,
    describe_linear,
    describe_mlp,
    describe_mlp_mnist,
    describe_wide_deep,
    get_mlp_hidden,
    get_normalize,
)
from ml.specs.architectures.resnet import describe_head_256, describe_resnet18
from ml.specs.architectures.user import check_user_model, describe_user_model, is_user_model
from ml.specs.architectures.vgg import describe_vgg11

__all__ = [
    "ARCHITECTURES",
    "MLP_HIDDEN",
    "Layout",
    "Shape",
    "get_layout",
    "validate_model",
    "fit_input_shape",
    "complete_model",
    "find_model",
    "parameter_shapes",
    "buffer_shapes",
    "frozen_shapes",
    "tied_names",
    "model_schema",
    "initial_schema",
    "num_parameters",
    "embedding_dim",
    "layer_dims",
    "classifier_names",
    "is_batchable",
    "has_unit_embedding",
    "is_user_model",
    "get_mlp_hidden",
]

ARCHITECTURES: dict[str, Architecture] = {
    "linear": Architecture(describe_linear),
    "mlp": Architecture(describe_mlp, ("hidden",)),
    "wide_deep": Architecture(describe_wide_deep, ("hidden",)),
    "cnn_mnist": Architecture(describe_cnn_mnist, native=(1, 28, 28)),
    "mlp_mnist": Architecture(describe_mlp_mnist, ("normalize",)),
    "cnn_cifar": Architecture(describe_cnn_cifar),
    "resnet18": Architecture(describe_resnet18),
    "resnet18_cifar": Architecture(describe_resnet18),
    "resnet18_nobn": Architecture(describe_resnet18, ("stem",)),
    "vgg11": Architecture(describe_vgg11, ("batch_norm", "classifier")),
    "head_256": Architecture(describe_head_256, ("normalize",)),
}


def get_layout(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    """Returns the layout of a model, without building it.

    Raises SpecError unless `model` names an architecture, sets only its keys, and takes inputs of this shape.
    """
    if len(input_shape) != 3 or not all(type(n) is int and 1 <= n <= MAX_WIDTH for n in input_shape):
        raise SpecError(
            "input.shape", f"expected [channels, height, width] from 1 to {MAX_WIDTH}, got {list(input_shape)}"
        )
    if is_user_model(model):
        return describe_user_model(model, tuple(input_shape), num_classes)
    architecture = _get_architecture(model)
    check_keys(model, (*architecture.keys, "frozen"))
    return freeze_layout(architecture.describe(model, tuple(input_shape), num_classes), check_patterns(model))


def validate_model(model: Mapping[str, Any], input_shape: Shape) -> None:
    """Raises SpecError as `get_layout` does."""
    get_layout(model, input_shape, 2)


def fit_input_shape(model: Mapping[str, Any], shape: Shape) -> Shape:
    """Returns `shape` if the model takes it, else the shape to which such images are best scaled. Raises SpecError."""
    if is_user_model(model):
        check_user_model(model)
        return shape
    try:
        validate_model(model, shape)
    except SpecError as error:
        if error.path != "input.shape":
            raise
    else:
        return shape
    native = _get_architecture(model).native
    for candidate in ((shape[0], *native[1:]), native):
        try:
            validate_model(model, candidate)
        except SpecError as error:
            refused = error
        else:
            return candidate
    raise refused


def find_model(name: str) -> str:
    """Returns package.module:factory if one installed plugin offers a factory of this name, else `name` itself."""
    if name in ARCHITECTURES or is_user_model({"name": name}):
        return name
    found = [offered.value for offered in list_offered("models") if offered.name == name]
    return found[0] if len(found) == 1 else name


def complete_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `model` with the widths of hidden layers or a user's arguments written out, and without a `frozen` that
    names nothing. Raises SpecError for an unknown name."""
    if not model.get("frozen", True):
        model = {key: value for key, value in model.items() if key != "frozen"}
    if is_user_model(model):
        check_user_model(model)
        return {"args": {}, **model}
    _get_architecture(model)
    return {"hidden": list(HIDDEN[model["name"]]), **model} if model["name"] in HIDDEN else dict(model)


def parameter_shapes(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Shapes:
    """Returns the shape of every trained parameter by name, in `state_dict()` order. Raises SpecError."""
    return dict(get_layout(model, input_shape, num_classes).parameters)


def buffer_shapes(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Shapes:
    """Returns the shape of every running statistic of batch norm by name. Raises SpecError."""
    return dict(get_layout(model, input_shape, num_classes).buffers)


def frozen_shapes(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Shapes:
    """Returns the shape of every frozen array, statistics too, by name. Raises SpecError."""
    return dict(get_layout(model, input_shape, num_classes).frozen)


def tied_names(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> dict[str, str]:
    """Returns the further names of arrays, each with the name under which its array is known. Raises SpecError."""
    return dict(get_layout(model, input_shape, num_classes).tied)


def num_parameters(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> int:
    """Returns the number of trained numbers. Raises SpecError."""
    return sum(math.prod(shape) for shape in parameter_shapes(model, input_shape, num_classes).values())


def model_schema(
    model: Mapping[str, Any], input_shape: Shape, num_classes: int, *, buffers: bool = True
) -> ArraySchema:
    """Returns the schema of a model as it is sent: every parameter, and by default every buffer. Raises SpecError."""
    layout = get_layout(model, input_shape, num_classes)
    return _make_schema({**layout.parameters, **(layout.buffers if buffers else {})})


def initial_schema(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> ArraySchema:
    """Returns the schema of block 0's "model/": parameters, buffers and what is frozen. Raises SpecError."""
    layout = get_layout(model, input_shape, num_classes)
    return _make_schema({**layout.parameters, **layout.buffers, **layout.frozen})


def embedding_dim(model: Mapping[str, Any], input_shape: Shape) -> int:
    """Returns D, the length of the vector a prototype is a mean of. Raises SpecError."""
    return layer_dims(model, input_shape)[-1]


def layer_dims(model: Mapping[str, Any], input_shape: Shape) -> tuple[int, ...]:
    """Returns the width of each intermediate representation (maps averaged), the embedding's last. Raises SpecError."""
    return get_layout(model, input_shape, 2).layers


def classifier_names(model: Mapping[str, Any], input_shape: Shape) -> tuple[str, ...]:
    """Returns the names of h's trained parameters; all others are g's. Raises SpecError."""
    return get_layout(model, input_shape, 2).classifier


def is_batchable(model: Mapping[str, Any]) -> bool:
    """Says whether many clients may be trained in one vmapped pass: the model has no statistics to keep. False for a
    user's model, whose code is unknown. Raises SpecError."""
    if is_user_model(model):
        return False
    layout = get_layout(model, _get_architecture(model).native, 2)
    return layout.is_batchable or layout.has_dropout


def has_unit_embedding(model: Mapping[str, Any]) -> bool:
    """Says whether the model itself gives its embedding unit length. False for a user's model, whose code is unknown.
    Raises SpecError."""
    return not is_user_model(model) and "normalize" in _get_architecture(model).keys and get_normalize(model)


def _get_architecture(model: Mapping[str, Any]) -> Architecture:
    name = model.get("name")
    if not isinstance(name, str):
        raise SpecError("model.name", f"expected one of {', '.join(ARCHITECTURES)}, got {name!r}")
    if name not in ARCHITECTURES:
        raise SpecError("model.name", f"unknown model {name!r}: {suggest(name, ARCHITECTURES)}")
    return ARCHITECTURES[name]


def _make_schema(shapes: Mapping[str, Shape]) -> ArraySchema:
    return ArraySchema({name: ArraySpec("float32", shape) for name, shape in shapes.items()})
