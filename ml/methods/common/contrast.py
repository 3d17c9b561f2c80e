"""Contrasts between models: a representation is drawn to the common model's of the same sample and pushed away from
those of the client's earlier models (ALGORITHMS §9).

The others' representations are constants of a round. They are computed once, before its first step, by frozen models in
eval mode, and are of unit length, so that a product with them is a cosine.

Legend: B samples of the mini-batch, N of the client, D length of a representation, H earlier ones, L layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ml.data.chunks import get_chunk
from ml.models.base import Model, copy_model, load_parameters
from ml.payload import Arrays

ATTRACTS = 0.5  # the least mean cosine at which an earlier representation is a positive for SWIM

Represent = Callable[[Model, Tensor], Tensor]


def freeze(model: Model, arrays: Arrays) -> Model:
    """Returns a copy of `model` with the parameters `arrays`. Raises ValueError if they are another model's."""
    frozen = copy_model(model)
    load_parameters(frozen, arrays)
    return frozen


def embed(model: Model, x: Tensor) -> Tensor:
    return model.embed(x)


@torch.no_grad()
def represent(model: Model, x: Tensor, rows: Tensor, how: Represent = embed) -> Tensor:
    """Computes the unit representations [N, …, D] of the samples x at `rows`, zeros elsewhere. Leaves the model in eval
    mode."""
    model.eval()
    parts = [F.normalize(how(model, x.index_select(0, part)), dim=-1) for part in torch.split(rows, get_chunk(x.shape))]
    found = torch.cat(parts)
    return found.new_zeros(len(x), *found.shape[1:]).index_copy_(0, rows, found)


def compute_cosines(z: Tensor, unit: Tensor) -> Tensor:
    """Computes the cosine of the angle between z[…, D] and unit[…, D], […]."""
    return (F.normalize(z.float(), dim=-1) * unit).sum(-1)  # autocast returns bfloat16


def compute_contrast(global_: Tensor, previous: Tensor, tau: float) -> Tensor:
    """Computes MOON's contrast of each pair of cosines: -log(e^(global / tau) / (e^(global / tau) + e^(previous /
    tau)))."""
    return F.softplus((previous - global_) / tau)


def compute_window_contrast(global_B: Tensor, history_BH: Tensor, tau: float) -> Tensor:
    """Computes SWIM's contrast, a scalar: the mean over the batch of -log(pos / (pos + neg)).

    An earlier representation whose mean cosine over the batch is at least 0.5 adds e^(cos / tau) to pos, as the common
    model's does, and any other to neg. The contrast is 0 without earlier representations.
    """
    attracts_H = history_BH.detach().mean(0) >= ATTRACTS
    global_B1, history_BH = global_B[:, None] / tau, history_BH / tau
    positive_BH = history_BH.masked_fill(~attracts_H, -torch.inf)
    everything_B = torch.cat([global_B1, history_BH], 1).logsumexp(1)
    return (everything_B - torch.cat([global_B1, positive_BH], 1).logsumexp(1)).mean()


def compute_layered_contrast(global_BL: Tensor, previous_BL: Tensor, tau: float) -> Tensor:
    """Computes FedIntR's contrast, a scalar: MOON's of each layer in the mean of the batch, weighted by alpha = softmax
    over the layers of (the mean cosine to the common model's) / tau, through which gradients flow too."""
    alpha_L = (global_BL.mean(0) / tau).softmax(0)
    contrast_L = compute_contrast(global_BL, previous_BL, tau).mean(0)
    return (contrast_L * alpha_L).sum()  # not dot: vmap turns it into a product that autocast rounds
