"""`mlp`, for small inputs: flatten, fully connected layers with ReLU, classifier (ALGORITHMS §6).

The embedding is the last hidden layer; `linear` has none, and its embedding is the input. On 8x8 digits 64-64-32-10 has
6,570 parameters. Of `wide_deep`, for tables, the embedding has the input after the last hidden layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.models.base import Model


class Mlp(Model):
    """A network of hidden layers fc1, fc2, … and the classifier after them."""

    def __init__(self, num_inputs: int, hidden: Sequence[int], num_classes: int) -> None:
        super().__init__()
        widths = (num_inputs, *hidden, num_classes)
        layers = [nn.Linear(width, following) for width, following in pairwise(widths)]
        for number, layer in enumerate(layers, start=1):
            self.add_module(f"fc{number}", layer)
        self._hidden = tuple(layers[:-1])  # a tuple is not registered a second time
        self._classifier = (layers[-1],)

    def embed(self, x: Tensor) -> Tensor:
        z = x.flatten(1)
        for layer in self._hidden:
            z = F.relu(F.linear(z, layer.weight, layer.bias))  # calling a module takes as long as so small a product
        return z

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        layers = [x.flatten(1)]
        for layer in self._hidden:
            layers.append(F.relu(F.linear(layers[-1], layer.weight, layer.bias)))
        return layers[1:] or layers

    def classify(self, z_BD: Tensor) -> Tensor:
        (layer,) = self._classifier
        return F.linear(z_BD, layer.weight, layer.bias)


class WideDeep(Mlp):
    """A network with a linear path beside it (Cheng et al. 2016): its classifier takes the input, too. The classifier
    starts at zero, so that the first steps are those of logistic regression, and few rows hardly use more."""

    def __init__(self, num_inputs: int, hidden: Sequence[int], num_classes: int) -> None:
        super().__init__(num_inputs, hidden, num_classes)
        classifier = nn.Linear(hidden[-1] + num_inputs, num_classes)
        nn.init.zeros_(classifier.weight)
        nn.init.zeros_(classifier.bias)
        self.add_module(f"fc{len(hidden) + 1}", classifier)
        self._classifier = (classifier,)

    def embed(self, x: Tensor) -> Tensor:
        return torch.cat([super().embed(x), x.flatten(1)], 1)

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        *others, last = super().embed_layers(x)
        return [*others, torch.cat([last, x.flatten(1)], 1)]
