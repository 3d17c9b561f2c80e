"""FedBN: FedAvg, where each client keeps its batch normalisation to itself.

Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, 2021, algorithm 1. For each
layer l that is no batch norm

    w(l) <- sum over k of (n_k / n) w_k(l)

and gamma, beta, mean and variance of a batch norm stay. The personal model is the one to evaluate.

Where we deviate: the paper's clients have the same number of samples, so that its mean is the plain one; here it is
weighted as FedAvg's.
"""

from __future__ import annotations

from ml.methods.common.sharing import SharesPart
from ml.specs.methods.fedbn import FedBnSpec


class FedBn(SharesPart[FedBnSpec]):
    """Trains by cross-entropy from the common model and the client's own batch norm on."""
