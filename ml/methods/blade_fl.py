"""BLADE-FL: FedAvg in a chain, every model counting the same (ALGORITHMS §9).

Li et al., *Blockchain Assisted Decentralized Federated Learning (BLADE-FL): Performance Analysis and Resource
Allocation*, 2022: w_G <- (1/K) sum_k w_k over the models in the winner's block, each node averaging them itself.

Where we deviate: here every member recomputes the mean before it votes for the block, and plain SGD with momentum 0 and
E steps is the default of all methods. E follows from a time budget by DFPL's model, with the same constants:
`budget_s`.
"""

from __future__ import annotations

from ml.methods.common.sharing import SharesModel
from ml.specs.methods.blade_fl import BladeFlSpec


class BladeFl(SharesModel[BladeFlSpec]):
    """Trains by cross-entropy from the common model on."""
