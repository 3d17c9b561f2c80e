"""Models by the name they have in genesis. Names and shapes of parameters are `ml.specs.architectures`' (a test)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ml.models.base import Model, dump_parameters, load_parameters
from ml.models.cnn import CnnCifar, CnnMnist
from ml.models.head import Head256, MlpMnist
from ml.models.mlp import Mlp, WideDeep
from ml.models.pretrained import Pretrained, load_pretrained, read_constants
from ml.models.resnet import ResNet18
from ml.models.user import build_user_model, resolve_model
from ml.models.vgg import Vgg11
from ml.payload import Array
from ml.plugins import NO_PLUGINS, Plugins
from ml.specs.architectures import frozen_shapes, get_mlp_hidden, is_user_model, validate_model
from ml.specs.architectures.cnn import get_cnn_cifar_width
from ml.specs.architectures.mlp import get_normalize
from ml.specs.architectures.resnet import get_stem
from ml.specs.architectures.vgg import get_batch_norm, has_wide_classifier

__all__ = [
    "Model",
    "build_model",
    "resolve_model",
    "initial_parameters",
    "dump_parameters",
    "load_parameters",
    "Pretrained",
    "load_pretrained",
    "read_constants",
]

Shape = tuple[int, ...]


def build_model(
    model: Mapping[str, Any], input_shape: Sequence[int], num_classes: int, *, plugins: Plugins = NO_PLUGINS
) -> Model:
    """Builds the module of genesis's `model`, with parameters drawn from torch's generator.

    A user's own module is imported, which runs its code, only where it is one of `plugins`. Raises SpecError.
    """
    shape = tuple(input_shape)
    validate_model(model, shape)
    if not is_user_model(model):
        net = _BUILDERS[model["name"]](model, shape, num_classes)
        if "frozen" in model:
            net.freeze(frozen_shapes(model, shape, num_classes).keys())
        return net
    return build_user_model(model, shape, num_classes, plugins)


def initial_parameters(
    model: Mapping[str, Any],
    input_shape: Sequence[int],
    num_classes: int,
    seed: int,
    *,
    pretrained: Path | Pretrained | None = None,
    plugins: Plugins = NO_PLUGINS,
) -> dict[str, Array]:
    """Returns the arrays that training starts from, by name, float32: parameters, buffers and frozen ones.

    `pretrained` is the file of a published state dict, or its loaded content. The rest is drawn from `seed`, once, when
    a federation is made, and is sent to members as a blob, since another version of torch may draw other numbers.
    Torch's own generator keeps its state. Raises SpecError.
    """
    if isinstance(pretrained, Path):
        pretrained = load_pretrained(pretrained, model, input_shape, num_classes)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = build_model(model, input_shape, num_classes, plugins=plugins)
    drawn = dump_parameters(net, with_frozen=True)
    return drawn if pretrained is None else drawn | dict(pretrained.arrays)


def _build_resnet18(model: Mapping[str, Any], shape: Shape, num_classes: int) -> Model:
    return ResNet18(shape[0], num_classes, stem=get_stem(model), has_norm=model["name"] != "resnet18_nobn")


_BUILDERS: dict[str, Callable[[Mapping[str, Any], Shape, int], Model]] = {
    "linear": lambda model, shape, num: Mlp(math.prod(shape), (), num),
    "mlp": lambda model, shape, num: Mlp(math.prod(shape), get_mlp_hidden(model), num),
    "wide_deep": lambda model, shape, num: WideDeep(math.prod(shape), get_mlp_hidden(model), num),
    "mlp_mnist": lambda model, shape, num: MlpMnist(math.prod(shape), num, normalize=get_normalize(model)),
    "cnn_mnist": lambda model, shape, num: CnnMnist(num),
    "cnn_cifar": lambda model, shape, num: CnnCifar(shape[0], get_cnn_cifar_width(shape), num),
    "resnet18": _build_resnet18,
    "resnet18_cifar": _build_resnet18,
    "resnet18_nobn": _build_resnet18,
    "vgg11": lambda model, shape, num: Vgg11(
        shape[0], num, batch_norm=get_batch_norm(model), wide=has_wide_classifier(model)
    ),
    "head_256": lambda model, shape, num: Head256(shape[0], num, normalize=get_normalize(model)),
}
