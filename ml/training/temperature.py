"""Temperature scaling: one number by which a model's logits are divided, so that its probabilities are right as often
as they say. No answer changes by it, only how sure it is.

Guo et al., *On Calibration of Modern Neural Networks*, 2017, §4.2:

    q_i = softmax(z_i / T)        T minimises the mean log loss on samples that are held out of training

The loss is convex in 1 / T, so that a golden-section search finds the lowest. Of labels each logit is divided, by one T
for all. T is kept between a quarter and 16: of few samples that are all answered right, the loss is lowest where the
model is as sure as can be.

Legend: N samples, C classes or labels.
"""

from __future__ import annotations

import math

from torch import Tensor

from ml.training.metrics import compute_loss

LOWEST, HIGHEST = 0.25, 16.0
NUM_STEPS = 40  # after which log T is known to 2e-8
_GOLDEN = (math.sqrt(5) - 1) / 2


def find_temperature(logits_NC: Tensor, y: Tensor, kind: str) -> float:
    """T by N >= 1 held-out samples of classes, or labels, `y`."""

    def measure(log_t: float) -> float:
        return compute_loss(logits_NC.double() / math.exp(log_t), y, kind)

    low, high = math.log(LOWEST), math.log(HIGHEST)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    of_left, of_right = measure(left), measure(right)
    for _ in range(NUM_STEPS):
        if of_left < of_right:
            high, right, of_right = right, left, of_left
            left = high - _GOLDEN * (high - low)
            of_left = measure(left)
        else:
            low, left, of_left = left, right, of_right
            right = low + _GOLDEN * (high - low)
            of_right = measure(right)
    return math.exp((low + high) / 2)
