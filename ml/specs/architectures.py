"""The shapes of each architecture's parameters, without torch: what a validator must know of a model (ALGORITHMS §6).

Names and order are those of the torch module's `state_dict()`; `ml.models` builds the modules, and a test there holds
the two together. `input_shape` is (channels, height, width).

    mlp        {name: mlp, hidden: [64, 32]}   fc1 ... fcL with ReLU, then the classifier fc{L+1};
                                               the embedding is the last hidden layer after its ReLU
    cnn_mnist  {name: cnn_mnist}               conv1, conv2, fc1 (embedding, 50 after ReLU), fc2; 21,840 parameters
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from ml.errors import SpecError, suggest
from ml.payload import ArraySchema, ArraySpec

Shape = tuple[int, ...]

MLP_HIDDEN = (64, 32)
MAX_LAYERS = 8
MAX_WIDTH = 1 << 16


def validate_model(model: Mapping[str, Any], input_shape: Shape) -> None:
    """Raise SpecError unless `model` names an architecture, sets only what it has, and takes inputs of this shape."""
    name = _get_name(model)
    keys = _KEYS[name]
    for key in model:
        if key != "name" and key not in keys:
            raise SpecError(f"model.{key}", f"unknown key: {suggest(key, keys)}")
    if len(input_shape) != 3 or not all(type(n) is int and 1 <= n <= MAX_WIDTH for n in input_shape):
        raise SpecError(
            "input.shape", f"expected [channels, height, width] from 1 to {MAX_WIDTH}, got {list(input_shape)}"
        )
    if name == "mlp":
        get_mlp_hidden(model)
    elif tuple(input_shape) != (1, 28, 28):
        raise SpecError("input.shape", f"cnn_mnist expects [1, 28, 28], got {list(input_shape)}")


def get_mlp_hidden(model: Mapping[str, Any]) -> tuple[int, ...]:
    """The widths of an mlp's hidden layers. Raises SpecError."""
    hidden = model.get("hidden", MLP_HIDDEN)
    if not isinstance(hidden, list | tuple) or not 1 <= len(hidden) <= MAX_LAYERS:
        raise SpecError("model.hidden", f"expected a list of 1 to {MAX_LAYERS} widths, got {hidden!r}")
    for width in hidden:
        if type(width) is not int or not 1 <= width <= MAX_WIDTH:
            raise SpecError("model.hidden", f"expected widths from 1 to {MAX_WIDTH}, got {width!r}")
    return tuple(hidden)


def parameter_shapes(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> dict[str, Shape]:
    """The shape of every parameter tensor by name, in `state_dict()` order. Raises SpecError."""
    validate_model(model, input_shape)
    return _SHAPES[_get_name(model)](model, input_shape, num_classes)


def embedding_dim(model: Mapping[str, Any], input_shape: Shape) -> int:
    """D, the length of the vector a prototype is a mean of. Raises SpecError."""
    validate_model(model, input_shape)
    return get_mlp_hidden(model)[-1] if _get_name(model) == "mlp" else 50


def num_parameters(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> int:
    """How many numbers the model has. Raises SpecError."""
    return sum(math.prod(shape) for shape in parameter_shapes(model, input_shape, num_classes).values())


def model_schema(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> ArraySchema:
    """The schema of a whole model as a payload: every parameter, float32. Raises SpecError."""
    shapes = parameter_shapes(model, input_shape, num_classes)
    return ArraySchema({name: ArraySpec("float32", shape) for name, shape in shapes.items()})


def _get_name(model: Mapping[str, Any]) -> str:
    name = model.get("name")
    if not isinstance(name, str):
        raise SpecError("model.name", f"expected one of {', '.join(_SHAPES)}, got {name!r}")
    if name not in _SHAPES:
        raise SpecError("model.name", f"unknown model {name!r}: {suggest(name, _SHAPES)}")
    return name


def _linear(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _conv(name: str, inputs: int, outputs: int, kernel: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs, kernel, kernel), f"{name}.bias": (outputs,)}


def _mlp_shapes(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> dict[str, Shape]:
    widths = (math.prod(input_shape), *get_mlp_hidden(model), num_classes)
    shapes: dict[str, Shape] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        shapes |= _linear(f"fc{layer}", inputs, outputs)
    return shapes


def _cnn_mnist_shapes(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> dict[str, Shape]:
    return (
        _conv("conv1", 1, 10, 5) | _conv("conv2", 10, 20, 5) | _linear("fc1", 320, 50) | _linear("fc2", 50, num_classes)
    )


_SHAPES: dict[str, Callable[[Mapping[str, Any], Shape, int], dict[str, Shape]]] = {
    "mlp": _mlp_shapes,
    "cnn_mnist": _cnn_mnist_shapes,
}
_KEYS: dict[str, tuple[str, ...]] = {"mlp": ("hidden",), "cnn_mnist": ()}
