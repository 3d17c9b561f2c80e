"""Two models' answers mixed, the federation's and those of the model trained alone: an ensemble of two, by one weight.

    p = w p_together + (1 - w) p_alone

where p are probabilities, or a regression's values. w is the mean of some weights w_k, each weighted by the likelihood
of the N val samples under its mixture (Bayesian model averaging by a uniform prior: Hoeting et al. 1999, Eq. (1); the
average of mixtures is again a mixture, that of the mean weight):

    w = sum_k w_k exp(-N loss_k) / sum_k exp(-N loss_k)

loss_k is the mean log loss of the mixture; for targets it is log(mean squared error) / 2, a Gaussian's whose variance
is that error, in the mean over targets. Without val samples w is a half. So few samples change w little, and many much.

Legend: N samples, C classes, labels or targets.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ml.measures.kinds import Answers
from ml.tasks import MULTILABEL, REGRESSION
from ml.training.metrics import compute_loss

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # for the federation's model
LEAST = 1e-12  # the least mean squared error that is assumed


def mix(together_NC: Tensor, alone_NC: Tensor, weight: float, kind: str) -> Tensor:
    """Returns the logits, or values, of the mixture of two models' float64."""
    if kind == REGRESSION:
        return weight * together_NC + (1 - weight) * alone_NC
    if kind == MULTILABEL:
        return _mix_logs(F.logsigmoid(together_NC), F.logsigmoid(alone_NC), weight) - _mix_logs(
            F.logsigmoid(-together_NC), F.logsigmoid(-alone_NC), weight
        )
    return _mix_logs(F.log_softmax(together_NC, 1), F.log_softmax(alone_NC, 1), weight)


def mix_answers(together: Answers, alone: Answers, weight: float, kind: str) -> Answers:
    """Returns the answers of the mixture of two models to the same samples."""
    said = weight * together.said + (1 - weight) * alone.said
    if kind == REGRESSION:
        return Answers(together.y, said, said)
    return Answers(together.y, (said > 0.5).astype(np.int64) if kind == MULTILABEL else said.argmax(1), said)


def _mix_logs(together_NC: Tensor, alone_NC: Tensor, weight: float) -> Tensor:
    log_2 = torch.tensor([weight, 1 - weight], dtype=torch.float64).log()
    return torch.logaddexp(together_NC + log_2[0], alone_NC + log_2[1])


def find_weight(together_NC: Tensor, alone_NC: Tensor, y: Tensor, kind: str) -> float:
    """Computes w from the float64 outputs of two models for val samples of the classes, labels or targets `y`."""
    if not len(y):
        return 0.5
    losses = [_measure(mix(together_NC, alone_NC, weight, kind), y, kind) for weight in WEIGHTS]
    likely = [math.exp(-len(y) * (loss - min(losses))) for loss in losses]
    return math.fsum(weight * each for weight, each in zip(WEIGHTS, likely, strict=True)) / math.fsum(likely)


def _measure(said_NC: Tensor, y: Tensor, kind: str) -> float:
    if kind == REGRESSION:
        squared_T = (said_NC - y.double()).square().mean(0)
        return float(squared_T.clamp(min=LEAST).log().mean()) / 2
    return compute_loss(said_NC, y, kind)
