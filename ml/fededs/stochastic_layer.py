"""FedEDS's stochastic layer theta^l: a random map between the extractor and the classifier, drawn once and never
trained (ALGORITHMS §4.2).

It sits before a model's last Linear (`Model.enter_slot`, `Model.leave_slot`), maps S numbers to S, and is
deterministic: with fresh noise in each pass nobody could reproduce the soft labels of Eq. (4). It belongs to a set of
samples, not to a model, so it is an argument, and is part of no model's parameters.

Legend: B samples, S width of the slot, C classes.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

from ml.models.base import Model
from ml.payload import Array


def make_layer(kind: str, dim: int, rng: Generator) -> Array | None:
    """Draws a layer: W float32[S, S] with entries from N(0, 1/S) (`gaussian`), orthogonal and uniform among all that
    are (`orthogonal`), or as torch initialises a 1x1 convolution, from U(-1/sqrt(S), 1/sqrt(S)) (`conv1x1`); one factor
    for each number from N(0, 1), float32[S] (`diag`); None for `identity`."""
    if kind == "identity":
        return None
    if kind == "diag":
        return rng.standard_normal(dim).astype(np.float32)
    if kind == "conv1x1":
        bound = 1 / math.sqrt(dim)
        return rng.uniform(-bound, bound, (dim, dim)).astype(np.float32)
    if kind == "gaussian":
        return (rng.standard_normal((dim, dim)) / math.sqrt(dim)).astype(np.float32)
    if kind == "orthogonal":
        q_SS, r_SS = np.linalg.qr(rng.standard_normal((dim, dim)))
        return (q_SS * np.sign(np.diag(r_SS))).astype(np.float32)  # without the signs, some matrices would be likelier
    raise ValueError(f"expected gaussian, orthogonal, diag, conv1x1 or identity, got {kind!r}")


def apply_layer(s_BS: Tensor, layer: Tensor | None) -> Tensor:
    """Computes l(s): W s for each row where the layer is a matrix, l * s where it is a vector, s where there is
    none."""
    if layer is None:
        return s_BS
    return s_BS * layer if layer.dim() == 1 else F.linear(s_BS, layer)


def classify_through(model: Model, x: Tensor, layer: Tensor | None) -> Tensor:
    """Computes f(x; g, c, l) = c(l(g(x))): logits_BC."""
    return model.leave_slot(apply_layer(model.enter_slot(model.embed(x)), layer))


@torch.no_grad()
def compute_soft_labels(model: Model, x: Tensor, layer: Tensor | None) -> Tensor:
    """Computes y' float32[B, C] of encrypted images x by a model in eval mode, Eq. (4)."""
    return classify_through(model, x, layer).double().softmax(1).float()


def compute_distillation(logits_BC: Tensor, soft_BC: Tensor) -> Tensor:
    """Computes L_dis of Eq. (6), a scalar: the batch's mean of KL(soft label || student)."""
    return F.kl_div(F.log_softmax(logits_BC.float(), 1), soft_BC, reduction="batchmean")  # autocast gives bfloat16
