"""A user's own model, as genesis describes it: its layout, found when it was built once, so that no validator needs to
build it.

    {name: "package.module:factory", args: {width: 32}, parameters: {conv.weight: [32, 3, 3, 3], …}, buffers: {},
     embedding: 64, layers: [32, 64], classifier: [fc.weight, fc.bias], plugin: {name: nets, version: "", sha256: …},
     frozen: ["conv.*"], frozen_arrays: {conv.weight: …}, tied: {decoder.weight: encoder.weight}}

`ml.models.user` fills in all but the name, the arguments and `frozen`; only a node that trains imports the module.
`frozen_arrays` is there if something does not train, `tied` if an array has further names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ml.errors import PayloadError, SpecError
from ml.payload import ArraySchema, ArraySpec
from ml.plugins import PluginRecord
from ml.specs.architectures.frozen import check_patterns, match_patterns
from ml.specs.architectures.layout import Layout, Shape, Shapes, check_keys

MAX_LAYERS = 256
MAX_SIZE = 1 << 31  # of one dimension
FOUND_KEYS = ("parameters", "buffers", "embedding", "layers", "classifier", "plugin")
FOUND_WHERE_THERE = ("frozen_arrays", "tied")

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def is_user_model(model: Mapping[str, Any]) -> bool:
    """Says whether `model` names a user's module, and not one of fednode's."""
    return ":" in str(model.get("name"))


def describe_user_model(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    """Returns the layout of a user's model, as genesis describes it. Raises SpecError unless genesis has every part of
    it, and no part that is impossible."""
    check_user_model(model)
    for key in FOUND_KEYS:
        if key not in model:
            raise SpecError(f"model.{key}", "is missing: it is found, and written down, when a federation is made")
    PluginRecord.from_mapping("model.plugin", model["plugin"])
    parameters, buffers = _read_shapes(model, "parameters"), _read_shapes(model, "buffers")
    frozen = _read_shapes(model, "frozen_arrays") if "frozen_arrays" in model else {}
    if not parameters:
        raise SpecError("model.parameters", "expected at least one, got none")
    for name in buffers:
        if name in parameters:
            raise SpecError("model.buffers", f"expected names that are no parameters', got {name!r}")
    for name in frozen:
        if name in parameters or name in buffers:
            raise SpecError("model.frozen_arrays", f"expected names of nothing that is sent, got {name!r}")
    _check_encodable(parameters | buffers | frozen)
    layers = _read_layers(model)
    if type(model["embedding"]) is not int or model["embedding"] != layers[-1]:
        raise SpecError(
            "model.embedding", f"expected the last of model.layers, {layers[-1]}, got {model['embedding']!r}"
        )
    _check_patterns_kept(model, parameters, frozen)
    classifier = _read_classifier(model, parameters, is_frozen=bool(frozen))
    tied = _read_tied(model, parameters | buffers | frozen)
    return Layout(parameters, layers, classifier, buffers, frozen, is_batchable=False, tied=tied)


def check_user_model(model: Mapping[str, Any]) -> None:
    """Raises SpecError unless `model` names a factory and its arguments, and has no unknown key. Shapes are not
    checked."""
    name = model.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError("model.name", f"expected package.module:factory, got {name!r}")
    check_keys(model, ("args", "frozen", *FOUND_KEYS, *FOUND_WHERE_THERE))
    check_patterns(model)
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


def _check_patterns_kept(model: Mapping[str, Any], parameters: Shapes, frozen: Shapes) -> None:
    """Raises SpecError if a parameter that `model.frozen` names is trained."""
    if not (patterns := check_patterns(model)):
        return
    for name in match_patterns(patterns, parameters | frozen):
        if name in parameters:
            raise SpecError("model.frozen", f"names {name!r}, which is in model.parameters: it was found without this")


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


def _read_tied(model: Mapping[str, Any], known: Shapes) -> dict[str, str]:
    tied = model.get("tied", {})
    if not isinstance(tied, Mapping):
        raise SpecError("model.tied", f"expected a name for each further name, got {tied!r}")
    for name, first in tied.items():
        if not isinstance(name, str) or name in known or not isinstance(first, str) or first not in known:
            raise SpecError("model.tied", f"expected further names of arrays that are known, got {name!r}: {first!r}")
    _check_encodable({name: known[first] for name, first in tied.items()})
    return dict(tied)


def _read_classifier(model: Mapping[str, Any], parameters: Shapes, *, is_frozen: bool) -> tuple[str, ...]:
    names = model["classifier"]
    is_list = isinstance(names, list | tuple) and (names or is_frozen)
    if not is_list or len(set(map(str, names))) != len(names):
        raise SpecError("model.classifier", f"expected a list of names, each once, got {names!r}")
    for name in names:
        if name not in parameters:
            raise SpecError("model.classifier", f"expected names of model.parameters, got {name!r}")
    return tuple(names)
