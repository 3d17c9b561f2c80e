"""MOON: FedAvg whose local representations are contrasted with two models' (ALGORITHMS §9).

Li, He, Song, *Model-Contrastive Federated Learning*, 2021. z is a sample's representation by the model in training,
z_glob by the model the round began with, z_prev by the client's own as its last local phase had left it:

    L = CE + mu * mean over the batch of -log( pos / (pos + neg) )
    pos = e^(cos(z, z_glob)/tau)          neg = e^(cos(z, z_prev)/tau)

In a client's first round there is no z_prev, and the term is 0. With mu 0 this is FedAvg.

Where we deviate: z is the embedding; the code adds a projection head of 256 to the network, which would then be another
one than the other methods'. z_glob and z_prev see a sample as it is, also where training augments it. Its optimiser is
SGD with momentum 0.9 and weight decay 1e-5, its local work epochs; the defaults here are those of all methods.
"""

from __future__ import annotations

from torch import Tensor

from ml.methods.base import Round, State
from ml.methods.common.contrast import compute_contrast, compute_cosines
from ml.methods.common.sharing import RemembersModel
from ml.models.base import Model
from ml.specs.methods.moon import MoonSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy


class Moon(RemembersModel[MoonSpec]):
    """Trains by cross-entropy, and by the contrast of the embedding with the common and the previous local one."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        mu = self.spec.hyperparameters.mu
        return self.prepare_contrast(state, schedule, mu) if mu else Prepared()

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        if not context:
            return compute_cross_entropy(model, batch, context)
        z_BD = model.embed(batch.x)
        loss = model.criterion(model.classify(z_BD), batch.y)
        global_B, previous_B = (compute_cosines(z_BD, batch.extra[name]) for name in ("global", "previous"))
        contrast_B = compute_contrast(global_B, previous_B, self.spec.hyperparameters.tau)
        return loss + context["mu"] * contrast_B.mean()
