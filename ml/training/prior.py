"""Logit adjustment towards a client's own prior: kappa sets, at prediction time, how far answers go from everyone's
expert, 0, to the client's own, 1.

Menon et al., *Long-tail learning via logit adjustment*, 2021. q has the shares of the classes among the client's own
training samples, smoothed by one of each; it never leaves the client, and nothing is trained again:

    log p(c | x) = log_softmax(s(x))_c + kappa * log q(c), normalised        q(c) = (n_c + 1) / (n + C)

A method answers with the class of the largest s: the classifier's logits, or for prototypes -d_c^2 / (2 tau), d_c being
the distance from the nearest of class c. A client's own kappa is the one that answers its own training samples best, of
equal ones the smallest: no samples are held out for it.

Legend: N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ml.training.metrics import Prediction

KAPPAS = (0.0, 0.1, 0.25, 0.5, 1.0)  # measured by an evaluation


class ClassScores(NamedTuple):
    """Holds s, float32[N, C], minus infinity for a class that cannot be answered. If prototypes answer, `distances`
    float32[N, C] are those from the nearest of each class, and for a pool `authors` int64[N, C] are the authors of
    these."""

    scores: Tensor
    distances: Tensor | None = None
    authors: Tensor | None = None


def compute_log_prior(y_N: Tensor, num_classes: int) -> Tensor:
    """Computes log q, float32[C], from labels."""
    counts_C = torch.bincount(y_N, minlength=num_classes).double() + 1
    return (counts_C / counts_C.sum()).log().float()


def adjust(said: ClassScores, log_prior_C: Tensor, kappa: float) -> Prediction:
    """Returns the answers at `kappa`, whose logits are log p(c | x)."""
    log_NC = F.log_softmax(F.log_softmax(said.scores.float(), 1) + kappa * log_prior_C, 1)
    labels_N = log_NC.argmax(1)
    chosen = (each if each is None else each.gather(1, labels_N[:, None])[:, 0] for each in said[1:])
    return Prediction(log_NC, labels_N, *chosen)


def choose_kappa(said: ClassScores, y_N: Tensor, log_prior_C: Tensor, kappas: Sequence[float] = KAPPAS) -> float:
    """Returns the kappa that answers most of the samples as labelled, of equal ones the smallest."""
    right = [int((adjust(said, log_prior_C, kappa).labels == y_N).sum()) for kappa in kappas]
    return kappas[right.index(max(right))]
