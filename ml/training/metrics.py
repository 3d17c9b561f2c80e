"""Accuracy and loss of one client, and the papers' figures made of them over clients, rounds and seeds (ALGORITHMS
§8.2).

Accuracies are in 0..1. The test loss is the classifier's cross-entropy, also where prototypes predict; of labels the
binary one, and of targets the squared error at the run's scale.
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
    """Of N samples: the classifier's logits_NC, and labels_N, which a method may choose otherwise; of a multilabel task
    logits_NL and labels_NL, 0 or 1 each, and of a regression twice the values_NT at the run's scale.

    Where prototypes chose them, `distances` float32[N] are those to the nearest; and where the prototypes are a pool,
    `authors` int64[N] say whose that was, by their place in the block that was applied.
    """

    logits: Tensor
    labels: Tensor
    distances: Tensor | None = None
    authors: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The answers to samples whose labels, or targets, are known, chunk by chunk. `metrics` are `loss`, the mean over
    samples of the task's own, and how good the answers are: `accuracy`, the fraction that is right (of labels: all of
    a sample's), or of a regression `r2`. Of no samples they are no numbers."""

    metrics: dict[str, float]
    logits: Sequence[Tensor]
    labels: Sequence[Tensor]

    def to_numpy(self, task: Task) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """labels_N, and probabilities_NC by the softmax of the logits; of a multilabel task labels_NL and each label's
        own probability; of a regression values_NT twice, in the targets' units. There is at least one sample."""
        logits_NC = torch.cat(list(self.logits)).double().cpu()
        if task.kind == REGRESSION:
            values_NT = task.scale.unscale(logits_NC.numpy())
            return values_NT, values_NT
        probabilities_NC = logits_NC.sigmoid() if task.kind == MULTILABEL else logits_NC.softmax(1)
        return torch.cat(list(self.labels)).cpu().numpy(), probabilities_NC.numpy()


def answer(logits: Tensor, kind: str) -> Prediction:
    """What a model's outputs say: the likeliest class, the labels that are likelier than not, or the values."""
    if kind == CLASSIFICATION:
        return Prediction(logits, logits.argmax(1))
    return Prediction(logits, (logits > 0).long() if kind == MULTILABEL else logits)


@torch.no_grad()
def judge(
    predict: Callable[[Tensor], Prediction], x: Tensor, y: Tensor, chunk: int | None = None, kind: str = CLASSIFICATION
) -> Judged:
    """Has samples answered by `predict`, which is in eval mode and gets at most `chunk` of them at a time."""
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
    """How many answers are right, and the sum of the losses: float64[2]. A sample of no class counts for neither."""
    is_right = labels == y
    correct = (is_right if kind == CLASSIFICATION else is_right.all(1)).sum()
    return torch.stack((correct.double(), _sum_losses(logits, y, kind).double()))


def compute_loss(logits: Tensor, y: Tensor, kind: str) -> float:
    """The mean over samples of the task's own loss."""
    true = y if kind == CLASSIFICATION else y.to(logits.dtype)
    return float(_sum_losses(logits, true, kind)) / len(y)


def get_score(metrics: Mapping[str, float]) -> float:
    """The accuracy, or of a regression R2, which takes its place: the higher the better, 1 at best. No number where
    nothing was measured, as in a round in which none is trained."""
    return metrics.get("accuracy", metrics.get("r2", math.nan))


def _sum_losses(logits: Tensor, y: Tensor, kind: str) -> Tensor:
    if kind == CLASSIFICATION:
        return F.cross_entropy(logits, y, reduction="sum")
    if kind == MULTILABEL:
        return F.binary_cross_entropy_with_logits(logits, y, reduction="sum") / y.shape[1]
    return F.mse_loss(logits, y, reduction="sum") / y.shape[1]


def _compute_r2(values_NT: Tensor, y_NT: Tensor) -> float:
    """The mean over targets; no number where there is nothing to explain."""
    values, y = values_NT.double(), y_NT.double()
    spread_T = (y - y.mean(0)).square().sum(0)
    r2_T = 1 - (values - y).square().sum(0) / spread_T
    return float(r2_T[spread_T > 0].mean())


def compute_mean(values: Iterable[float]) -> float:
    """The unweighted mean over clients: TAA of accuracies, TAL of losses."""
    known = list(values)
    return math.fsum(known) / len(known)


def compute_std(values: Iterable[float]) -> float:
    """The population standard deviation, as over seeds."""
    known = list(values)
    mean = compute_mean(known)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in known) / len(known))
