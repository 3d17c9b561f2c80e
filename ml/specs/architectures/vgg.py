"""`vgg11`, UA-PDFL's, with torchvision's names for its convolutions: `features.N`.

Simonyan, Zisserman, *Very Deep Convolutional Networks for Large-Scale Image Recognition*, 2015.

    {name: vgg11, batch_norm: false, classifier: single}

The embedding is the 512 of the last maps' average, which on 32x32 is the last map itself. `classifier: 4096` has three
layers (classifier.0, .3, .6) with dropout between them, as in torchvision, but on 512 inputs: h has 18,923,530
parameters for 10 classes, and `single` 5,130. g has 9,220,480 and with batch norm 9,225,984. Any number of channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.specs.architectures.layout import Layout, Shape, Shapes, check_size, conv, get_choice, linear, norm, statistics

# The widths of the convolutions, max-pool after each group.
GROUPS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
CLASSIFIER_WIDTH = 4096


def get_batch_norm(model: Mapping[str, Any]) -> bool:
    """Says whether the model has batch norm. Raises SpecError."""
    batch_norm: bool = get_choice(model, "batch_norm", (False, True))
    return batch_norm


def has_wide_classifier(model: Mapping[str, Any]) -> bool:
    """Says whether the classifier is the one of three layers. Raises SpecError."""
    return bool(get_choice(model, "classifier", ("single", CLASSIFIER_WIDTH)) == CLASSIFIER_WIDTH)


def describe_vgg11(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    has_norm, is_wide = get_batch_norm(model), has_wide_classifier(model)
    check_size("vgg11", input_shape, 32)
    parameters: Shapes = {}
    buffers: Shapes = {}
    inputs, module = input_shape[0], 0
    for group in GROUPS:
        for width in group:
            parameters |= conv(f"features.{module}", inputs, width, 3)
            if has_norm:
                parameters |= norm(f"features.{module + 1}", width)
                buffers |= statistics(f"features.{module + 1}", width)
            inputs = width
            module += 3 if has_norm else 2  # and its ReLU
        module += 1  # the max-pool
    head = _describe_classifier(inputs, num_classes) if is_wide else linear("classifier", inputs, num_classes)
    return Layout(
        parameters | head,
        tuple(group[-1] for group in GROUPS),
        tuple(head),
        buffers,
        stem=("features.0.weight", "features.0.bias"),
        is_batchable=not has_norm and not is_wide,
        has_dropout=is_wide and not has_norm,
        slot=CLASSIFIER_WIDTH if is_wide else 0,
    )


def _describe_classifier(inputs: int, num_classes: int) -> Shapes:
    shapes = linear("classifier.0", inputs, CLASSIFIER_WIDTH)
    shapes |= linear("classifier.3", CLASSIFIER_WIDTH, CLASSIFIER_WIDTH)
    return shapes | linear("classifier.6", CLASSIFIER_WIDTH, num_classes)
