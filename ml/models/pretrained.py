"""Pretrained weights: a model starts from a published state dict in a local file, torchvision's `resnet18.pth` or a
`.safetensors` (INTERFACES §6).

Arrays that match by name and shape are loaded. The classifier, and a stem for another number of channels or size of
kernel, keep their drawn values where the file's differ, each as a whole. All other arrays have to be in the file and to
match. For `head_256` the file is its encoder's. `num_batches_tracked` is ignored.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ml.errors import SpecError, show_line, suggest
from ml.payload import Arrays
from ml.specs.architectures import Layout, Shape, get_layout

_COUNTER = "num_batches_tracked"
_CONSTANTS = ("mean", "std")  # constants of each channel, which a file may have beside its weights
_UNREADABLE = (
    *(pickle.UnpicklingError, struct.error, OSError, EOFError, RuntimeError, MemoryError),
    *(LookupError, ValueError, TypeError, AttributeError, AssertionError, ArithmeticError),
)


@dataclass(frozen=True, slots=True, eq=False)
class Pretrained:
    """The arrays that a file has for a model, float32 by the model's names. `left` are the names of the model that keep
    their drawn values, `unused` the names of the file that match nothing in the model."""

    path: Path
    arrays: Arrays
    left: tuple[str, ...]
    unused: tuple[str, ...]

    def describe(self) -> str:
        """Describes it in one line for people."""
        parts = [f"{self.path}: took {len(self.arrays)} arrays"]
        if self.left:
            parts.append(f"drew anew {', '.join(self.left)}")
        if self.unused:
            parts.append(f"did not use {', '.join(self.unused)}")
        return "; ".join(parts)


def load_pretrained(path: Path, model: Mapping[str, Any], input_shape: Sequence[int], num_classes: int) -> Pretrained:
    """Loads the arrays that `path` has for genesis' `model`. Raises SpecError at "pretrained", naming the file and the
    array."""
    layout = get_layout(model, tuple(input_shape), num_classes)
    return match_pretrained(path, _read_file(path), str(model["name"]), layout)


def read_constants(path: Path) -> dict[str, list[float]] | None:
    """Returns the `mean` and the `std` of each channel that the weights in `path` were trained with; None where it
    names none. Raises SpecError.

    A model file of fednode has them in its metadata, as "fednode.input". Any .safetensors may have `mean` and `std`
    there as JSON, and any file arrays of these names.
    """
    tensors = _read_file(path)
    told: dict[str, Any] = {name: tensors[name].tolist() for name in _CONSTANTS if name in tensors}
    if not told and path.suffix == ".safetensors":
        told = _read_card(path)
    if not told:
        return None
    for name in _CONSTANTS:
        values = told.get(name)
        if not isinstance(values, list) or not values or not all(_is_constant(value, name) for value in values):
            raise _fail(path, f"expected a {name} for each channel, got {values!r}")
    return {name: [float(value) for value in told[name]] for name in _CONSTANTS}


def _is_constant(value: object, name: str) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return is_number and (name == "mean" or float(value) > 0)  # type: ignore[arg-type]


def _read_card(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        card = file.metadata() or {}
    try:
        if "fednode.input" in card:
            told = json.loads(card["fednode.input"])
        else:
            told = {name: json.loads(card[name]) for name in _CONSTANTS if name in card}
    except ValueError as error:
        raise _fail(path, f"its metadata is no JSON: {error}") from error
    return {name: told[name] for name in _CONSTANTS if name in told} if isinstance(told, dict) else {}


def match_pretrained(path: Path, tensors: Mapping[str, Tensor], model_name: str, layout: Layout) -> Pretrained:
    """Matches a file's tensors to a model's arrays. Raises SpecError."""
    known = {**layout.parameters, **layout.buffers, **layout.frozen}
    prefix = "" if not layout.features or any(name in known for name in tensors) else "encoder."
    given = {
        prefix + name: tensor
        for name, tensor in tensors.items()
        if name.rpartition(".")[2] != _COUNTER and (name not in _CONSTANTS or name in known)
    }
    targets = {name: shape for name, shape in known.items() if name.startswith(prefix)}
    if not any(name in targets for name in given):
        names = ", ".join(sorted(given)[:4]) or "none"
        raise _fail(path, f"has no array of {model_name}: expected names such as {next(iter(targets))}, got {names}, …")
    replaceable = _get_replaceable(layout, prefix)
    left = {name for group in replaceable if not _fits(group, targets, given) for name in group}
    _check_missing(path, targets, given, left)
    unused = []
    for name in given:
        if name in left or (name not in targets and name.startswith(_get_classifier_prefixes(layout, prefix))):
            unused.append(name.removeprefix(prefix))
        elif name not in targets:
            raise _fail(path, f"{name.removeprefix(prefix)!r} is not of {model_name}: {suggest(name, targets)}")
    taken = {
        name: _read_tensor(path, name.removeprefix(prefix), given[name], shape)
        for name, shape in targets.items()
        if name not in left
    }
    left |= known.keys() - targets.keys()
    return Pretrained(path, taken, tuple(name for name in known if name in left), tuple(sorted(unused)))


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise _fail(path, "expected a .safetensors, .pt or .pth file")
    if not path.is_file():
        raise _fail(path, "no such file")
    try:
        state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        if isinstance(error, pickle.UnpicklingError):  # torch's text says how to run the pickle anyway
            reason = "expected tensors and nothing else; none of it was run"
        raise _fail(path, f"cannot be read as {path.suffix} ({type(error).__name__}: {reason})") from error
    if not isinstance(state, Mapping):
        raise _fail(path, f"expected a state dict, names with a tensor each, got {type(state).__name__}")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise _fail(path, f"expected names with a tensor each, got {name!r}: {type(tensor).__name__}")
    return dict(state)


def _read_torch(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about pickles of another protocol
        return torch.load(path, map_location="cpu", weights_only=True)  # loads only tensors: code is refused


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _read_tensor(path: Path, name: str, tensor: Tensor, shape: Shape) -> Any:
    if tuple(tensor.shape) != shape:
        raise _fail(path, f"{name!r}: expected shape {list(shape)}, got {list(tensor.shape)}")
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        raise _fail(path, f"{name!r}: expected floating-point numbers, got {tensor.dtype}")
    values = tensor.detach().to(torch.float32)
    if not bool(values.isfinite().all()):
        raise _fail(path, f"{name!r}: expected finite numbers only")
    return values.numpy().copy()


def _get_replaceable(layout: Layout, prefix: str) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of names that may differ from the file's."""
    return () if prefix else (layout.classifier, layout.stem)


def _get_classifier_prefixes(layout: Layout, prefix: str) -> tuple[str, ...]:
    """Returns the prefixes of the file's own classifier, which may have other layers than the model's."""
    if prefix:
        return (f"{prefix}fc.",)
    first = {name: name.partition(".")[0] for name in (*layout.parameters, *layout.frozen)}
    in_g = {module for name, module in first.items() if name not in layout.classifier}
    return tuple(f"{module}." for module in {first[name] for name in layout.classifier} - in_g)


def _fits(group: Sequence[str], targets: Mapping[str, Shape], given: Mapping[str, Tensor]) -> bool:
    return all(name in given and tuple(given[name].shape) == targets[name] for name in group)


def _check_missing(path: Path, targets: Mapping[str, Shape], given: Mapping[str, Tensor], left: set[str]) -> None:
    missing = [name for name in targets if name not in given and name not in left]
    if missing:
        raise _fail(path, f"expected {len(missing)} more arrays, {missing[0]!r} first, which are missing")


def _fail(path: Path, message: str) -> SpecError:
    return SpecError("pretrained", show_line(f"{path}: {message}"))
