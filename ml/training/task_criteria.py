"""The losses of tasks whose samples have several answers: binary cross-entropy of labels, squared error of targets.

In a multilabel task the loss is the mean over samples and labels of the binary cross-entropy, or of Lin et al.'s (2017)
focal loss in the form that they print it in. Smoothing replaces a label's 1 by 1 - s/2 and its 0 by s/2, as Szegedy et
al.'s does for two classes. `weights` weigh the samples that have a label by (N - n) / n, as King and Zeng (2001) do for
rare events: the n of N samples that have the label then count as much as all others. In a regression the loss is the
mean squared error of targets at the run's scale, or Huber's (1964), which is squared up to `delta` and linear beyond.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

DELTA = 1.0  # Huber's, in deviations of the target


@dataclass(frozen=True, slots=True, eq=False)
class LabelCriterion:
    """Computes the loss of logits_BL for labels y_BL, 0 or 1 each."""

    smoothing: float = 0.0
    weights: Tensor | None = None  # [L], for the samples that have a label
    gamma: float | None = None

    def __call__(self, logits_BL: Tensor, y_BL: Tensor) -> Tensor:
        soft_BL = y_BL * (1 - self.smoothing) + self.smoothing / 2 if self.smoothing else y_BL
        if self.gamma is None:
            return F.binary_cross_entropy_with_logits(logits_BL, soft_BL, pos_weight=self.weights)
        losses_BL = F.binary_cross_entropy_with_logits(logits_BL, soft_BL, pos_weight=self.weights, reduction="none")
        p_BL = torch.sigmoid(torch.where(y_BL > 0.5, logits_BL, -logits_BL))  # the probability of the right answer
        return ((1 - p_BL) ** self.gamma * losses_BL).mean()


@dataclass(frozen=True, slots=True, eq=False)
class TargetCriterion:
    """Computes the loss of values_BT for targets y_BT; `delta` is Huber's, None for the squared error."""

    delta: float | None = None

    def __call__(self, values_BT: Tensor, y_BT: Tensor) -> Tensor:
        if self.delta is None:
            return F.mse_loss(values_BT, y_BT)
        return F.huber_loss(values_BT, y_BT, delta=self.delta)


def compute_label_weights(y_NL: Tensor) -> Tensor:
    """Computes [L], by which the samples that have a label weigh as much in all as those that do not; 1 if all samples
    have it, or none."""
    counts_L = y_NL.sum(0)
    others_L = len(y_NL) - counts_L
    is_mixed_L = (counts_L > 0) & (others_L > 0)
    return torch.where(is_mixed_L, others_L / counts_L.clamp(min=1), torch.ones_like(counts_L))
