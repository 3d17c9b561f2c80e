"""FedIntR: MOON's contrast on every intermediate representation (ALGORITHMS §9).

Tun et al., *Federated Learning with Intermediate Representation Regularization*, 2023. z_l is a projection to 256 of
layer l's representation, by the model in training, the one the round began with (glob) and the client's previous one:

    L       = CE + mu * sum_l alpha_l * l_l
    l_l     = mean over the batch of -log( pos / (pos + neg) ),  pos = e^(cos(z_l, z_l,glob)/tau),
                                                                 neg = e^(cos(z_l, z_l,prev)/tau)
    alpha_l = softmax over the layers of (mean over the batch of cos(z_l, z_l,glob)) / tau

Gradients flow through alpha too, as in the code. In a client's first round there is no previous model and the sum is 0.
The projections are part of the model in training, in what is averaged and in the previous model. With mu 0 there are
none, and this is FedAvg.

Where we deviate: a projection is one linear layer; the code's have a hidden one. Maps are averaged over their pixels
before they are projected, the code projects all of them. l_l is a mean over samples, in the code mean cosines of the
batch stand in the exponents. z_glob and z_prev come from models in eval mode and see a sample as it is. Its optimiser
is SGD with momentum 0.9 and weight decay 1e-5, its local work 10 epochs; the defaults here are those of all methods.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ml.methods.base import Round, State
from ml.methods.common.contrast import compute_cosines, compute_layered_contrast
from ml.methods.common.sharing import RemembersModel
from ml.models.base import Model
from ml.seeding import numpy_rng
from ml.specs.methods.fedintr import PROJECTIONS, WIDTH, FedIntRSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy


class FedIntR(RemembersModel[FedIntRSpec]):
    """Trains by cross-entropy, and by the contrast of all representations with the common and the previous local
    ones."""

    def init(self, state: State) -> None:
        if self.spec.projected_dims:
            layers = [make_projection(layer, dim) for layer, dim in enumerate(self.spec.projected_dims)]
            state.model.add_module(PROJECTIONS, nn.ModuleList(layers).to(state.data.device))

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        mu = self.spec.hyperparameters.mu
        return self.prepare_contrast(state, schedule, mu, represent_layers) if mu else Prepared()

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        if not context:
            return compute_cross_entropy(model, batch, context)
        layers = model.embed_layers(batch.x)
        loss = model.criterion(model.classify(layers[-1]), batch.y)
        z_BLP = project(model, layers)
        global_BL, previous_BL = (compute_cosines(z_BLP, batch.extra[name]) for name in ("global", "previous"))
        contrast = compute_layered_contrast(global_BL, previous_BL, self.spec.hyperparameters.tau)
        return loss + context["mu"] * contrast


def represent_layers(model: Model, x: Tensor) -> Tensor:
    """Computes z_1 to z_L of each sample, [B, L, 256]."""
    return project(model, model.embed_layers(x))


def project(model: Model, layers: list[Tensor]) -> Tensor:
    """Computes the projections [B, L, 256] of representations [B, D_l]."""
    projections = model.get_submodule(PROJECTIONS).children()
    return torch.stack([projection(layer) for projection, layer in zip(projections, layers, strict=True)], 1)


def make_projection(layer: int, dim: int) -> nn.Linear:
    """Makes the first projection of a layer of width `dim`, the same on every node: uniform in +-1/sqrt(dim), as torch
    draws a linear layer, but from numpy and from a constant seed."""
    rng, limit = numpy_rng(PROJECTIONS, layer), dim**-0.5
    projection = nn.Linear(dim, WIDTH, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in (projection.weight, projection.bias):
            values = rng.uniform(-limit, limit, tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values))
    return projection
