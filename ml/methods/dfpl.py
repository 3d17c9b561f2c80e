"""DFPL: prototypes are exchanged instead of models (ALGORITHMS §2).

Zhang et al., *DFPL: Decentralized Federated Prototype Learning Across Heterogeneous Data Distributions*. A client keeps
its weights to itself. It sends p_k^i, the mean embedding of each class i it owns; P^i, the mean over those who own the
class, comes back and pulls the embeddings of the next local phase towards it.

    (1) p_k^i = mean of f(r_k; x) over D_k^i        (3) L_k = CE + lambda * R_k
    (4) R_k   = mean over i of || p_B^i - P^i ||    (7) w <- w - eta * grad L_k

Where we deviate: see the spec for the divisor of (2). R_k is over the classes that the mini-batch and the global
prototypes have in common, its p_B^i are the mini-batch's, and it is 0 in round 1. A local iteration is one mini-batch
step, as algorithm 1 has it; `iteration: epoch` is how table I was probably made. Prediction is the classifier's;
`infer: prototype` takes the nearest P^i among the client's own classes, as FedProto's code does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ml.errors import AggregationError
from ml.losses import GlobalPrototypes, compute_prototype_loss
from ml.method import Blobs, Round, State, Trained
from ml.metrics import Prediction
from ml.payload import Arrays
from ml.prototypes import compute_prototypes
from ml.specs import DfplSpec, get_kind
from ml.training import ShouldStop, run_local_phase


class Dfpl:
    """The state besides the model is P_r: `classes` int64[n] and `prototypes` float32[n, D], absent in round 1."""

    def __init__(self, spec: DfplSpec) -> None:
        self.spec = spec

    def init(self, state: State) -> None:
        pass

    def local_update(self, state: State, round_: Round, should_stop: ShouldStop | None) -> Trained:
        hyper, model, samples = self.spec.hyperparameters, state.model, state.data.train
        target = self._get_prototypes(state) if hyper.lambda_ else None

        def compute_loss(batch: Tensor) -> Tensor:
            y_B = samples.y.index_select(0, batch)
            z_BD = model.embed(samples.x.index_select(0, batch))
            loss = F.cross_entropy(model.classify(z_BD), y_B)
            if target is None:
                return loss
            if hyper.aux_protos == "full":
                z_BD, y_B = model.embed(samples.x), samples.y
            return loss + hyper.lambda_ * compute_prototype_loss(z_BD, y_B, target, hyper.aux)  # Eq. (3)

        metrics = run_local_phase(
            model,
            compute_loss,
            hyper,
            num_train=len(samples),
            height=round_.height,
            rng=round_.rng("batches"),
            device=state.data.device,
            should_stop=should_stop,
        )
        return Trained(1, {"prototypes": self._compute_payload(state)}, metrics)

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        agreed = get_kind(aggregate, "prototypes")
        if agreed is None:
            raise AggregationError(f"round {round_.height}: expected prototypes in the aggregate, got none")
        state.arrays = {name: agreed[name].copy() for name in ("classes", "prototypes")}

    def predict(self, state: State, x: Tensor) -> Prediction:
        z_ND = state.model.embed(x)
        logits = state.model.classify(z_ND)
        target = self._get_prototypes(state) if self.spec.hyperparameters.infer == "prototype" else None
        if target is None:
            return Prediction(logits, logits.argmax(1))
        own = state.data.classes[target.held[state.data.classes] > 0]
        if not len(own):
            return Prediction(logits, logits.argmax(1))
        return Prediction(logits, own[torch.cdist(z_ND, target.vectors[own]).argmin(1)])

    def _compute_payload(self, state: State) -> Arrays:
        hyper, samples = self.spec.hyperparameters, state.data.train
        local = compute_prototypes(
            state.model, samples.x, samples.y, state.data.num_classes, hyper.min_class_samples
        )  # Eq. (1)
        payload = {"classes": local.classes, "prototypes": local.prototypes}
        if hyper.proto_agg == "samples":  # class sizes leave the client only where the average needs them
            payload["counts"] = local.counts.clip(max=self.spec.task.max_weight)
        return payload

    def _get_prototypes(self, state: State) -> GlobalPrototypes | None:
        if "classes" not in state.arrays:
            return None
        return GlobalPrototypes.from_arrays(
            state.arrays["classes"], state.arrays["prototypes"], state.data.num_classes, state.data.device
        )
