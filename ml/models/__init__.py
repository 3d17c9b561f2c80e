"""Models by the name they have in genesis. Names and shapes of parameters are `ml.specs.architectures`' (a test)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ml.models.base import Model, dump_parameters, load_parameters
from ml.models.cnn import CnnMnist
from ml.models.mlp import Mlp
from ml.payload import Array
from ml.specs.architectures import get_mlp_hidden, validate_model

__all__ = ["Model", "build_model", "initial_parameters", "dump_parameters", "load_parameters"]


def build_model(model: Mapping[str, Any], input_shape: Sequence[int], num_classes: int) -> Model:
    """The module of genesis's `model`, its parameters drawn from torch's generator. Raises SpecError."""
    shape = tuple(input_shape)
    validate_model(model, shape)
    if model["name"] == "mlp":
        return Mlp(math.prod(shape), get_mlp_hidden(model), num_classes)
    return CnnMnist(num_classes)


def initial_parameters(
    model: Mapping[str, Any], input_shape: Sequence[int], num_classes: int, seed: int
) -> dict[str, Array]:
    """The parameters that training starts from, by name, float32; torch's own generator is left as it was.

    They are drawn once, when a federation is made, and travel as a blob: another torch may draw others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return dump_parameters(build_model(model, input_shape, num_classes))
