"""Layers that some steps cannot use: batch norm, which learns nothing from one sample alone, and layers that torch
cannot differentiate for each sample by itself, as steps that hide samples need it.

fednode's own models have none. A user's model is tried with zeros before it is trained, or a run is made with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ml.errors import SpecError
from ml.models.base import Model
from ml.specs import MethodSpec
from ml.specs.architectures import is_user_model
from ml.training.functional import PREFIX, make_function_of_weights

_TRIED = 2  # samples


def find_batch_norm(model: Model, spec: MethodSpec) -> str | None:
    """Returns the name of the first layer of a user's model that would have no variance in a step of one sample; None
    if there is no such layer. Raises SpecError if all steps of the run have one sample."""
    if not is_user_model(spec.task.model):
        return None
    found: list[nn.Module] = []

    def look(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given[0].numel() == _TRIED * given[0].shape[1]:  # one value of each sample
            found.append(layer)

    with _trying(model), torch.no_grad():
        layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]
        hooks = [layer.register_forward_pre_hook(look) for layer in layers]
        model.eval()
        model(_make_samples(model, spec))
        for hook in hooks:
            hook.remove()
    if not found:
        return None
    name = _name(model, found[0])
    if spec.hyperparameters.batch_size == 1:
        raise SpecError("method.batch_size", f"expected at least 2, as {name} takes the variance of a batch, got 1")
    return name


def check_private(model: Model, spec: MethodSpec) -> None:
    """Raises SpecError, naming the layer, if the run hides samples and a user's model cannot be differentiated for each
    of them."""
    if not spec.hyperparameters.is_private or not is_user_model(spec.task.model):
        return

    def compute_loss(net: Model, x_1: Tensor) -> Tensor:
        loss: Tensor = net(x_1).square().sum()
        return loss

    weights = {PREFIX + name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    one = torch.func.grad(make_function_of_weights(model, compute_loss))
    with _trying(model):
        model.train()
        try:
            x = _make_samples(model, spec).unsqueeze(1)
            torch.func.vmap(one, in_dims=(None, 0), randomness="different")(weights, x)
        except Exception as error:  # torch's and the user's code may raise anything
            name = _find_layer(model, error.__traceback__) or "the model"
            why = str(error).partition("\n")[0]
            raise SpecError(
                "method.dp_noise",
                f"expected none, as {name} cannot be differentiated for each sample by itself ({why})",
            ) from error


def _make_samples(model: Model, spec: MethodSpec) -> Tensor:
    return torch.zeros((_TRIED, *spec.task.input_shape), device=next(model.parameters()).device)


@contextmanager
def _trying(model: Model) -> Iterator[None]:
    """Puts the model into training mode within, and restores its mode and torch's generator on exit."""
    was_training = model.training
    with torch.random.fork_rng(devices=[]):
        model.train()
        try:
            yield
        finally:
            model.train(was_training)


def _find_layer(model: Model, raised: TracebackType | None) -> str | None:
    """Returns the innermost module of the model whose code was running."""
    modules, found = {id(module) for module in model.modules() if module is not model}, None
    while raised is not None:
        module = raised.tb_frame.f_locals.get("self")
        if id(module) in modules and isinstance(module, nn.Module):
            found = _name(model, module)
        raised = raised.tb_next
    return found


def _name(model: Model, wanted: nn.Module) -> str:
    name = next(name for name, module in model.named_modules() if module is wanted)
    return f"layer {name!r} ({type(wanted).__name__})"
