"""DFPL: prototypes are exchanged instead of models (ALGORITHMS §2).

Zhang et al., *DFPL: Decentralized Federated Prototype Learning Across Heterogeneous Data Distributions*. A client keeps
its weights to itself. It sends p_k^i, the mean embedding of each class i it owns. It receives P^i, the mean over those
who own the class, which pulls the embeddings of the next local phase towards it.

    (1) p_k^i = mean of f(r_k; x) over D_k^i        (3) L_k = CE + lambda * R_k
    (4) R_k   = mean over i of || p_B^i - P^i ||    (7) w <- w - eta * grad L_k

Where we deviate: see the spec for the divisor of (2). R_k is over the classes that the mini-batch and the global
prototypes have in common, its p_B^i are the mini-batch's, and it is 0 in round 1. A local iteration is one mini-batch
step, as in algorithm 1; `iteration: epoch` is how table I was probably made. The classifier predicts; with `infer:
prototype` the nearest P^i among the client's own classes does, as in FedProto's code.

The gradient of (4) is a unit vector for each class however near P^i is, and the P^i of young networks are close
together: at lambda 1 the pull outweighs the cross-entropy and the classes collapse into one. Two flags of ours prevent
that. `normalize` compares at unit length, z / ||z|| with P / ||P||. `aux: contrast` makes the pull relative to the
other prototypes, as prototypical networks do (Snell et al., 2017): if all are together it is 0.

    (4') R_k = mean over samples of -log( exp(-||z - P^y||^2 / (2 tau)) / sum over a of exp(-||z - P^a||^2 / (2 tau)) )
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ml.methods.base import Blobs, Round, State
from ml.methods.common.losses import GlobalPrototypes, compute_prototype_contrast, compute_prototype_loss
from ml.methods.common.sharing import SharesPrototypes
from ml.models.base import Model
from ml.payload import Array, Arrays
from ml.specs.methods.dfpl import DfplSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors
from ml.training.metrics import Prediction


class Dfpl(SharesPrototypes[DfplSpec]):
    """Trains by cross-entropy, and by the distance of local prototypes from the global ones. The state has `aux_loss`,
    too: R_k as Eq. (4) prints it, whatever `aux` trains by, for the prototypes after the last local phase."""

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        weight, payloads = super().finish(state, round_)
        state.arrays = {**state.arrays, "aux_loss": self._measure_aux_loss(state, payloads["prototypes"])}
        return weight, payloads

    def _measure_aux_loss(self, state: State, local: Arrays) -> Array:
        """Computes R_k, float32[], of the client's own prototypes; 0 if there are no global ones of their classes. It
        is computed on the host, where the arrays are."""
        if (target := self.get_prototypes(state, torch.device("cpu"))) is None:
            return np.zeros((), np.float32)
        own_nD, classes_n = (torch.tensor(local[name]) for name in ("prototypes", "classes"))
        return np.asarray(compute_prototype_loss(own_nD, classes_n, target).item(), np.float32)

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float]:
        left = state.arrays.get("aux_loss")
        super().apply(state, round_, aggregate, blobs)
        return {} if left is None else {"aux_loss": float(left)}

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        target = self.get_prototypes(state)
        if target is None or not self.spec.hyperparameters.lambda_:
            return Prepared()
        context = target.to_tensors()
        if self.spec.hyperparameters.aux_protos == "full":
            context |= {"all_x": state.data.train.x, "all_y": state.data.train.y}
        return Prepared(context)

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        hyper = self.spec.hyperparameters
        z_BD, y_B = model.embed(batch.x), batch.y
        loss = model.criterion(model.classify(z_BD), y_B)
        if not context:
            return loss
        if hyper.aux_protos == "full":
            z_BD, y_B = model.embed(context["all_x"]), context["all_y"]
        target = GlobalPrototypes.from_tensors(context)
        if hyper.normalize:
            z_BD, target = F.normalize(z_BD.float(), dim=1), target.normalize()
        if hyper.aux == "contrast":
            distance = compute_prototype_contrast(z_BD, y_B, target, hyper.temperature)
        else:
            distance = compute_prototype_loss(z_BD, y_B, target, hyper.aux)
        return loss + hyper.lambda_ * distance  # Eq. (3)

    @property
    def takes_padding(self) -> bool:
        return type(self).compute_loss is Dfpl.compute_loss and self.spec.hyperparameters.aux in ("l2", "sq")

    @property
    def is_answered_by_model(self) -> bool:
        return type(self).predict is Dfpl.predict and self.spec.hyperparameters.infer == "classifier"

    def predict(self, state: State, x: Tensor) -> Prediction:
        hyper = self.spec.hyperparameters
        if hyper.infer == "classifier":
            return super().predict(state, x)
        return self.predict_nearest(state, x, normalize=bool(hyper.normalize))
