"""The layout of a model, as an architecture's file describes it, and the helpers of these files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ml.errors import SpecError, suggest

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

MAX_WIDTH = 1 << 16


@dataclass(frozen=True, slots=True)
class Layout:
    """Describes one model for one input shape and one number of classes, before it is built; shapes are in
    `state_dict()` order.

    `parameters` are trained, `buffers` are the running statistics of batch norm, `frozen` is all that is neither
    trained nor sent, and `tied` has the further names of arrays that have one already. `layers` are the widths of the
    intermediate representations, the embedding's last. `classifier` names the trained parameters of h, all others are
    g's; `stem` those that depend on the input's channels. `is_batchable` says that the model has no dropout or batch
    norm to train, so that each sample is computed independently of others; `has_dropout` that it has dropout and no
    batch norm. `features` is how many numbers a frozen encoder computes for a sample, 0 if there is none. `slot` is the
    width of the last Linear layer's input, 0 if that is the embedding.
    """

    parameters: Mapping[str, Shape]
    layers: tuple[int, ...]
    classifier: tuple[str, ...]
    buffers: Mapping[str, Shape] = field(default_factory=dict)
    frozen: Mapping[str, Shape] = field(default_factory=dict)
    stem: tuple[str, ...] = ()
    is_batchable: bool = True
    has_dropout: bool = False
    features: int = 0
    slot: int = 0
    tied: Mapping[str, str] = field(default_factory=dict)

    @property
    def slot_dim(self) -> int:
        """The width of the last Linear layer's input."""
        return self.slot or self.layers[-1]


Describe = Callable[[Mapping[str, Any], Shape, int], Layout]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Describes one name that genesis' `model` may have: the keys it takes besides, and the function that makes its
    layout.

    `describe(model, input_shape, num_classes)` raises SpecError for a setting or an input it cannot have. `native` is
    the (channels, height, width) to which images are scaled if the model does not take them as they are.
    """

    describe: Describe
    keys: tuple[str, ...] = ()
    native: Shape = (3, 32, 32)


def get_choice(model: Mapping[str, Any], key: str, choices: Sequence[Any]) -> Any:
    """Returns `model[key]`, one of `choices`, by default the first. Raises SpecError."""
    value = model.get(key, choices[0])
    if value not in choices or type(value) is not type(choices[choices.index(value)]):
        words = ", ".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices)
        raise SpecError(f"model.{key}", f"expected one of {words}, got {value!r}")
    return value


def check_keys(model: Mapping[str, Any], keys: Collection[str]) -> None:
    """Raises SpecError for a key of `model` that is neither `name` nor one of `keys`."""
    for key in model:
        if key != "name" and key not in keys:
            raise SpecError(f"model.{key}", f"unknown key: {suggest(key, keys)}")


def check_size(name: str, input_shape: Shape, smallest: int) -> None:
    """Raises SpecError unless images are at least `smallest` pixels high and wide."""
    if min(input_shape[1:]) < smallest:
        raise SpecError(
            "input.shape", f"{name} expects images of at least {smallest}x{smallest}, got {list(input_shape)}"
        )


def linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def conv(name: str, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> Shapes:
    weight = {f"{name}.weight": (outputs, inputs, kernel, kernel)}
    return weight | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, width: int) -> Shapes:
    """Returns the parameters of a batch norm."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def statistics(name: str, width: int) -> Shapes:
    """Returns the buffers of a batch norm; `num_batches_tracked` is part of nothing."""
    return {f"{name}.running_mean": (width,), f"{name}.running_var": (width,)}
