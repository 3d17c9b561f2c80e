"""UA-PDFL: the similarity of two clients' data decides how much of a model they share (ALGORITHMS §5).

Zhu, Fan, Xie, *UA-PDFL: A Personalized Approach for Decentralized Federated Learning*. X_unit is one sample, constant
or the mean of a client's own, Eq. (4); f = h o g is client i's model, n_i its number of samples, Q the peers that it
has drawn and S those of Q whose data are similar to its own (see the spec for how that is measured and what follows
from it):

    (5)  I_i = softmax( f(X_unit) )        (11) A_i = g(X_unit)
    (12) L   = CE + mu * || g(X_unit) - A_avg ||^2        A_avg = (A_i + sum of A_j over Q) / (|Q| + 1)
    dropout branch:       w_i <- w_j of one random j of Q
    personalised layers:  w_g <- mean of g over i and Q, w_h <- mean of h over i and S, weighted by n

I_i and A_i are computed in eval mode by the model at the end of a local phase, and frozen until the next one ends; the
live g(X_unit) of Eq. (12) uses batch norm as in eval mode and does not change its statistics. A_avg is a constant of
the round; before the first exchange it is A_i of the initial model, which all clients have in common.

The personalised model, before a block changes it, is the one to evaluate; what is measured after a block is the model
from which the client starts its next phase. With th < 0 and mu 0 every client does what FedPer does over Q, as long as
S is empty then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ml.methods.base import Blobs, Round, State
from ml.methods.common.mixing import SharesParts
from ml.methods.common.sharing import get_agreed
from ml.models.base import Model
from ml.payload import Array, Arrays
from ml.specs import Offer
from ml.specs.methods.uapdfl import UaPdflSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy


class UaPdfl(SharesParts[UaPdflSpec]):
    """Trains by Eq. (12). The state besides the model is `auxiliary`, A_i as it was sent last, and `target`, the A_avg
    of the round."""

    def init(self, state: State) -> None:
        _, auxiliary = self.represent_unit(state)
        state.arrays = {"auxiliary": auxiliary, "target": auxiliary}

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        if not self.spec.hyperparameters.mu:
            return Prepared()
        target_D = torch.tensor(state.arrays["target"], device=state.data.device)
        return Prepared({"unit": self.make_unit(state), "target": target_D})

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        if not context:
            return compute_cross_entropy(model, batch, context)
        if self.spec.task.layout.is_batchable:  # samples are independent: one pass computes both
            z_XD = model.embed(torch.cat([batch.x, context["unit"]]))
            z_BD, unit_D = z_XD[:-1], z_XD[-1]
            loss = model.criterion(model.classify(z_BD), batch.y)
        else:
            loss = compute_cross_entropy(model, batch, context)
            model.eval()
            unit_D = model.embed(context["unit"])[0]
            model.train()
        distance: Tensor = (unit_D.float() - context["target"]).square().sum()
        return loss + self.spec.hyperparameters.mu * distance  # Eq. (12)

    @property
    def takes_padding(self) -> bool:
        return type(self).compute_loss is UaPdfl.compute_loss

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        weight, parts = super().finish(state, round_)
        unit, auxiliary = self.represent_unit(state)
        state.arrays = state.arrays | {"auxiliary": auxiliary}
        return weight, {**parts, "unit": {"unit": unit}, "auxiliary": {"auxiliary": auxiliary}}

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float]:
        for kind in self.spec.rules(round_.height):
            get_agreed(aggregate, kind, round_)
        decision = self.spec.decide(round_.beacon, round_.me, round_.offers, aggregate, round_.gone)
        if decision.donor is not None:
            donor = decision.donor
            self.load_parts(state, (blobs[donor.digests[kind]] for kind in self.spec.part_schemas))
        elif decision.peers:
            parts = {"g": decision.peers, "h": decision.similar}
            self.load_parts(state, [self.mix(state, round_, kind, peers, blobs) for kind, peers in parts.items()])
        seen = self.get_auxiliary(decision.peers, round_.offers, aggregate)
        state.arrays = state.arrays | {"target": compute_mean_auxiliary([state.arrays["auxiliary"], *seen])}
        if not decision.peers:
            return {"peers": 0.0}
        return {
            "peers": float(len(decision.peers)),
            "similar": float(len(decision.similar)),
            "dropout": float(decision.is_dropout),
            "divergence": float(np.mean(decision.divergences)),
        }

    def make_unit(self, state: State) -> Tensor:
        """Returns X_unit [1, C, H, W], or the features that the model's frozen part computes from it; for a mean, the
        mean of the samples' features."""
        if self.spec.hyperparameters.unit == "mean":
            return state.data.train.x.mean(0, keepdim=True)
        x_1CHW = torch.full((1, *self.spec.task.input_shape), self.spec.hyperparameters.unit_value)
        return state.model.precompute(x_1CHW.to(state.data.device))

    def get_auxiliary(self, peers: Sequence[Offer], offers: Sequence[Offer], aggregate: Arrays | None) -> list[Array]:
        """Returns A_j of each of `peers`; `offers` are those of `UaPdflSpec.decide`."""
        if aggregate is None or not peers:
            return []
        rows = self.spec.get_rows("auxiliary/auxiliary", offers, aggregate)
        return [rows[peer.author] for peer in peers]

    @torch.no_grad()
    def represent_unit(self, state: State) -> tuple[Array, Array]:
        """Computes (I_i float32[C], A_i float32[D])."""
        state.model.eval()
        z_1D = state.model.embed(self.make_unit(state))
        unit_C = state.model.classify(z_1D)[0].double().softmax(0).float()  # Eq. (5)
        return unit_C.cpu().numpy(), z_1D[0].cpu().numpy().copy()  # Eq. (11)


def compute_mean_auxiliary(auxiliary: Sequence[Array]) -> Array:
    """Computes A_avg: the unweighted mean of the client's A_i and those of Q."""
    mean: Array = np.stack(auxiliary).mean(0, dtype=np.float64, keepdims=True).astype(np.float32)[0]
    return mean
