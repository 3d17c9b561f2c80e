"""The loss of a classifier on a batch: cross-entropy, or a variant that a run's settings choose; other tasks have
theirs in `ml.training.task_criteria`.

`label_smoothing` is Szegedy et al.'s (2016, Section 7), `focal` the loss of Lin et al. (2017, eq. 5), and class weights
are King and Zeng's (2001): N / (C n_c) for a class with n_c of N samples, C being the number of classes that occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ml.specs.hyperparameters import Hyperparameters
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION
from ml.training.task_criteria import DELTA, LabelCriterion, TargetCriterion, compute_label_weights

GAMMA = 2.0  # Lin et al.'s choice
NO_CLASS = -100  # the label of samples that cross-entropy ignores, as in torch


@dataclass(frozen=True, slots=True, eq=False)
class Criterion:
    """Computes the mean loss over the batch of logits_BC for classes y_B. `weights` [C] weigh samples by their class,
    None weighs all alike. With `gamma` a sample counts (1 - p)^gamma, p being the probability that the model gives its
    class."""

    smoothing: float = 0.0
    weights: Tensor | None = None
    gamma: float | None = None

    @property
    def takes_padding(self) -> bool:
        """Says whether the mean stays the same if samples of NO_CLASS are added to the batch."""
        return self.gamma is None

    def __call__(self, logits_BC: Tensor, y_B: Tensor) -> Tensor:
        if self.gamma is None:
            return F.cross_entropy(logits_BC, y_B, weight=self.weights, label_smoothing=self.smoothing)
        losses_B = F.cross_entropy(
            logits_BC, y_B, weight=self.weights, label_smoothing=self.smoothing, reduction="none"
        )
        p_B = logits_BC.softmax(1).gather(1, y_B[:, None])[:, 0]
        focused_B = (1 - p_B) ** self.gamma * losses_B
        return focused_B.mean() if self.weights is None else focused_B.sum() / self.weights[y_B].sum()


def make_criterion(
    hyper: Hyperparameters, y: Tensor, num_classes: int, agreed: Sequence[int] | None = None, kind: str = CLASSIFICATION
) -> Criterion | LabelCriterion | TargetCriterion:
    """Makes the criterion of a client whose training samples have these classes, or, by the kind of task, labels or
    targets. `agreed` is how many samples of each class all members have, once that is known."""
    if kind == REGRESSION:
        return TargetCriterion((hyper.huber_delta or DELTA) if hyper.loss == "huber" else None)
    smoothing = hyper.label_smoothing or 0.0
    gamma = (hyper.focal_gamma or GAMMA) if hyper.loss == "focal" else None
    if kind == MULTILABEL:
        return LabelCriterion(smoothing, compute_label_weights(y) if hyper.class_weights == "own" else None, gamma)
    weights = None
    if hyper.class_weights == "own":
        weights = compute_class_weights(y, num_classes)
    elif hyper.class_weights == "agreed" and agreed is not None:
        weights = weigh_classes(torch.tensor(agreed, device=y.device))
    return Criterion(smoothing, weights, gamma)


def compute_class_weights(y_N: Tensor, num_classes: int) -> Tensor:
    """Computes the weights of classes from the classes of these samples."""
    return weigh_classes(torch.bincount(y_N, minlength=num_classes))


def weigh_classes(counts_C: Tensor) -> Tensor:
    """Computes [C], by which each class that occurs weighs as much in all as any other; 1 for one that does not
    occur."""
    counts_C = counts_C.float()
    total, num_present = counts_C.sum(), (counts_C > 0).sum()
    return torch.where(counts_C > 0, total / (num_present * counts_C.clamp(min=1)), torch.ones_like(counts_C))
