"""`linear`, logistic or linear regression, `mlp`, for small inputs, `wide_deep`, for tables, and `mlp_mnist`, the
network of MP-FedCL for MNIST.

    linear     {name: linear}                      the classifier fc1 alone; the embedding is the input itself
    mlp        {name: mlp, hidden: [64, 32]}       fc1 ... fcL with ReLU, then the classifier fc{L+1}; the embedding is
                                                   the last hidden layer after its ReLU
    wide_deep  {name: wide_deep, hidden: [64]}     an mlp whose classifier takes the input, too, after the last hidden
                                                   layer (Cheng et al. 2016): logistic regression beside a network
    mlp_mnist  {name: mlp_mnist, normalize: true}  encoder.fc1, encoder.fc2 (512 each), fc1 (256, the embedding), fc2;
                                                   798,474 parameters on 28x28

All flatten whatever they are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ml.errors import SpecError
from ml.specs.architectures.layout import MAX_WIDTH, Layout, Shape, Shapes, get_choice, linear

MLP_HIDDEN = (64, 32)
WIDE_HIDDEN = (64,)
MAX_LAYERS = 8
HIDDEN = {"mlp": MLP_HIDDEN, "wide_deep": WIDE_HIDDEN}  # the defaults
ENCODER_WIDTH = 512
HEAD_WIDTH = 256


def get_mlp_hidden(model: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the widths of the hidden layers of an mlp or a wide_deep. Raises SpecError."""
    hidden = model.get("hidden", HIDDEN[model["name"]])
    if not isinstance(hidden, list | tuple) or not 1 <= len(hidden) <= MAX_LAYERS:
        raise SpecError("model.hidden", f"expected a list of 1 to {MAX_LAYERS} widths, got {hidden!r}")
    for width in hidden:
        if type(width) is not int or not 1 <= width <= MAX_WIDTH:
            raise SpecError("model.hidden", f"expected widths from 1 to {MAX_WIDTH}, got {width!r}")
    return tuple(hidden)


def describe_linear(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    width = math.prod(input_shape)
    shapes = linear("fc1", width, num_classes)
    return Layout(shapes, (width,), tuple(shapes))


def describe_mlp(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    hidden = get_mlp_hidden(model)
    shapes: Shapes = {}
    for layer, (inputs, outputs) in enumerate(pairwise((math.prod(input_shape), *hidden, num_classes)), start=1):
        shapes |= linear(f"fc{layer}", inputs, outputs)
    return Layout(shapes, hidden, tuple(shapes)[-2:])


def describe_wide_deep(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    hidden, inputs = get_mlp_hidden(model), math.prod(input_shape)
    shapes: Shapes = {}
    for layer, (width, following) in enumerate(pairwise((inputs, *hidden)), start=1):
        shapes |= linear(f"fc{layer}", width, following)
    embedding = hidden[-1] + inputs
    shapes |= linear(f"fc{len(hidden) + 1}", embedding, num_classes)
    return Layout(shapes, (*hidden[:-1], embedding), tuple(shapes)[-2:])


def describe_mlp_mnist(model: Mapping[str, Any], input_shape: Shape, num_classes: int) -> Layout:
    get_normalize(model)
    encoder = linear("encoder.fc1", math.prod(input_shape), ENCODER_WIDTH)
    encoder |= linear("encoder.fc2", ENCODER_WIDTH, ENCODER_WIDTH)
    head = describe_head(num_classes)
    return Layout(encoder | head, (ENCODER_WIDTH, ENCODER_WIDTH, HEAD_WIDTH), tuple(head)[-2:])


def describe_head(num_classes: int) -> Shapes:
    """Returns MP-FedCL's head on 512 features: fc1 to the embedding of 256, fc2 to the classes; 133,898 parameters for
    10."""
    return linear("fc1", ENCODER_WIDTH, HEAD_WIDTH) | linear("fc2", HEAD_WIDTH, num_classes)


def get_normalize(model: Mapping[str, Any]) -> bool:
    """Says whether the embedding of MP-FedCL's head has unit length. Raises SpecError."""
    normalize: bool = get_choice(model, "normalize", (True, False))
    return normalize
