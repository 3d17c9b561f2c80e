"""A function of a model, such as a method's loss, as a function of weights, which torch.func can differentiate and run
over many models at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import nn

from ml.models.base import Model

Value = TypeVar("Value")

PREFIX = "model."  # before the names of weights


class _Call(nn.Module):
    """Wraps the function as a module's call, so that torch.func can replace the weights."""

    def __init__(self, model: Model, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(self.model, *arguments)


def make_function_of_weights(
    model: Model, function: Callable[..., Value], autocast: AbstractContextManager[Any] | None = None
) -> Callable[..., Value]:
    """Returns `function` of (model, ...) as a function of weights in place of the model. They are passed by name, with
    `PREFIX` in front; weights that are left out are the model's."""
    call, around = _Call(model, function), autocast or contextlib.nullcontext()

    def compute(weights: dict[str, Any], *arguments: Any) -> Value:
        with around:
            value: Value = torch.func.functional_call(call, weights, arguments)
        return value

    return compute
