"""The losses of tasks whose samples have several answers: binary cross-entropy of labels, squared error of targets.

Of a multilabel task the loss is the mean over samples and labels of the binary cross-entropy, or of Lin et al.'s (2017)
focal loss in the form that they print it in. Smoothing takes a label's 1 for 1 - s/2 and its 0 for s/2, as Szegedy et
al.'s does for two classes, and `weights` weigh the samples that have a label by (N - n) / n, as King and Zeng (2001)
do for rare events: so many of N that have it count as much as all that have not. Of a regression it is the mean squared
error of targets at the run's scale, or Huber's (1964), squared up to `delta` and straight beyond.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

DELTA = 1.0  # Huber's, in deviations of the target


@dataclass(frozen=True, slots=True, eq=False)
class LabelCriterion:
    """Of logits_BL and y_BL, 0 or 1 each."""

    smoothing: float = 0.0
    weights: Tensor | None = None  # [L], of the samples that have a label
    gamma: float | None = None

    def __call__(self, logits_BL: Tensor, y_BL: Tensor) -> Tensor:
        soft_BL = y_BL * (1 - self.smoothing) + self.smoothing / 2 if self.smoothing else y_BL
        if self.gamma is None:
            return F.binary_cross_entropy_with_logits(logits_BL, soft_BL, pos_weight=self.weights)
        losses_BL = F.binary_cross_entropy_with_logits(logits_BL, soft_BL, pos_weight=self.weights, reduction="none")
        p_BL = torch.sigmoid(torch.where(y_BL > 0.5, logits_BL, -logits_BL))  # that the right answer was given
        return ((1 - p_BL) ** self.gamma * losses_BL).mean()


@dataclass(frozen=True, slots=True, eq=False)
class TargetCriterion:
    """Of values_BT and y_BT; `delta` is Huber's, None for the squared error."""

    delta: float | None = None

    def __call__(self, values_BT: Tensor, y_BT: Tensor) -> Tensor:
        if self.delta is None:
            return F.mse_loss(values_BT, y_BT)
        return F.huber_loss(values_BT, y_BT, delta=self.delta)


def compute_label_weights(y_NL: Tensor) -> Tensor:
    """[L], by which the samples that have a label weigh as much in all as those that have not; 1 where all have it, or
    none."""
    counts_L = y_NL.sum(0)
    others_L = len(y_NL) - counts_L
    is_mixed_L = (counts_L > 0) & (others_L > 0)
    return torch.where(is_mixed_L, others_L / counts_L.clamp(min=1), torch.ones_like(counts_L))
