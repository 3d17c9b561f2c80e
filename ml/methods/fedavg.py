"""FedAvg: clients train the common model on their own samples, and the results are averaged (ALGORITHMS §9).

McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, 2017: w_G <- sum_k (n_k /
n) w_k. There is no server: every member computes the same average, and a member that missed the round is left out of
it. A site's weight is in `ml.methods.common.sharing`, the mean in `ml.aggregation.means`.
"""

from __future__ import annotations

from ml.methods.common.sharing import SharesModel
from ml.specs.methods.fedavg import FedAvgSpec


class FedAvg(SharesModel[FedAvgSpec]):
    """Trains by cross-entropy from the common model on."""
