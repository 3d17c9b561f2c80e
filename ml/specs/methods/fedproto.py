"""FedProto: prototypes are exchanged instead of models, DFPL without its chain (ALGORITHMS §9).

Tan et al., *FedProto: Federated Prototype Learning across Heterogeneous Clients*, 2022. Its code averages a class over
its owners alike, which is `proto_agg: owners`; its paper weights them by class sizes, `samples`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.specs.hyperparameters import Hyperparameters, choice, number
from ml.specs.sharing import PrototypeHyperparameters, PrototypeSpec


@dataclass(frozen=True, kw_only=True)
class FedProtoHyperparameters(PrototypeHyperparameters):
    """Settings of FedProto. `lambda_` (genesis: `lambda`) weighs the distance from the global prototypes, 1 in the
    paper and 0.1 for CIFAR-10; `infer` predicts by the nearest prototype or the classifier."""

    lambda_: float = number(1.0, "[0, inf)")
    infer: str = choice("prototype", "classifier")


@dataclass(frozen=True)
class FedProtoSpec(PrototypeSpec):
    """FedProto's spec: members send and receive prototypes, and never weights."""

    name: ClassVar[str] = "fedproto"
    hides_samples: ClassVar[bool] = True
    settings: ClassVar[type[Hyperparameters]] = FedProtoHyperparameters

    hyperparameters: FedProtoHyperparameters
