"""`cnn_mnist`: the network of DFPL's MNIST and FMNIST runs, which is FedProto's (ALGORITHMS §6). 21,840 parameters.

The paper does not describe it; it is known by its size, since 20 x 21,840 is the 4.37e5 of its table II.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ml.models.base import Model


class CnnMnist(Model):
    """Takes [B, 1, 28, 28]; the embedding is the 50 of fc1 after ReLU and before dropout."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv2(x), 0.5, self.training), 2))
        return F.relu(self.fc1(x.flatten(1)))

    def classify(self, z_BD: Tensor) -> Tensor:
        logits: Tensor = self.fc2(F.dropout(z_BD, 0.5, self.training))
        return logits
