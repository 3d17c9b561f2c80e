"""Accuracy and loss of one client, and the papers' figures computed from them over clients, rounds and seeds
(ALGORITHMS §8.2).

Accuracies are in 0..1. The test loss is the classifier's cross-entropy, also if prototypes predict. For labels it is
the binary cross-entropy, and for targets the squared error at the run's scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ml.data.chunks import get_chunk
from ml.specs.task import Task
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION

SCORES = {CLASSIFICATION: "accuracy", MULTILABEL: "accuracy", REGRESSION: "r2"}


class Prediction(NamedTuple):
    """Holds the answers for N samples: the classifier's logits_NC, and labels_N, which a method may choose otherwise.
    In a multilabel task these are logits_NL and labels_NL, 0 or 1 each, and in a regression twice the values_NT at the
    run's scale.

    If prototypes chose the labels, `distances` float32[N] are the distances to the nearest; and if the prototypes are a
    pool, `authors` int64[N] has the author of the nearest one, by its place in the block that was applied.
    """

    logits: Tensor
    labels: Tensor
    distances: Tensor | None = None
    authors: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Holds the answers to samples whose labels, or targets, are known, chunk by chunk. `metrics` are `loss`, the
    task's mean loss over samples, and `accuracy`, the fraction of right answers (in a multilabel task a sample counts
    if all its labels are right), or in a regression `r2`. Without samples they are NaN."""

    metrics: dict[str, float]
    logits: Sequence[Tensor]
    labels: Sequence[Tensor]

    def to_numpy(self, task: Task) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Returns labels_N, and probabilities_NC by the softmax of the logits; in a multilabel task labels_NL and each
        label's own probability; in a regression values_NT twice, in the targets' units. There must be at least one
        sample."""
        logits_NC = torch.cat(list(self.logits)).double().cpu()
        if task.kind == REGRESSION:
            values_NT = task.scale.unscale(logits_NC.numpy())
            return values_NT, values_NT
        probabilities_NC = logits_NC.sigmoid() if task.kind == MULTILABEL else logits_NC.softmax(1)
        return torch.cat(list(self.labels)).cpu().numpy(), probabilities_NC.numpy()


def answer(logits: Tensor, kind: str) -> Prediction:
    """Returns the answers in a model's outputs: the likeliest class, the labels with a probability above a half, or the
    values."""
    if kind == CLASSIFICATION:
        return Prediction(logits, logits.argmax(1))
    return Prediction(logits, (logits > 0).long() if kind == MULTILABEL else logits)


@torch.no_grad()
def judge(
    predict: Callable[[Tensor], Prediction], x: Tensor, y: Tensor, chunk: int | None = None, kind: str = CLASSIFICATION
) -> Judged:
    """Measures the answers of `predict`, which is called in eval mode with at most `chunk` samples at a time."""
    score, size = SCORES[kind], get_chunk(x.shape)
    chunk = size if chunk is None else min(chunk, size)
    if not len(y):
        return Judged({score: math.nan, "loss": math.nan}, (), ())
    total_2 = torch.zeros(2, dtype=torch.float64, device=y.device)
    all_logits, all_labels = [], []
    for x_chunk, y_chunk in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        logits, labels, *_ = predict(x_chunk)
        total_2 += tally(logits, labels, y_chunk, kind)
        all_logits.append(logits)
        all_labels.append(labels)
    correct, loss = total_2.tolist()
    value = _compute_r2(torch.cat(all_logits), y) if kind == REGRESSION else correct / len(y)
    return Judged({score: value, "loss": loss / len(y)}, all_logits, all_labels)


def tally(logits: Tensor, labels: Tensor, y: Tensor, kind: str) -> Tensor:
    """Counts the right answers, and sums the losses: float64[2]. A sample of no class counts for neither."""
    is_right = labels == y
    correct = (is_right if kind == CLASSIFICATION else is_right.all(1)).sum()
    return torch.stack((correct.double(), _sum_losses(logits, y, kind).double()))


def compute_loss(logits: Tensor, y: Tensor, kind: str) -> float:
    """Computes the mean over samples of the task's loss."""
    true = y if kind == CLASSIFICATION else y.to(logits.dtype)
    return float(_sum_losses(logits, true, kind)) / len(y)


def get_score(metrics: Mapping[str, float]) -> float:
    """Returns the accuracy, or for a regression R2: the higher the better, 1 at best. It is NaN if nothing was
    measured, as in a round in which none is trained."""
    return metrics.get("accuracy", metrics.get("r2", math.nan))


def _sum_losses(logits: Tensor, y: Tensor, kind: str) -> Tensor:
    if kind == CLASSIFICATION:
        return F.cross_entropy(logits, y, reduction="sum")
    if kind == MULTILABEL:
        return F.binary_cross_entropy_with_logits(logits, y, reduction="sum") / y.shape[1]
    return F.mse_loss(logits, y, reduction="sum") / y.shape[1]


def _compute_r2(values_NT: Tensor, y_NT: Tensor) -> float:
    """Computes the mean R2 over targets that vary; NaN if none does."""
    values, y = values_NT.double(), y_NT.double()
    spread_T = (y - y.mean(0)).square().sum(0)
    r2_T = 1 - (values - y).square().sum(0) / spread_T
    return float(r2_T[spread_T > 0].mean())


def compute_mean(values: Iterable[float]) -> float:
    """Computes the unweighted mean over clients: TAA of accuracies, TAL of losses."""
    known = list(values)
    return math.fsum(known) / len(known)


def compute_std(values: Iterable[float]) -> float:
    """Computes the population standard deviation, as over seeds."""
    known = list(values)
    mean = compute_mean(known)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in known) / len(known))
