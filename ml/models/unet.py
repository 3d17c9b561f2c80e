"""`unet2`: FedEDS's encryptor, an image to an image of the same shape (ALGORITHMS §4.3, §6).

Ronneberger et al., *U-Net: Convolutional Networks for Biomedical Image Segmentation*, 2015, with two levels. It is a
method's own network and no classifier, so genesis' `model` cannot name it. With a width of 64 and three channels it
has 1,865,539 parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.errors import SpecError
from ml.models.batch_norm import BatchNorm2d

OUTPUTS = ("linear", "sigmoid", "tanh")


class UNet2(nn.Module):
    """A U-Net with two levels that turns x_BCHW into x'_BCHW; H and W are multiples of 4.

    `output` is the activation of the last layer. In train mode batch norm makes x' depend on the rest of the batch: so
    images to be sent are made in eval mode. Raises SpecError for an impossible shape or activation.
    """

    def __init__(self, input_shape: Sequence[int], width: int = 64, output: str = "linear") -> None:
        super().__init__()
        channels, height, width_px = input_shape
        if height % 4 or width_px % 4:
            raise SpecError("input.shape", f"unet2 expects height and width divisible by 4, got {list(input_shape)}")
        if output not in OUTPUTS:
            raise SpecError("unet_out", f"expected one of {', '.join(OUTPUTS)}, got {output!r}")
        self._output = output
        self.enter = _DoubleConv(channels, width)
        self.down1 = _DoubleConv(width, 2 * width)
        self.down2 = _DoubleConv(2 * width, 4 * width)
        self.rise2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up2 = _DoubleConv(4 * width, 2 * width)
        self.rise1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up1 = _DoubleConv(2 * width, width)
        self.leave = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        whole = self.enter(x)
        half = self.down1(F.max_pool2d(whole, 2))
        quarter = self.down2(F.max_pool2d(half, 2))
        half = self.up2(torch.cat([half, self.rise2(quarter)], dim=1))
        whole = self.up1(torch.cat([whole, self.rise1(half)], dim=1))
        y: Tensor = self.leave(whole)
        if self._output == "sigmoid":
            return torch.sigmoid(y)
        return torch.tanh(y) if self._output == "tanh" else y


class _DoubleConv(nn.Sequential):
    """3x3 convolution, batch norm, ReLU, twice."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            BatchNorm2d(outputs),
            nn.ReLU(),
        )
