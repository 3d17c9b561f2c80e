"""A model that is a Lightning module, or, where Lightning is not installed, has the two methods that matter."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

try:
    from lightning import LightningModule as Base
except ImportError:
    Base = nn.Module


class Lit(Base):  # type: ignore[misc]  # of a package that need not be there
    """One hidden layer; `embed` and `classify` are what fednode needs besides."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(num_inputs, 24)
        self.head = nn.Linear(24, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x.flatten(1)))

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.head(z)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.classify(self.embed(x)), y)
        if hasattr(self, "log"):
            self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def make(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Lit(math.prod(input_shape), num_classes)
