"""FedDBE: FedAvg with a domain bias eliminator: a vector of each client's own holds what is peculiar to its embeddings.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, *Eliminating Domain Bias for Federated Learning in Representation Space*,
2023 (NeurIPS), as FedAvg + DBE. f is the embedding, g the classifier, p_i the *personalised representation bias memory*
of client i, a vector that is trained with its model and never sent, 0 at first:

    L_i    = CE(y, g(f(x) + p_i)) + kappa MSE(m_i, m)          PRBM, and mean regularisation
    m_i   <- (1 - mu) m_i + mu * mean over the mini-batch of f(x)
    m      = sum over i of (n_i / n) (mean over i's samples of f_i(x))

MSE is the mean over the dimensions; gradients flow through the mini-batch's part of m_i alone. m is agreed once, before
the first round: f_i is the initial model after a local phase of client i's, without p_i and m; f_i is discarded
afterwards. f and g are averaged as in FedAvg, and g(f(x) + p_i) answers.

Where we deviate: the mean that a client sends is that of all its samples by the model after the phase; in the paper's
code it is m_i. The MSE is the paper's, of which the code has half: its kappa 50 is 25 here. m_i begins as the first
mini-batch's mean, in the code at 0; with the paper's mu 1 both are the same. p_i is trained by the optimiser of the
model, in the code by plain SGD. A client ignores a mean so far from its own that one step towards it would be longer
than its weights: a liar may have made it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ml.data.chunks import get_chunk
from ml.methods.base import Blobs, Round, State
from ml.methods.common.sharing import SharesModel, get_agreed
from ml.models.base import Model
from ml.payload import Array, Arrays
from ml.specs.methods.feddbe import MEMORY, REPRESENTATION, FedDbeSpec
from ml.training.criterion import NO_CLASS
from ml.training.loop import Batch, Prepared, Schedule, Tensors
from ml.training.metrics import Prediction, answer
from ml.training.prior import ClassScores

_log = logging.getLogger(__name__)


class FedDbe(SharesModel[FedDbeSpec]):
    """Trains FedAvg's model with p_i, which is one of its parameters. The state besides the model is m: `mean`
    float32[D], absent before it is agreed, and if the client ignores it."""

    def init(self, state: State) -> None:
        model, zeros_D = state.model, torch.zeros(self.spec.task.embedding_dim, device=state.data.device)
        model.register_parameter(MEMORY, nn.Parameter(zeros_D))
        model.own_names = frozenset({MEMORY})

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        if self.spec.is_agreeing(round_.height):
            return Prepared()
        hyper, mean, device = self.spec.hyperparameters, state.arrays.get("mean"), state.data.device
        zeros_D = torch.zeros(self.spec.task.embedding_dim, device=device)
        context = {
            "mean": zeros_D if mean is None else torch.tensor(mean, device=device),
            "kappa": torch.tensor(0.0 if mean is None else hyper.kappa, device=device),
        }
        if hyper.mu == 1:
            return Prepared(context)
        context |= {"running": zeros_D.clone(), "share": torch.ones((), device=device)}
        return Prepared(context, on_gradients=tuple)  # trains alone: the loss depends on the step before

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        z_BD, memory_D = model.embed(batch.x), get_memory(model)
        if not context:  # the loss has to depend on p_i all the same
            return model.criterion(model.classify(z_BD + 0 * memory_D), batch.y)
        loss = model.criterion(model.classify(z_BD + memory_D), batch.y)
        mean_D = compute_batch_mean(z_BD, batch.y)
        if "running" in context:
            mean_D = move_mean(context["running"], context["share"], mean_D, self.spec.hyperparameters.mu)
        return loss + context["kappa"] * (mean_D - context["mean"]).square().mean()

    @property
    def takes_padding(self) -> bool:
        return type(self).compute_loss is FedDbe.compute_loss

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        if not self.spec.is_agreeing(round_.height):
            return super().finish(state, round_)
        return self.get_weight(state), {REPRESENTATION: {"mean": compute_mean(state.model, state.data.train.x)}}

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        super().apply(state, round_, aggregate, blobs)
        if self.spec.is_agreeing(round_.height) or "mean" not in state.arrays:
            agreed = get_agreed(aggregate, REPRESENTATION, round_)
            is_taken = self.is_within_reach(state, round_, torch.tensor(agreed["mean"], device=state.data.device))
            state.arrays = {"mean": np.array(agreed["mean"])} if is_taken else {}

    def is_within_reach(self, state: State, round_: Round, mean_D: Tensor) -> bool:
        """Says whether one step towards the mean, with a mini-batch, is shorter than all weights, as for every honest
        member's mean. If not, the client trains without it."""
        hyper, samples = self.spec.hyperparameters, state.data.train
        rows = round_.rng("probe of the mean").permutation(len(samples))[: hyper.batch_size]
        z_BD = state.model.eval().embed(samples.take(rows).x)
        loss = hyper.kappa * (z_BD.mean(0) - mean_D).square().mean()
        if not loss.requires_grad:  # no layer before the classifier trains
            return True
        weights = [weight for weight in state.model.parameters() if weight.requires_grad]
        gradients = [g for g in torch.autograd.grad(loss, weights, allow_unused=True) if g is not None]
        step = self.spec.compute_lr(round_.number) * _compute_length(gradients)
        if step <= (length := _compute_length([weight.detach() for weight in weights])):
            return True
        _log.warning(
            "Trains without the mean of all: expected a step shorter than the weights, %g, got %g", length, step
        )
        return False

    @property
    def is_answered_by_model(self) -> bool:
        return type(self).predict is FedDbe.predict

    def predict(self, state: State, x: Tensor) -> Prediction:
        return answer(self.compute_logits(state.model, x), self.spec.task.kind)

    def score_classes(self, state: State, x: Tensor, rows_N: Tensor | None = None) -> ClassScores:
        return ClassScores(self.compute_logits(state.model, x))

    def compute_logits(self, model: Model, x: Tensor) -> Tensor:
        """Computes g(f(x) + p_i)."""
        return model.classify(model.embed(x) + get_memory(model))


