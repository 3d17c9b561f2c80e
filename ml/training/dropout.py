"""Dropout of many clients in one vmapped pass, with the numbers that each draws if it is trained alone.

Each client draws from torch's own generator, which is seeded for it. Computing the loss once without dropping anything
shows what a step's loss drops, and of which shape. Then the masks of a step are drawn client by client, each by its own
generator and in the order of the loss, and the pass multiplies by them: a mask is the result of dropout on ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ml.models.base import Model
from ml.training.loop import Autocast, Batch, ComputeLoss, Tensors

PREFIX = "dropout "  # before the numbers of masks in a batch's `extra`
_DROPPING = (F.dropout, F.dropout2d)


@dataclass(frozen=True, slots=True, eq=False)
class Dropped:
    """Describes one dropout of a loss: its function, its probability, and ones in the shape of its noise."""

    function: Callable[..., Tensor]
    p: float
    ones: Tensor

    def draw(self) -> Tensor:
        """Draws a mask from torch's own generator: 0 if a number is dropped, else the factor it is multiplied by."""
        return self.function(self.ones, self.p, True)


class _Dropping(TorchFunctionMode):
    """Replaces dropout in training, within its context, by `drop(function, x, p)`."""

    def __init__(self, drop: Callable[[Callable[..., Tensor], Tensor, float], Tensor]) -> None:
        super().__init__()
        self._drop = drop

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _DROPPING:
            return func(*args, **(kwargs or {}))

        def drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
            return self._drop(func, x, p) if training and p else x

        return drop(*args, **(kwargs or {}))


@torch.no_grad()
def find_dropped(
    model: Model, compute_loss: ComputeLoss, batch: Batch, context: Tensors, autocast: Autocast
) -> list[Dropped]:
    """Lists the dropouts of a step along the loss of this batch, in order. Nothing is drawn."""
    found = []

    def note(function: Callable[..., Tensor], x: Tensor, p: float) -> Tensor:
        noise = x[:, :, :1, :1] if function is F.dropout2d else x  # one number for each map
        found.append(Dropped(function, p, torch.ones_like(noise)))
        return x

    with autocast, _Dropping(note):
        compute_loss(model, batch, context)
    return found


def use_masks(compute_loss: ComputeLoss) -> ComputeLoss:
    """Returns the loss of a batch that comes with its masks, as `name_masks` names them, or with none."""

    def compute(model: Model, batch: Batch, context: Tensors) -> Tensor:
        names = [name for name in batch.extra if name.startswith(PREFIX)]
        if not names:
            return compute_loss(model, batch, context)
        masks = (batch.extra[name] for name in names)
        rest = {name: rows for name, rows in batch.extra.items() if name not in names}
        with _Dropping(lambda _, x, __: x * next(masks)):
            return compute_loss(model, batch._replace(extra=rest), context)

    return compute


def name_masks(masks: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{PREFIX}{i}": mask for i, mask in enumerate(masks)}
