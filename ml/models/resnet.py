"""ResNet18 with torchvision's names: `resnet18`, `resnet18_cifar`, `resnet18_nobn`, and `head_256`'s encoder
(ALGORITHMS §6).

He et al., *Deep Residual Learning for Image Recognition*, 2016. Initialised as torchvision does: convolutions normal
with fan-out, batch norm at 1 and 0; where convolutions have a bias because batch norm is missing, it starts at 0.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ml.models.base import Model, average_maps
from ml.models.batch_norm import BatchNorm2d
from ml.specs.architectures.resnet import BLOCKS, WIDTHS


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int, *, has_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=not has_norm)
        self.bn1 = _make_norm(width, has_norm)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=not has_norm)
        self.bn2 = _make_norm(width, has_norm)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != width:
            shortcut = nn.Conv2d(inputs, width, 1, stride, bias=not has_norm)
            self.downsample = nn.Sequential(shortcut, _make_norm(width, has_norm))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18Body(nn.Module):
    """A ResNet18 without fc. `stem` is 7x7 at stride 2 with a max-pool after it, or 3x3 at stride 1 without."""

    def __init__(self, channels: int, *, stem: str = "7x7", has_norm: bool = True) -> None:
        super().__init__()
        self._has_pool = stem == "7x7"
        kernel, stride, padding = (7, 2, 3) if self._has_pool else (3, 1, 1)
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], kernel, stride, padding, bias=not has_norm)
        self.bn1 = _make_norm(WIDTHS[0], has_norm)
        inputs = WIDTHS[0]
        for number, width in enumerate(WIDTHS, start=1):
            blocks = []
            for i in range(BLOCKS):
                blocks.append(BasicBlock(inputs, width, 2 if number > 1 and i == 0 else 1, has_norm=has_norm))
                inputs = width
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        initialise_convolutions(self)

    def run_stages(self, x: Tensor) -> list[Tensor]:
        """Returns the maps of the four stages."""
        x = F.relu(self.bn1(self.conv1(x)))
        if self._has_pool:
            x = F.max_pool2d(x, 3, 2, 1)
        stages = []
        for number in range(1, len(WIDTHS) + 1):
            x = self.get_submodule(f"layer{number}")(x)
            stages.append(x)
        return stages

    def average(self, x: Tensor) -> Tensor:
        """Returns the global average of the last maps, [B, 512]."""
        return average_maps(self.run_stages(x)[-1])


class ResNet18(Model, ResNet18Body):
    """A ResNet18 whose embedding is the global average, 512."""

    def __init__(self, channels: int, num_classes: int, *, stem: str = "7x7", has_norm: bool = True) -> None:
        ResNet18Body.__init__(self, channels, stem=stem, has_norm=has_norm)
        self.fc = nn.Linear(WIDTHS[-1], num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.average(x)

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        return [average_maps(maps) for maps in self.run_stages(x)]

    def classify(self, z_BD: Tensor) -> Tensor:
        logits: Tensor = self.fc(z_BD)
        return logits


def initialise_convolutions(module: nn.Module) -> None:
    """Initialises convolutions as torchvision does: He's normal distribution with fan-out, biases at 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def _make_norm(width: int, has_norm: bool) -> nn.Module:
    return BatchNorm2d(width) if has_norm else nn.Identity()
