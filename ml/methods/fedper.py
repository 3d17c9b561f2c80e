"""FedPer: a common feature extractor, and a classifier that never leaves its client (ALGORITHMS §9).

Arivazhagan et al., *Federated Learning with Personalization Layers*, 2019. In the peer-to-peer form that UA-PDFL is
compared with, client i has drawn the peers Q and n_j is how many samples j has:

    w_g <- sum over j in {i} + Q of n_j w_g(j) / sum of n_j        w_h stays

The personal model, after a local phase, is the one to evaluate. Where we deviate: the paper has a server that averages
all clients. Its personal layers are the last ones, in a number that it chooses; here they are the classifier h of the
architecture.
"""

from __future__ import annotations

from ml.methods.common.mixing import AveragesParts
from ml.specs.methods.fedper import FedPerSpec


class FedPer(AveragesParts[FedPerSpec]):
    """Trains by cross-entropy; g is the only part that is sent, and so the only one that is averaged."""
