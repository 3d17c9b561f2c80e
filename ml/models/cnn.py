"""`cnn_mnist`: the network of DFPL's MNIST and FMNIST runs, which is FedProto's, and `cnn_cifar`, UA-PDFL's small one
(ALGORITHMS §6).

DFPL does not describe its network; it is known by its size, since 20 x 21,840 is the 4.37e5 of its table II. UA-PDFL
says "two convolutional layers and two fully connected" and no widths; these are of the authors' earlier paper's kind.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ml.models.base import Model, average_maps


class CnnMnist(Model):
    """A CNN that takes [B, 1, 28, 28]; the embedding is the 50 outputs of fc1 after ReLU and before dropout."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return self._connect(self._convolve(self._begin(x)))

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        first = self._begin(x)
        second = self._convolve(first)
        return [average_maps(first), average_maps(second), self._connect(second)]

    def classify(self, z_BD: Tensor) -> Tensor:
        logits: Tensor = self.fc2(F.dropout(z_BD, 0.5, self.training))
        return logits

    def _begin(self, x: Tensor) -> Tensor:
        return F.relu(F.max_pool2d(self.conv1(x), 2))

    def _convolve(self, x: Tensor) -> Tensor:
        return F.relu(F.max_pool2d(F.dropout2d(self.conv2(x), 0.5, self.training), 2))

    def _connect(self, x: Tensor) -> Tensor:
        return F.relu(self.fc1(x.flatten(1)))


class CnnCifar(Model):
    """A CNN that takes [B, channels, H, W]; the embedding is the output of the convolutions, `width` numbers. h is all
    of the fully connected layers, as UA-PDFL splits its networks."""

    def __init__(self, channels: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = nn.Linear(width, 512)
        self.fc2 = nn.Linear(512, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return self._convolve(self._begin(x))

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        first = self._begin(x)
        return [average_maps(first), self._convolve(first)]

    def classify(self, z_BD: Tensor) -> Tensor:
        return self.leave_slot(self.enter_slot(z_BD))

    def enter_slot(self, z_BD: Tensor) -> Tensor:
        return F.relu(self.fc1(z_BD))

    def leave_slot(self, s_BS: Tensor) -> Tensor:
        logits: Tensor = self.fc2(s_BS)
        return logits

    def _begin(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.conv1(x)), 2)

    def _convolve(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
