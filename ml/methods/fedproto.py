"""FedProto: prototypes are exchanged instead of models, DFPL without its chain (ALGORITHMS §9).

Tan et al., *FedProto: Federated Prototype Learning across Heterogeneous Clients*, 2022. C^i is the mean embedding of
class i over the clients that own it, received in the last round:

    L = CE + lambda * mean over the batch and the D dimensions of (f(x) - C^y)^2        yhat = argmin_i || f(x) - C^i ||

A sample whose class has no C^y adds 0 to the second term; with lambda 0 this is Local. The argmin is over the client's
own classes that have a C^i, and the classifier answers while there is none; with `infer: classifier` it always does.

Where we deviate: a client's prototypes are computed after its local phase, by the weights at its end, from all its
samples; the code averages the embeddings that were computed during the last epoch. The paper's own values are lr 0.01,
momentum 0.5, batches of 4 (32 for CIFAR-10) without the last partial one, 1 epoch, and lambda 0.1 for CIFAR-10; the
defaults are DFPL's, so that methods are compared at the same work.
"""

from __future__ import annotations

from torch import Tensor

from ml.methods.base import Round, State
from ml.methods.common.losses import GlobalPrototypes, compute_prototype_loss
from ml.methods.common.sharing import SharesPrototypes
from ml.models.base import Model
from ml.specs.methods.fedproto import FedProtoSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy
from ml.training.metrics import Prediction


class FedProto(SharesPrototypes[FedProtoSpec]):
    """Trains by cross-entropy, and by the squared distance of each embedding from the global prototype of its class."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        target = self.get_prototypes(state)
        if target is None or not self.spec.hyperparameters.lambda_:
            return Prepared()
        return Prepared(target.to_tensors())

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        if not context:
            return compute_cross_entropy(model, batch, context)
        z_BD = model.embed(batch.x)
        loss = model.criterion(model.classify(z_BD), batch.y)
        distance = compute_prototype_loss(z_BD, batch.y, GlobalPrototypes.from_tensors(context), "mse")
        return loss + self.spec.hyperparameters.lambda_ * distance

    @property
    def is_answered_by_model(self) -> bool:
        return type(self).predict is FedProto.predict and self.spec.hyperparameters.infer == "classifier"

    def predict(self, state: State, x: Tensor) -> Prediction:
        nearest = self.spec.hyperparameters.infer == "prototype"
        return self.predict_nearest(state, x) if nearest else super().predict(state, x)
