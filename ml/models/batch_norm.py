"""Batch norm as federated learning needs it: running statistics that can be averaged, and no counter beside them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BatchNorm2d(nn.Module):
    """torch's BatchNorm2d without `num_batches_tracked`, which also accepts a batch of one value per channel.

    A last partial batch of one image whose maps have shrunk to one pixel has no variance: torch refuses it. This class
    normalises it by the running statistics, and does not update them.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        by_batch = self.training and x_BCHW.numel() > x_BCHW.shape[1]
        return F.batch_norm(x_BCHW, self.running_mean, self.running_var, self.weight, self.bias, by_batch, 0.1, 1e-5)
