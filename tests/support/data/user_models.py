"""Networks as a user would bring them: one that splits into g and h, and the many ways in which others do not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Small(nn.Module):
    """A convolution with batch norm, averaged; then a linear layer. It does not depend on fednode."""

    def __init__(self, channels: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.fc = nn.Linear(width, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x))).mean((2, 3)) * self.scale

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.fc(z)
        return logits


class Layered(Small):
    """A network that lists its layers, and has a forward of its own, which fednode does not use."""

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        return [self.conv(x).mean((2, 3)), self.embed(x)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), 1)


def make_small(input_shape: tuple[int, ...], num_classes: int, width: int = 4) -> nn.Module:
    return Small(input_shape[0], width, num_classes)


def make_layered(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Layered(input_shape[0], 4, num_classes)


class Normed(nn.Module):
    """A linear layer whose outputs a batch norm normalises one by one; then another linear layer."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, keeps_statistics: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(torch.Size(input_shape).numel(), 4)
        self.norm = nn.BatchNorm1d(4, track_running_stats=keeps_statistics)
        self.last = nn.Linear(4, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.first(x.flatten(1))))

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.last(z)
        return logits


class Recurrent(nn.Module):
    """A network that reads an image row by row."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(input_shape[2], 4, batch_first=True)
        self.last = nn.Linear(4, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        z: Tensor = self.gru(x[:, 0])[0][:, -1]
        return z

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.last(z)
        return logits


def make_masked(input_shape: tuple[int, ...], num_classes: int, *, is_sent: bool = False) -> nn.Module:
    """Makes a network with a constant of infinite numbers, as masks of attention have them."""
    net = Small(input_shape[0], 4, num_classes)
    net.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1), persistent=is_sent)
    return net


# ---- what is refused

not_callable = 3


def make_nothing(input_shape: tuple[int, ...], num_classes: int) -> str:
    return "a model"


def make_broken(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    raise KeyError("no such thing")


def make_whole(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


def make_double(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Small(input_shape[0], 4, num_classes).double()


def make_half_buffer(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    net = Small(input_shape[0], 4, num_classes)
    net.register_buffer("table", torch.zeros(2, dtype=torch.float16))
    return net


def make_frozen(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Small(input_shape[0], 4, num_classes).requires_grad_(False)


def make_growing(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Makes a network that is wider each time."""
    make_growing.width += 1  # type: ignore[attr-defined]
    return Small(input_shape[0], make_growing.width, num_classes)  # type: ignore[attr-defined]


make_growing.width = 4  # type: ignore[attr-defined]


class Maps(Small):
    """A network whose embedding is a map, and not a vector."""

    def embed(self, x: Tensor) -> Tensor:
        maps: Tensor = self.norm(self.conv(x)) * self.scale[:, None, None]
        return maps


class TooFew(Small):
    """A network with one class too few."""

    def classify(self, z: Tensor) -> Tensor:
        return super().classify(z)[:, 1:]


class Shared(Small):
    """A network whose classifier depends on the scale of the embedding."""

    def classify(self, z: Tensor) -> Tensor:
        return super().classify(z / self.scale)


class Spare(Small):
    """A network with a layer that nothing uses."""

    def __init__(self, channels: int, width: int, num_classes: int) -> None:
        super().__init__(channels, width, num_classes)
        self.spare = nn.Linear(2, 2)


class Headless(nn.Module):
    """A network that is all classifier, without an embedding."""

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.fc(z)
        return logits


class Noisy(Small):
    """A network that draws noise in eval mode too."""

    def embed(self, x: Tensor) -> Tensor:
        return super().embed(x + torch.randn_like(x))


class InPlace(Small):
    """A network that changes the images it receives."""

    def embed(self, x: Tensor) -> Tensor:
        return super().embed(x.mul_(2))


class Misnamed(Small):
    """A network with a parameter whose name cannot be sent."""

    def __init__(self, channels: int, width: int, num_classes: int) -> None:
        super().__init__(channels, width, num_classes)
        self.fc = nn.Sequential()  # type: ignore[assignment]
        self.fc.add_module("head é", nn.Linear(width, num_classes))


class Astray(Layered):
    """A network whose last listed layer is not its embedding."""

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        return [self.embed(x), self.conv(x).mean((2, 3))]


def make_maps(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Maps(input_shape[0], 4, num_classes)


def make_too_few(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return TooFew(input_shape[0], 4, num_classes)


def make_shared(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Shared(input_shape[0], 4, num_classes)


def make_spare(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Spare(input_shape[0], 4, num_classes)


def make_headless(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Headless(torch.Size(input_shape).numel(), num_classes)


def make_noisy(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Noisy(input_shape[0], 4, num_classes)


def make_in_place(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return InPlace(input_shape[0], 4, num_classes)


def make_misnamed(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Misnamed(input_shape[0], 4, num_classes)


def make_astray(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Astray(input_shape[0], 4, num_classes)
