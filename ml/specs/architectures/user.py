"""A user's own model, as genesis has it: its layout, found when it was built once, so that no validator needs to build
it.

    {name: "package.module:factory", args: {width: 32}, parameters: {conv.weight: [32, 3, 3, 3], …}, buffers: {},
     embedding: 64, layers: [32, 64], classifier: [fc.weight, fc.bias]}

`ml.models.user` fills in all but the name and the arguments; only a node that trains imports the module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ml.errors import PayloadError, SpecError
from ml.payload import ArraySchema, ArraySpec
from ml.specs.architectures.layout import Layout, Shape, Shapes, check_keys

MAX_LAYERS = 256
MAX_SIZE = 1 << 31  # of one dimension
FOUND_KEYS = ("parameters", "buffers", "embedding", "layers", "classifier")

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def is_user_model(model: Mapping[str, Any]) -> bool:
    """Whether `model` names a module of a user's, and not one of ours."""
    return ":" in str(model.get("name"))


def describe_user_model(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    """The layout of a user's model, as genesis says it. Raises SpecError unless genesis says everything, and nothing
    that cannot be."""
    check_user_model(model)
    for key in FOUND_KEYS:
        if key not in model:
            raise SpecError(f"model.{key}", "is missing: it is found, and written down, when a federation is made")
    parameters, buffers = _read_shapes(model, "parameters"), _read_shapes(model, "buffers")
    if not parameters:
        raise SpecError("model.parameters", "expected at least one, got none")
    for name in buffers:
        if name in parameters:
            raise SpecError("model.buffers", f"expected names that are no parameters', got {name!r}")
    _check_encodable(parameters | buffers)
    layers = _read_layers(model)
    if type(model["embedding"]) is not int or model["embedding"] != layers[-1]:
        raise SpecError(
            "model.embedding", f"expected the last of model.layers, {layers[-1]}, got {model['embedding']!r}"
        )
    return Layout(parameters, layers, _read_classifier(model, parameters), buffers, is_batchable=False)


def check_user_model(model: Mapping[str, Any]) -> None:
    """Raises SpecError unless `model` names a factory and its arguments, whatever else it says."""
    name = model.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError("model.name", f"expected package.module:factory, got {name!r}")
    check_keys(model, ("args", *FOUND_KEYS))
    args = model.get("args", {})
    if not isinstance(args, Mapping) or not all(isinstance(key, str) and key.isidentifier() for key in args):
        raise SpecError("model.args", f"expected arguments by name, got {args!r}")


def _read_shapes(model: Mapping[str, Any], key: str) -> Shapes:
    value = model[key]
    if not isinstance(value, Mapping):
        raise SpecError(f"model.{key}", f"expected shapes by name, got {value!r}")
    for name, shape in value.items():
        is_shape = isinstance(shape, list | tuple) and all(type(n) is int and 1 <= n <= MAX_SIZE for n in shape)
        if not isinstance(name, str) or not is_shape:
            raise SpecError(f"model.{key}", f"expected names with a list of sizes each, got {name!r}: {shape!r}")
    return {name: tuple(shape) for name, shape in value.items()}


def _check_encodable(shapes: Shapes) -> None:
    try:
        ArraySchema({name: ArraySpec("float32", shape) for name, shape in shapes.items()})
    except PayloadError as error:
        raise SpecError("model.parameters", f"cannot be sent: {error}") from error


def _read_layers(model: Mapping[str, Any]) -> tuple[int, ...]:
    layers = model["layers"]
    is_list = isinstance(layers, list | tuple) and 1 <= len(layers) <= MAX_LAYERS
    if not is_list or not all(type(n) is int and 1 <= n <= MAX_SIZE for n in layers):
        raise SpecError("model.layers", f"expected a list of 1 to {MAX_LAYERS} widths, got {layers!r}")
    return tuple(layers)


def _read_classifier(model: Mapping[str, Any], parameters: Shapes) -> tuple[str, ...]:
    names = model["classifier"]
    if not isinstance(names, list | tuple) or not names or len(set(map(str, names))) != len(names):
        raise SpecError("model.classifier", f"expected a list of names, each once, got {names!r}")
    for name in names:
        if name not in parameters:
            raise SpecError("model.classifier", f"expected names of model.parameters, got {name!r}")
    return tuple(names)
