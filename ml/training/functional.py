"""A method's loss as a function of weights, which torch.func can differentiate and run over many at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ml.models.base import Model

if TYPE_CHECKING:
    from ml.training.loop import Batch, ComputeLoss, Tensors

LossOfWeights = Callable[[dict[str, Tensor], "Batch", "Tensors"], Tensor]

PREFIX = "model."  # before the names of weights


class _Loss(nn.Module):
    """The loss as a module's call, which is what torch.func can put other weights into."""

    def __init__(self, model: Model, compute_loss: ComputeLoss) -> None:
        super().__init__()
        self.model = model
        self.compute_loss = compute_loss

    def forward(self, batch: Batch, context: Tensors) -> Tensor:
        return self.compute_loss(self.model, batch, context)


def make_loss_of_weights(
    model: Model, compute_loss: ComputeLoss, autocast: AbstractContextManager[Any]
) -> LossOfWeights:
    """The loss by weights that are given by name, `PREFIX` in front; what is left out is the model's."""
    loss = _Loss(model, compute_loss)

    def compute(weights: dict[str, Tensor], batch: Batch, context: Tensors) -> Tensor:
        with autocast:
            value: Tensor = torch.func.functional_call(loss, weights, (batch, context))
        return value

    return compute
