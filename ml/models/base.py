"""What every method sees of a model: f = h o g, an embedding and a classifier on it (ALGORITHMS §1.1).

Legend: B samples, D length of the embedding, C classes. Parameters travel as arrays under their `state_dict()` names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from ml.payload import Array, Arrays


class Model(nn.Module, ABC):
    """A network in two parts. Class ids are global: it has C outputs however few classes a client owns."""

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """g: x_BCHW to z_BD, what prototypes are means of."""

    @abstractmethod
    def classify(self, z_BD: Tensor) -> Tensor:
        """h: z_BD to logits_BC."""

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.embed(x))


def dump_parameters(model: Model) -> dict[str, Array]:
    """Copies of the parameters, float32 in host memory, by name."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def load_parameters(model: Model, arrays: Arrays) -> None:
    """Set the parameters to `arrays`, in place. Raises ValueError, changing nothing, unless names and shapes fit."""
    own = model.state_dict()
    expected = {name: tuple(tensor.shape) for name, tensor in own.items()}
    got = {name: tuple(array.shape) for name, array in arrays.items()}
    if got != expected:
        raise ValueError(f"parameters do not fit the model: expected {expected}, got {got}")
    for name, tensor in own.items():
        tensor.copy_(torch.from_numpy(np.array(arrays[name])))  # a copy: what was decoded is read-only
