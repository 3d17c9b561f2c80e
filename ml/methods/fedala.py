"""FedALA: FedAvg whose clients take over from the common model, element by element, what helps them.

Zhang, Hua, Wang, Song, Xue, Ma, Guan, *FedALA: Adaptive Local Aggregation for Personalized Federated Learning*, 2023
(AAAI), algorithm 1. w is the common model, w_i client i's own after its last local phase. With W_i of the shape of the
last p layers, 1 everywhere before it is first learned, a local phase begins from

    v_i    = w_i + (w - w_i) * W_i                        element by element in the last p layers, w in all before them
    W_i   <- clip(W_i - eta grad_W L(v_i, D_s), 0, 1)     for each mini-batch of D_s, s of the client's samples

with D_s drawn again each time. The first W_i is learned until it settles, later ones by one pass over D_s. What is sent
after the phase is averaged as in FedAvg. v_i is the model to evaluate. A client that has not trained yet has no w_i,
and uses w.

Where we deviate: v_i is made as soon as there is a block, from which the next phase begins; the model is in eval mode
for it, so that v_i is of the network that answers. W_i has settled, as in the paper's code, if the losses of the last
10 passes have a deviation below 0.1; here they are of whole passes, and there are 100 passes at most. A layer is a
module with parameters of its own; the running statistics of batch norm are w's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ml.methods.base import Blobs, Round, State
from ml.methods.common.sharing import SharesModel
from ml.models.base import Model, dump_parameters, load_parameters
from ml.payload import Array, Arrays
from ml.specs import add_kind, get_kind
from ml.specs.methods.fedala import FedAlaSpec
from ml.training.functional import PREFIX, make_function_of_weights
from ml.training.loop import Batch, Batches, ComputeLoss, Tensors, compute_cross_entropy, gather_batches

OWN, WEIGHTS, LEARNED = "own", "weights", "learned"  # w_i, W_i before the last block, and W_i after it
WINDOW, SETTLED, MAX_PASSES = 10, 0.1, 100  # passes, the deviation of their losses, and how many there are at most


class FedAla(SharesModel[FedAlaSpec]):
    """Trains as FedAvg, from v_i. The state besides the model, for the last p layers: w_i under "own/" after a phase
    has succeeded; W_i at that phase's beginning under "weights/", absent before it is first learned; and W_i as a block
    since has changed it under "learned/"."""

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        weights = get_kind(state.arrays, LEARNED) or get_kind(state.arrays, WEIGHTS) or {}
        own = {name: array for name, array in dump_parameters(state.model).items() if name in self.spec.top}
        state.arrays = add_kind(OWN, own) | add_kind(WEIGHTS, weights)
        return super().finish(state, round_)

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        super().apply(state, round_, aggregate, blobs)
        own, known = (get_kind(state.arrays, kind) for kind in (OWN, WEIGHTS))
        if own is None:
            return
        common = dump_parameters(state.model)
        ways = {name: common[name] - array for name, array in own.items()}
        if not any(way.any() for way in ways.values()):
            return
        weights = {name: np.ones_like(way) for name, way in ways.items()} if known is None else known
        aggregation = LocalAggregation(state, own, ways, weights, self.spec.hyperparameters.eta)
        batches = partial(gather_batches, state.data.train.x, state.data.train.y, {}, self.draw(state, round_))
        compute_loss = compute_cross_entropy
        if self.spec.top.keys() <= set(self.spec.task.classifier_names):  # lower layers are fixed: computed once
            embedded = list(embed_batches(state.model, batches()))
            batches, compute_loss = partial(iter, embedded), compute_loss_above
        losses = list[float]()
        while not losses or (known is None and not _is_over(losses)):
            losses.append(aggregation.learn(compute_loss, batches()))
        load_parameters(state.model, common | aggregation.mix())
        kept = {name: array for name, array in state.arrays.items() if not name.startswith(f"{LEARNED}/")}
        state.arrays = kept | add_kind(LEARNED, aggregation.get_weights())

    def draw(self, state: State, round_: Round) -> Batches:
        """Returns the mini-batches of D_s, as indices of samples."""
        hyper, num_train = self.spec.hyperparameters, len(state.data.train)
        size = max(1, round(hyper.sample_share * num_train))
        rows = round_.rng("samples of the local aggregation").permutation(num_train)[:size]
        return torch.split(torch.from_numpy(rows).to(state.data.device), hyper.batch_size)


class LocalAggregation:
    """Learns W_i of one client, from its own parameters, their differences from the common ones (`ways`), and the W_i
    before. The state's model has the common parameters; it is left in eval mode."""

    def __init__(self, state: State, own: Arrays, ways: Arrays, weights: Arrays, eta: float) -> None:
        self._model = state.model.eval()
        self._eta = eta
        self._own, self._ways, self._weights = (
            {name: torch.tensor(array, device=state.data.device) for name, array in arrays.items()}
            for arrays in (own, ways, weights)
        )

    def learn(self, compute_loss: ComputeLoss, batches: Iterable[Batch]) -> float:
        """Makes one pass over the batches. Returns the mean of the losses before each step."""
        compute, losses = make_function_of_weights(self._model, compute_loss), list[Tensor]()
        for batch in batches:
            weights = {name: weight.requires_grad_() for name, weight in self._weights.items()}
            mixed = {PREFIX + name: tensor for name, tensor in self._mix(weights).items()}
            loss = compute(mixed, batch, {})
            gradients = torch.autograd.grad(loss, list(weights.values()))
            self._weights = {
                name: (weight.detach() - self._eta * gradient).clamp(0, 1)
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    def _mix(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._own[name] + self._ways[name] * weight for name, weight in weights.items()}

    def mix(self) -> dict[str, Array]:
        """Returns v_i, without the layers in which it is w."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self._mix(self._weights).items()}

    def get_weights(self) -> dict[str, Array]:
        return {name: weight.detach().cpu().numpy() for name, weight in self._weights.items()}


@torch.no_grad()
def embed_batches(model: Model, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yields each batch with the embeddings of its samples in their place. Leaves the model in eval mode."""
    model.eval()
    for batch in batches:
        yield batch._replace(x=model.embed(batch.x))


def compute_loss_above(model: Model, batch: Batch, context: Tensors) -> Tensor:
    """Computes the loss of plain training by the classifier, for a batch of embeddings."""
    return model.criterion(model.classify(batch.x), batch.y)


def _is_over(losses: Sequence[float]) -> bool:
    """Says whether W_i has settled, or its loss is not finite, or the most passes are made."""
    if not np.isfinite(losses[-1]) or len(losses) >= MAX_PASSES:
        return True
    return len(losses) > WINDOW and float(np.std(losses[-WINDOW:])) < SETTLED
