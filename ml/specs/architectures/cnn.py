"""`cnn_mnist`, DFPL's network for MNIST and FMNIST, and `cnn_cifar`, UA-PDFL's small one.

    cnn_mnist  {name: cnn_mnist}  conv1, conv2, fc1 (the embedding: 50 after ReLU), fc2; 21,840 parameters
    cnn_cifar  {name: cnn_cifar}  conv1, conv2 (the embedding: its 64 maps), fc1, fc2; any size from 16x16 on

On CIFAR-10's 3x32x32 cnn_cifar embeds in 1,600 and has 878,538 parameters, 53,696 in g and 824,842 in h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.errors import SpecError
from ml.specs.architectures.layout import Layout, Shape, check_size, conv, linear

CIFAR_HIDDEN = 512


def describe_cnn_mnist(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    if input_shape != (1, 28, 28):
        raise SpecError("input.shape", f"cnn_mnist expects [1, 28, 28], got {list(input_shape)}")
    head = linear("fc2", 50, num_classes)
    body = conv("conv1", 1, 10, 5) | conv("conv2", 10, 20, 5) | linear("fc1", 320, 50)
    return Layout(body | head, (10, 20, 50), tuple(head), is_batchable=False, has_dropout=True)


def describe_cnn_cifar(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    check_size("cnn_cifar", input_shape, 16)
    width = get_cnn_cifar_width(input_shape)
    body = conv("conv1", input_shape[0], 32, 5) | conv("conv2", 32, 64, 5)
    head = linear("fc1", width, CIFAR_HIDDEN) | linear("fc2", CIFAR_HIDDEN, num_classes)
    return Layout(body | head, (32, width), tuple(head), slot=CIFAR_HIDDEN)


def get_cnn_cifar_width(input_shape: Shape) -> int:
    """Returns how many numbers the 64 maps have that two convolutions of 5x5, each halved, make of an image."""
    height, width = (((pixels - 4) // 2 - 4) // 2 for pixels in input_shape[1:])
    return 64 * height * width
