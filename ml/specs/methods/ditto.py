"""Ditto: FedAvg, and beside it a personal model for each client that is held near the common one.

Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, 2021. What is exchanged is FedAvg's; the
personal model never leaves its client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.specs.hyperparameters import Hyperparameters, number
from ml.specs.sharing import ModelHyperparameters, ModelSpec


@dataclass(frozen=True, kw_only=True)
class DittoHyperparameters(ModelHyperparameters):
    """Settings of Ditto. `lambda_` (genesis: `lambda`) weighs the distance of a personal model from the common one:
    with 0 each trains alone, with more all answer more alike. The paper tries 0.01 to 2."""

    lambda_: float = number(1.0, "[0, inf)")


@dataclass(frozen=True)
class DittoSpec(ModelSpec):
    """Ditto's spec, which exchanges the common model alone."""

    name: ClassVar[str] = "ditto"
    settings: ClassVar[type[Hyperparameters]] = DittoHyperparameters

    hyperparameters: DittoHyperparameters

    def explain_not_private(self) -> str | None:
        return "the personal model of ditto, which answers, is trained without noise"
