"""The training of clients: loss = cross-entropy + mu / 2 * ||w - w_G||^2, as in FedProx."""

from __future__ import annotations

import torch

from example_method.spec import AnchoredSpec
from fednode.plugin import Batch, Model, Prepared, Round, Schedule, SharesModel, State, Tensors, compute_cross_entropy


class Anchored(SharesModel[AnchoredSpec]):
    """Keeps nothing between rounds: the anchor is the model that a round begins with."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        mu = torch.tensor(self.spec.hyperparameters.mu, device=state.data.device)
        anchors = {f"anchor/{name}": p.detach().clone() for name, p in state.model.named_parameters()}
        return Prepared({"mu": mu, **anchors})

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> torch.Tensor:
        squares = [(p - context[f"anchor/{name}"]).square().sum() for name, p in model.named_parameters()]
        return compute_cross_entropy(model, batch, context) + context["mu"] / 2 * torch.stack(squares).sum()
