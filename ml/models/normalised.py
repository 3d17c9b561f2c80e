"""A model with the constants that normalise its samples, so that it takes samples before normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ml.models.base import Model


class Normalised(nn.Module):
    """A model with its normalisation: it turns samples x float32 [N, C, H, W], pixels in 0..1, or features [N, F, 1,
    1], into logits; for a regression into targets at the run's scale. `model` is the network alone. If it `fills` empty
    cells, NaN stands for one, and is replaced by the mean."""

    def __init__(self, model: Model, mean: Sequence[float], std: Sequence[float], *, fills: bool = False) -> None:
        super().__init__()
        self.model, self.fills = model, fills
        self.mean_1C11: Tensor
        self.std_1C11: Tensor
        self.register_buffer("mean_1C11", torch.tensor(mean, dtype=torch.float32).reshape(1, -1, 1, 1))
        self.register_buffer("std_1C11", torch.tensor(std, dtype=torch.float32).reshape(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.fills:
            x = torch.where(torch.isnan(x), self.mean_1C11, x)
        logits_BC: Tensor = self.model((x - self.mean_1C11) / self.std_1C11)
        return logits_BC
