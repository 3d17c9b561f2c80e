"""An example of a model: a factory of a network that is classify(embed(x))."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """One hidden layer."""

    def __init__(self, num_inputs: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.body = nn.Linear(num_inputs, width)
        self.head = nn.Linear(width, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x.flatten(1)))

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.head(z)
        return logits


def make(input_shape: tuple[int, ...], num_classes: int, width: int = 24) -> nn.Module:
    return Tiny(math.prod(input_shape), num_classes, width)
