"""The model as every method sees it: f = h o g, an embedding and a classifier on it (ALGORITHMS §1.1).

Legend: B samples, D length of the embedding, S of the last Linear's input, C classes. Parameters are sent as arrays
under their `state_dict()` names, with the running statistics of batch norm; integer buffers (`num_batches_tracked`) and
frozen arrays are not sent. An array with two names has the first.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.payload import Array, Arrays


class Model(nn.Module, ABC):
    """A network in two parts, g and h. Class ids are global: it has C outputs however few classes a client owns.

    Names that start with `frozen_prefix` belong to a frozen encoder, which is neither trained nor sent; there is none
    where the prefix is empty. With a frozen encoder all methods take images x_BCHW or the output of `precompute` for
    them. `freeze` freezes other arrays. `own_names` are parameters that a method has added, and that never leave the
    client.
    """

    frozen_prefix: ClassVar[str] = ""
    frozen_names: frozenset[str] = frozenset()
    own_names: frozenset[str] = frozenset()
    _resting: tuple[str, ...] = ()  # modules with frozen statistics
    criterion: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.cross_entropy)  # training loss of logits_BC and y_B

    def precompute(self, x: Tensor) -> Tensor:
        """Returns the frozen encoder's output for samples, the same in every step of every round: features [B, E] of
        x_BCHW. Returns features unchanged, and x where there is no such encoder."""
        return x

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Computes g: x_BCHW to z_BD, the features that prototypes are means of."""

    @abstractmethod
    def classify(self, z_BD: Tensor) -> Tensor:
        """Computes h: z_BD to logits_BC."""

    def enter_slot(self, z_BD: Tensor) -> Tensor:
        """Computes s_BS, the input of the last Linear, from z_BD. A method can put a layer of its own between this and
        `leave_slot`; without one, both together are `classify`."""
        return z_BD

    def leave_slot(self, s_BS: Tensor) -> Tensor:
        """Computes logits_BC from s_BS."""
        return self.classify(s_BS)

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        """Returns the intermediate representations [B, D_l], maps averaged over their pixels; the last is
        `embed(x)`."""
        return [self.embed(x)]

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.embed(x))

    def freeze(self, names: Collection[str]) -> None:
        """Stops training and sending these parameters and buffers. The modules of the buffers stay in eval mode."""
        self.frozen_names = frozenset(names)
        for name, parameter in self.named_parameters():
            if name in self.frozen_names:
                parameter.requires_grad_(False)
        buffers = [name for name, _ in self.named_buffers() if name in self.frozen_names]
        self._resting = tuple(sorted({name.rpartition(".")[0] for name in buffers}))
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for name in self._resting:
            self.get_submodule(name).eval()
        return self

    @property
    def has_frozen(self) -> bool:
        return bool(self.frozen_prefix or self.frozen_names)

    def is_frozen(self, name: str) -> bool:
        """Says whether a parameter or buffer belongs to the frozen part."""
        return name in self.frozen_names or (bool(self.frozen_prefix) and name.startswith(self.frozen_prefix))


def copy_model(model: Model) -> Model:
    """Returns a copy with parameters of its own. Both share the frozen part: it never changes, and may be most of the
    model."""
    shared: dict[int, object] = {}
    if model.has_frozen:
        shared |= {id(module): module for name, module in model.named_children() if model.is_frozen(f"{name}.")}
        tensors = [*model.named_parameters(), *model.named_buffers()]
        shared |= {id(tensor): tensor for name, tensor in tensors if model.is_frozen(name)}
    return copy.deepcopy(model, shared)


def find_tied(model: Model) -> dict[str, str]:
    """Returns the further names of parameters and float buffers that have several, each with the first."""
    every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, tensor in every:
        first.setdefault(id(tensor), name)
    return {name: first[id(tensor)] for name, tensor in every if first[id(tensor)] != name}


def average_maps(x_BCHW: Tensor) -> Tensor:
    """Computes the mean of each map, [B, C]. Its gradient is deterministic on a GPU, adaptive pooling's is not."""
    return x_BCHW.mean((2, 3))


def dump_parameters(model: Model, *, with_frozen: bool = False) -> dict[str, Array]:
    """Copies the parameters and running statistics, float32 in host memory, by name."""
    (dumped,) = dump_models([model], with_frozen=with_frozen)
    return dumped


def dump_models(models: Sequence[Model], *, with_frozen: bool = False) -> list[dict[str, Array]]:
    """Returns `dump_parameters` of each model."""
    named = [
        {name: tensor for name, tensor in _get_arrays(model).items() if with_frozen or not model.is_frozen(name)}
        for model in models
    ]
    tensors = [tensor for wanted in named for tensor in wanted.values()]
    if any(tensor.is_cuda for tensor in tensors):  # in one copy, since each copy waits for the GPU
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        tensors = [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
    copies = (tensor.cpu().numpy().copy() for tensor in tensors)
    return [{name: next(copies) for name in wanted} for wanted in named]


@torch.no_grad()
def load_parameters(model: Model, arrays: Arrays) -> None:
    """Sets parameters and buffers to `arrays`, in place.

    Every trained parameter must be among them; running statistics, frozen arrays and a client's own stay unchanged
    where they are missing. Further names of an array are ignored. Raises ValueError, changing nothing, for an unknown
    or missing name or a wrong shape.
    """
    own = _get_arrays(model)
    further = find_tied(model)
    arrays = {name: array for name, array in arrays.items() if name not in further}
    needed = {name for name, _ in model.named_parameters() if not model.is_frozen(name)} - model.own_names
    expected = {name: tuple(own[name].shape) for name in own if name in arrays or name in needed}
    got = {name: tuple(array.shape) for name, array in arrays.items()}
    if got != expected:
        different = sorted(name for name in expected | got if expected.get(name) != got.get(name))
        first = different[0]
        raise ValueError(
            f"parameters do not fit the model in {len(different)} places, first at {first!r}: "
            f"expected {_show(expected.get(first))}, got {_show(got.get(first))}"
        )
    for name, array in arrays.items():
        own[name].copy_(torch.from_numpy(np.array(array)))  # a copy: decoded arrays are read-only


def _get_arrays(model: Model) -> dict[str, Tensor]:
    """Returns the arrays that can be sent, by name. An integer buffer counts batches or is a constant: neither is
    sent."""
    once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in once and tensor.is_floating_point()}


def _show(shape: tuple[int, ...] | None) -> str:
    return "no such array" if shape is None else f"shape {list(shape)}"
