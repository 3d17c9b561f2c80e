"""Random flips and crops of a batch of images, on the device they lie on, for all samples at once.

flip        each image mirrored left to right with probability 1/2
crop        each image padded by 4 zeros on every side and cut to its size again, at a place of its own
flip_crop   both, as is usual for CIFAR
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4


def augment(x_BCHW: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Returns the batch with its images changed as `kind` says; `generator` is on the images' device."""
    if kind in ("flip", "flip_crop"):
        x_BCHW = _flip(x_BCHW, generator)
    if kind in ("crop", "flip_crop"):
        x_BCHW = _crop(x_BCHW, generator)
    return x_BCHW


def _flip(x_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    is_flipped_B = torch.rand(len(x_BCHW), generator=generator, device=x_BCHW.device) < 0.5
    return torch.where(is_flipped_B[:, None, None, None], x_BCHW.flip(3), x_BCHW)


def _crop(x_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    num, channels, height, width = x_BCHW.shape
    device = x_BCHW.device
    padded = F.pad(x_BCHW, (PADDING,) * 4)
    top_B, left_B = torch.randint(0, 2 * PADDING + 1, (2, num), generator=generator, device=device)
    rows_BH = top_B[:, None] + torch.arange(height, device=device)
    columns_BW = left_B[:, None] + torch.arange(width, device=device)
    samples_B, channels_C = torch.arange(num, device=device), torch.arange(channels, device=device)
    return padded[
        samples_B[:, None, None, None],
        channels_C[None, :, None, None],
        rows_BH[:, None, :, None],
        columns_BW[:, None, None, :],
    ]