def _compute_length(tensors: Sequence[Tensor]) -> float:
    """Computes the norm of all tensors together."""
    length: Tensor = torch.stack(torch._foreach_norm(list(tensors))).norm()
    return length.item()


def get_memory(model: Model) -> Tensor:
    """Returns p_i [D], a parameter, or the tensor that replaces it while many clients are trained in one pass."""
    memory_D: Tensor = getattr(model, MEMORY)
    return memory_D


def compute_batch_mean(z_BD: Tensor, y_B: Tensor) -> Tensor:
    """Computes the mean [D] over the batch, without samples of no class."""
    z_BD = z_BD.float()  # autocast returns bfloat16
    if y_B.ndim > 1:
        return z_BD.mean(0)
    is_sample_B1 = (y_B != NO_CLASS).float()[:, None]
    return (z_BD * is_sample_B1).sum(0) / is_sample_B1.sum()


def move_mean(running_D: Tensor, share: Tensor, mean_D: Tensor, mu: float) -> Tensor:
    """Returns the new m_i, and writes it to `running_D`. `share` is the mini-batch's part in it: 1 in a phase's first
    step, and mu from then on."""
    part = share.clone()  # the gradient depends on this copy
    moved_D = (1 - part) * running_D + part * mean_D
    with torch.no_grad():
        running_D.copy_(moved_D)
        share.fill_(mu)
    return moved_D


@torch.no_grad()
def compute_mean(model: Model, x: Tensor) -> Array:
    """Computes the mean of the embeddings of samples, float32[D], by sums in float64. Leaves the model in eval mode."""
    model.eval()
    sums = [model.embed(part).double().sum(0) for part in torch.split(x, get_chunk(x.shape))]
    mean: Array = (torch.stack(sums).sum(0) / len(x)).float().cpu().numpy()
    return mean
