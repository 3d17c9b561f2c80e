"""Training that hides each sample: DP-SGD, and prototypes with noise.

Abadi et al., *Deep Learning with Differential Privacy*, 2016, algorithm 1. Each step draws each sample independently
with the same chance q = B / N. The gradient g_i of each is clipped to the length C, and w moves along

    ( sum over i of g_i * min(1, C / |g_i|)  +  N(0, (sigma C)^2) ) / B

A method's loss is computed for each sample as a batch of one, so that a sample is in no other's gradient. Prototypes
are

    ( sum over the class of z_i * min(1, C_p / |z_i|)  +  N(0, (sigma_p C_p)^2) ) / n_c

where n_c, the number of samples of a class, has no noise. One sample is in one class, so that all of a client's
prototypes together change by no more than one of them does. `ml.accountant` computes the privacy loss of both.

Noise is added on a grid (`ml.gaussian`), to sums in float64, and comes from a stream that nobody can guess.

Legend: B samples of a step, D length of an embedding, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ml.gaussian import add_noise
from ml.models.base import Model
from ml.secret_stream import SecretStream
from ml.training.functional import PREFIX, make_function_of_weights
from ml.training.optimizers import Sgd

if TYPE_CHECKING:
    from ml.training.loop import Batch, ComputeLoss, Tensors

CHUNK = 64  # samples whose gradients are held at once


@dataclass(frozen=True, slots=True, eq=False)
class StepPrivacy:
    """Holds the noise settings of a phase's steps. The noise is in units of `clip`, the greatest length of a sample's
    gradient. The sum of gradients is divided by `batch_size`, the average number of samples in a step. The noise comes
    from `stream`."""

    noise: float
    clip: float
    batch_size: float
    stream: SecretStream


@dataclass(frozen=True, slots=True, eq=False)
class PrototypePrivacy:
    """Holds the noise settings of prototypes. The noise is in units of `clip`, the greatest length of an embedding."""

    noise: float
    clip: float
    stream: SecretStream

    def cut(self, z_ND: Tensor) -> Tensor:
        """Returns embeddings cut to the length `clip`; one that is not finite becomes zero."""
        return _cut(z_ND.double(), self.clip)

    def average(self, sums_CD: Tensor, counts_C: Tensor) -> Tensor:
        """Returns means of cut embeddings, computed from their sums with noise, and no longer than `clip`, as means
        without noise are."""
        hidden_CD = add_noise(sums_CD, self.noise, self.clip, self.stream)
        return _cut(hidden_CD / counts_C[:, None], self.clip)


class PrivateStep:
    """Makes a step with a batch, which may be empty, and returns the mean of its samples' losses, 0 for an empty batch.

    Raises ValueError for an optimiser whose gradients a method wants to see.
    """

    def __init__(
        self,
        model: Model,
        compute_loss: ComputeLoss,
        context: Tensors,
        sgd: Sgd,
        privacy: StepPrivacy,
        autocast: AbstractContextManager[Any],
    ) -> None:
        if sgd.on_gradients is not None:
            raise ValueError("a private step: expected gradients that nobody looks at before there is noise")
        self._context = context
        self._sgd = sgd
        self._privacy = privacy
        trained = ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)
        self._weights = {PREFIX + name: weight.detach() for name, weight in trained}
        one = torch.func.grad_and_value(make_function_of_weights(model, compute_loss, autocast))
        self._differentiate = torch.func.vmap(one, in_dims=(None, 0, None), randomness="different")

    def __call__(self, batch: Batch) -> Tensor:
        how, weights = self._privacy, tuple(self._weights.values())
        with torch.no_grad():
            total_P = torch.zeros(sum(map(torch.numel, weights)), dtype=torch.float64, device=weights[0].device)
            losses = []
            for part in _split(batch):
                gradients, losses_B = self._differentiate(self._weights, part, self._context)
                total_P += _sum_cut([gradients[name].flatten(1) for name in self._weights], how.clip)
                losses.append(losses_B)
            mean_P = add_noise(total_P, how.noise, how.clip, how.stream) / how.batch_size
            parts = zip(torch.split(mean_P, [weight.numel() for weight in weights]), weights, strict=True)
            self._sgd.update([part.view_as(weight).to(weight.dtype) for part, weight in parts])
            return torch.cat(losses).mean() if losses else weights[0].new_zeros(())


def _sum_cut(rows: Sequence[Tensor], clip: float) -> Tensor:
    """Returns the sum of samples' gradients, each cut to the clip, float64[P]; a gradient without a finite length is
    left out. `rows` are the gradients' parts by weight. Lengths are computed in float64: in float32 many small numbers
    beside a large one are lost, and a gradient would stay longer than it may be."""
    lengths_B = torch.stack([part.norm(dim=1, dtype=torch.float64) for part in rows]).norm(dim=0)
    is_finite_B = lengths_B.isfinite()
    if not is_finite_B.all():
        rows, lengths_B = [part[is_finite_B] for part in rows], lengths_B[is_finite_B]
    scales_B = clip / lengths_B.clamp(min=clip)
    return torch.cat([scales_B @ part.double() for part in rows])


def _cut(rows_ND: Tensor, clip: float) -> Tensor:
    """Returns rows cut to the length `clip`; one that has no finite length becomes zero."""
    lengths_N1 = rows_ND.norm(dim=1, keepdim=True)
    cut_ND = rows_ND * (clip / lengths_N1.clamp(min=clip))
    return torch.where(lengths_N1.isfinite(), cut_ND, torch.zeros_like(cut_ND))


def _split(batch: Batch) -> Iterator[Batch]:
    """Yields parts of a batch, each sample as a batch of one."""
    for start in range(0, len(batch.x), CHUNK):
        rows = slice(start, start + CHUNK)
        extra = {name: tensor[rows].unsqueeze(1) for name, tensor in batch.extra.items()}
        yield batch._replace(x=batch.x[rows].unsqueeze(1), y=batch.y[rows].unsqueeze(1), extra=extra)
