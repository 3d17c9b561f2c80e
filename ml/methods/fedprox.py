"""FedProx: FedAvg whose local phase is held near the model it began from (ALGORITHMS §9).

Li et al., *Federated Optimization in Heterogeneous Networks*, 2020:

    L = CE + mu/2 * ||w - w_G||^2        over all trained parameters, w_G the model at the beginning of the round

The aggregation is FedAvg's, and with mu 0 training is, too. Where we deviate: the paper lets clients stop at different
accuracies, here local work is the same for all unless `budget_s` is set.
"""

from __future__ import annotations

from torch import Tensor

from ml.methods.base import Round, State
from ml.methods.common.losses import compute_proximal_term
from ml.methods.common.sharing import SharesModel, flatten
from ml.models.base import Model
from ml.specs.methods.fedprox import FedProxSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy


class FedProx(SharesModel[FedProxSpec]):
    """Trains by cross-entropy, and by the squared distance from the model at the beginning of the round."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        if not self.spec.hyperparameters.mu:
            return Prepared()
        return Prepared({"anchor": flatten(state.model, self.spec).detach()})

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        loss = compute_cross_entropy(model, batch, context)
        if not context:
            return loss
        return loss + self.spec.hyperparameters.mu * compute_proximal_term(flatten(model, self.spec), context["anchor"])

    @property
    def takes_padding(self) -> bool:
        return type(self).compute_loss is FedProx.compute_loss
