"""Temperature scaling: one number by which a model's logits are divided, so that its probabilities match how often it
is right. No answer changes by it, only its probability.

Guo et al., *On Calibration of Modern Neural Networks*, 2017, §4.2:

    q_i = softmax(z_i / T)        T minimises the log loss on N samples that are held out of training

A site may have ten such samples, all answered right, and then that loss is lowest for a model that is as sure as
possible. So T has a prior, log T normal around 0, and few samples change it little:

    T = argmin  N loss(T) + (log T)^2 / (2 s^2)        s = 0.35

over steps of 2^(1/24) from a quarter to 16. In a multilabel task each logit is divided, by one T for all labels.

Legend: N samples, C classes or labels.
"""

from __future__ import annotations

import math

from torch import Tensor

from ml.training.metrics import compute_loss

TEMPERATURES = tuple(2 ** (k / 24) for k in range(-48, 97))
DEVIATION = 0.35  # s


def find_temperature(logits_NC: Tensor, y: Tensor, kind: str) -> float:
    """Finds T on held-out samples of classes, or labels, `y`."""
    logits_NC = logits_NC.double()

    def measure(temperature: float) -> float:
        log_prior = (math.log(temperature) / DEVIATION) ** 2 / 2
        return len(y) * compute_loss(logits_NC / temperature, y, kind) + log_prior

    return min(TEMPERATURES, key=measure)
