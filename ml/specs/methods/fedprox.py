"""FedProx: FedAvg whose local phase is held near the model it began from (ALGORITHMS §9).

Li et al., *Federated Optimization in Heterogeneous Networks*, 2020. What is exchanged is FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.specs.hyperparameters import Hyperparameters, number
from ml.specs.sharing import ModelHyperparameters, ModelSpec


@dataclass(frozen=True, kw_only=True)
class FedProxHyperparameters(ModelHyperparameters):
    """Settings of FedProx. `mu` weighs the proximal term. The default is FedEDS's value for its FedProx; MP-FedCL and
    DFPL state none."""

    mu: float = number(0.1, "[0, inf)")


@dataclass(frozen=True)
class FedProxSpec(ModelSpec):
    """FedProx's spec, which exchanges the model alone."""

    name: ClassVar[str] = "fedprox"
    hides_samples: ClassVar[bool] = True
    settings: ClassVar[type[Hyperparameters]] = FedProxHyperparameters

    hyperparameters: FedProxHyperparameters
