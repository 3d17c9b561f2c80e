"""Logit adjustment towards a client's own prior: a dial at prediction time from everyone's expert, 0, to its own, 1.

Menon et al., *Long-tail learning via logit adjustment*, 2021. q is the shares of the classes among the client's own
training samples, smoothed by one of each; it never leaves the client, and nothing is trained again:

    log p(c | x) = log_softmax(s(x))_c + kappa * log q(c), normalised        q(c) = (n_c + 1) / (n + C)

s is what a method's answer is the largest of: the classifier's logits, or by prototypes -d_c^2 / (2 tau), d_c the
distance from the nearest of class c. A client's own kappa is the one that its own training samples are answered best
by, of equal ones the smallest: no samples are held out for it.

Legend: N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ml.training.metrics import Prediction

KAPPAS = (0.0, 0.1, 0.25, 0.5, 1.0)  # that an evaluation goes through


class ClassScores(NamedTuple):
    """s, float32[N, C], minus infinity for a class that nobody can answer with. Where prototypes answer, `distances`
    float32[N, C] are those from the nearest of each class, and of a pool `authors` int64[N, C] whose that is."""

    scores: Tensor
    distances: Tensor | None = None
    authors: Tensor | None = None


def compute_log_prior(y_N: Tensor, num_classes: int) -> Tensor:
    """log q, float32[C], of labels."""
    counts_C = torch.bincount(y_N, minlength=num_classes).double() + 1
    return (counts_C / counts_C.sum()).log().float()


def adjust(said: ClassScores, log_prior_C: Tensor, kappa: float) -> Prediction:
    """The answers at `kappa`, whose logits are log p(c | x)."""
    log_NC = F.log_softmax(F.log_softmax(said.scores.float(), 1) + kappa * log_prior_C, 1)
    labels_N = log_NC.argmax(1)
    chosen = (each if each is None else each.gather(1, labels_N[:, None])[:, 0] for each in said[1:])
    return Prediction(log_NC, labels_N, *chosen)


def choose_kappa(said: ClassScores, y_N: Tensor, log_prior_C: Tensor, kappas: Sequence[float] = KAPPAS) -> float:
    """The smallest of the kappas by which most of the samples are answered as labelled."""
    right = [int((adjust(said, log_prior_C, kappa).labels == y_N).sum()) for kappa in kappas]
    return kappas[right.index(max(right))]
