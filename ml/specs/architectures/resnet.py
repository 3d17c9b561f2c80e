"""ResNet18 in torchvision's layout, three ways, and MP-FedCL's head on a frozen one.

He et al., *Deep Residual Learning for Image Recognition*, 2016. Stages of 64, 128, 256 and 512, two blocks each; the
embedding is the 512 of the global average. Any number of channels.

    resnet18        {name: resnet18}                   7x7 stem and max-pool; 11,181,642 parameters for 10 classes
    resnet18_cifar  {name: resnet18_cifar}             3x3 stem, no max-pool: better on 32x32; 11,173,962
    resnet18_nobn   {name: resnet18_nobn, stem: 3x3}   FedEDS's: no batch norm, convolutions have a bias instead;
                                                       11,169,162, which is the paper's 11.17e6, or with a
                                                       `stem: 7x7` and its max-pool 11,176,842
    head_256        {name: head_256, normalize: true}  resnet18 without fc, frozen, under `encoder.`; fc1 (256, the
                                                       embedding), fc2; 133,898 parameters are trained
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.specs.architectures.layout import Layout, Shape, Shapes, check_size, conv, get_choice, linear, norm, statistics
from ml.specs.architectures.mlp import HEAD_WIDTH, describe_head, get_normalize

WIDTHS = (64, 128, 256, 512)
BLOCKS = 2
STEMS = ("3x3", "7x7")
_SMALLEST = {"3x3": 8, "7x7": 16}  # pixels; in smaller images whole stages would see a single one


def get_stem(model: Mapping[str, Any]) -> str:
    """Returns the stem of a ResNet18 by its model's name, or by its `stem` if it has one. Raises SpecError."""
    if model["name"] == "resnet18_nobn":
        stem: str = get_choice(model, "stem", STEMS)
        return stem
    return "3x3" if model["name"] == "resnet18_cifar" else "7x7"


def describe_resnet18(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    stem, has_norm = get_stem(model), model["name"] != "resnet18_nobn"
    check_size(model["name"], input_shape, _SMALLEST[stem])
    parameters, buffers = _describe_body(input_shape[0], int(stem[0]), has_norm)
    head = linear("fc", WIDTHS[-1], num_classes)
    stem_names = tuple(name for name in parameters if name.startswith("conv1."))
    return Layout(parameters | head, WIDTHS, tuple(head), buffers, stem=stem_names, is_batchable=not has_norm)


def describe_head_256(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    get_normalize(model)
    check_size("head_256", input_shape, _SMALLEST["7x7"])
    parameters, buffers = _describe_body(input_shape[0], 7, True)
    head = describe_head(num_classes)
    frozen = {f"encoder.{name}": shape for name, shape in (parameters | buffers).items()}
    return Layout(head, (HEAD_WIDTH,), tuple(head)[-2:], frozen=frozen, features=WIDTHS[-1])


def _describe_body(channels: int, kernel: int, has_norm: bool) -> tuple[Shapes, Shapes]:
    """Returns the parameters and the buffers of all but fc."""
    parameters: Shapes = {}
    buffers: Shapes = {}

    def add(conv_name: str, norm_name: str, inputs: int, outputs: int, kernel: int) -> None:
        parameters.update(conv(conv_name, inputs, outputs, kernel, bias=not has_norm))
        if has_norm:
            parameters.update(norm(norm_name, outputs))
            buffers.update(statistics(norm_name, outputs))

    add("conv1", "bn1", channels, WIDTHS[0], kernel)
    inputs = WIDTHS[0]
    for stage, width in enumerate(WIDTHS, start=1):
        for block in range(BLOCKS):
            at = f"layer{stage}.{block}"
            add(f"{at}.conv1", f"{at}.bn1", inputs, width, 3)
            add(f"{at}.conv2", f"{at}.bn2", width, width, 3)
            if inputs != width:
                add(f"{at}.downsample.0", f"{at}.downsample.1", inputs, width, 1)
            inputs = width
    return parameters, buffers
