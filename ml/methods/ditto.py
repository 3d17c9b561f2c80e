"""Ditto: FedAvg, and beside it a personal model for each client that is held near the common one.

Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, 2021, Eq. (Ditto) and algorithm 1. With
w the common model as a round begins, client k's personal model v_k minimises h_k(v) = F_k(v) + lambda/2 ||v - w||^2:

    w_k <- w_k - eta grad F_k(w_k)                            from w on, as in FedAvg; sent, and averaged
    v_k <- v_k - eta ( grad F_k(v_k) + lambda (v_k - w) )     as often, on the same mini-batches

v_k never leaves its client, and answers. It begins as the run's initial model, and goes on from round to round.

Where we deviate: nothing in the update. The paper's v_k may have more steps and another learning rate than w_k; here
both have those of the local work, as in its experiments and its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ml.methods.base import Blobs, Round, State
from ml.methods.common.contrast import freeze
from ml.methods.common.losses import compute_proximal_term
from ml.methods.common.sharing import SharesModel, flatten, get_agreed
from ml.models.base import Model, dump_parameters
from ml.payload import Array, Arrays
from ml.specs import add_kind, get_kind
from ml.specs.methods.ditto import DittoSpec
from ml.training.graphs import Step
from ml.training.loop import Autocast, Batch, Prepared, Schedule, Stepping, Tensors, compute_cross_entropy, make_step
from ml.training.optimizers import make_optimizer

_COMMON = "common"


class Ditto(SharesModel[DittoSpec]):
    """Trains v_k, which is the model in the state. The state has the common model besides, under "common/": w of the
    last aggregate, or w_k after a local phase since; absent if v_k is still the model with which the run began."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        common = freeze(state.model, self.get_common(state))
        lr = self.spec.compute_lr(round_.number, len(schedule.batches))
        optimizer = make_optimizer(self.spec.hyperparameters, common.parameters(), lr, None)

        def make_common_step(autocast: Autocast) -> Step:
            return make_step(common.train(), compute_cross_entropy, {}, optimizer, autocast)

        context = {"w": flatten(common, self.spec).detach()}
        return Prepared(context, beside=make_common_step, then=partial(self._keep, state, common))

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        near = compute_proximal_term(flatten(model, self.spec), context["w"])
        return compute_cross_entropy(model, batch, context) + self.spec.hyperparameters.lambda_ * near  # h_k(v; w)

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        sent = self.spec.schemas(round_.height)["model"].arrays
        common = self.get_common(state)
        return self.get_weight(state), {"model": {name: array for name, array in common.items() if name in sent}}

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        state.arrays = add_kind(_COMMON, self.get_common(state) | get_agreed(aggregate, "model", round_))

    def get_common(self, state: State) -> dict[str, Array]:
        """Returns the common model, as far as the client has it."""
        return get_kind(state.arrays, _COMMON) or dump_parameters(state.model)

    def _keep(self, state: State, common: Model, stepping: Stepping) -> Mapping[str, Arrays]:
        state.arrays = add_kind(_COMMON, dump_parameters(common))
        return {}
