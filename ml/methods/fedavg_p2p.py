"""FedAvg without a common model: each client averages its own with those of a few others (ALGORITHMS §9).

McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, 2017, in the peer-to-peer
form that UA-PDFL is compared with. Client i has drawn the peers Q and n_j is how many samples j has:

    w_i <- sum over j in {i} + Q of n_j w_j / sum of n_j

With as many peers as there are others, this is FedAvg. Where we deviate: there is no server and no common model.
"""

from __future__ import annotations

from ml.methods.common.mixing import AveragesParts
from ml.specs.methods.fedavg_p2p import FedAvgP2pSpec


class FedAvgP2p(AveragesParts[FedAvgP2pSpec]):
    """Trains by cross-entropy; both parts of the model are averaged."""
