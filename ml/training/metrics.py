"""Accuracy and loss of one client, and the papers' figures made of them over clients, rounds and seeds (ALGORITHMS
§8.2).

Accuracies are in 0..1. The test loss is the classifier's cross-entropy, also where prototypes predict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 2048


class Prediction(NamedTuple):
    """Of N samples: the classifier's logits_NC, and labels_N, which a method may choose otherwise.

    Where prototypes chose them, `distances` float32[N] are those to the nearest; and where the prototypes are a pool,
    `authors` int64[N] say whose that was, by their place in the block that was applied.
    """

    logits: Tensor
    labels: Tensor
    distances: Tensor | None = None
    authors: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The answers to labelled samples, chunk by chunk: logits_NC and labels_N. `metrics` are `accuracy`, the fraction
    that is right, and `loss`, the mean cross-entropy; of no samples they are no numbers."""

    metrics: dict[str, float]
    logits: Sequence[Tensor]
    labels: Sequence[Tensor]

    def to_numpy(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """labels_N, and probabilities_NC by the softmax of the logits. There is at least one sample."""
        logits_NC = torch.cat(list(self.logits)).double()
        return torch.cat(list(self.labels)).cpu().numpy(), logits_NC.softmax(1).cpu().numpy()


@torch.no_grad()
def judge(predict: Callable[[Tensor], Prediction], x: Tensor, y_N: Tensor, chunk: int = CHUNK) -> Judged:
    """Has labelled samples answered by `predict`, which is in eval mode and gets `chunk` of them at a time."""
    if not len(y_N):
        return Judged({"accuracy": math.nan, "loss": math.nan}, (), ())
    correct = torch.zeros((), dtype=torch.int64, device=y_N.device)
    loss = torch.zeros((), dtype=torch.float64, device=y_N.device)
    all_logits, all_labels = [], []
    for x_chunk, y_chunk in zip(torch.split(x, chunk), torch.split(y_N, chunk), strict=True):
        logits, labels, *_ = predict(x_chunk)
        correct += (labels == y_chunk).sum()
        loss += F.cross_entropy(logits, y_chunk, reduction="sum").double()
        all_logits.append(logits)
        all_labels.append(labels)
    metrics = {"accuracy": correct.item() / len(y_N), "loss": loss.item() / len(y_N)}
    return Judged(metrics, all_logits, all_labels)


def compute_mean(values: Iterable[float]) -> float:
    """The unweighted mean over clients: TAA of accuracies, TAL of losses."""
    known = list(values)
    return math.fsum(known) / len(known)


def compute_std(values: Iterable[float]) -> float:
    """The population standard deviation, as over seeds."""
    known = list(values)
    mean = compute_mean(known)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in known) / len(known))


def count_rounds_to(accuracy: float, taa: Sequence[float]) -> int | None:
    """The first round, from 1 on, whose TAA reaches `accuracy`; None where none does."""
    return next((round_ for round_, value in enumerate(taa, start=1) if value >= accuracy), None)
