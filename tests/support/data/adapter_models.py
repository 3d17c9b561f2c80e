"""Networks of which a part is frozen or has two names: an encoder with adapters on it, and layers with one weight."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.payload import ArraySchema


class Adapted(nn.Module):
    """A frozen linear layer, and beside it the product of two thin ones, which train (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.base(x) + self.up(self.down(x)))


class Adapters(nn.Module):
    """An encoder of two adapted layers with a batch norm that is frozen, too, and a head that trains."""

    def __init__(self, inputs: int, width: int, rank: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs).requires_grad_(False)
        self.first = Adapted(nn.Linear(inputs, width), rank)
        self.second = Adapted(nn.Linear(width, width), rank)
        self.head = nn.Linear(width, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        z: Tensor = self.second(self.first(self.norm(x.flatten(1))))
        return z

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.head(z)
        return logits


class Tied(nn.Module):
    """A network that applies the same weight, under two names, twice to its samples."""

    def __init__(self, inputs: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.begin = nn.Linear(inputs, width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.head = nn.Linear(width, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        z: Tensor = F.relu(self.second(F.relu(self.first(F.relu(self.begin(x.flatten(1)))))))
        return z

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.head(z)
        return logits


def make_adapters(
    input_shape: tuple[int, ...], num_classes: int, width: int = 64, rank: int = 2, whole: bool = False
) -> nn.Module:
    """Makes an encoder with adapters; with `whole`, all of it trains."""
    net = Adapters(torch.Size(input_shape).numel(), width, rank, num_classes)
    return net.requires_grad_(True) if whole else net


def make_tied(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Tied(torch.Size(input_shape).numel(), 16, num_classes)


def make_other_each_time(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Makes a network with a layer that is frozen every other time."""
    made.append(len(made))
    net = Tied(torch.Size(input_shape).numel(), 16, num_classes)
    net.begin.requires_grad_(len(made) % 2 == 0)
    return net


made: list[int] = []


def count_numbers(schema: ArraySchema) -> int:
    return sum(math.prod(int(size) for size in array.shape) for array in schema.arrays.values())
