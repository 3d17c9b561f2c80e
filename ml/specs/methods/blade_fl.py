"""BLADE-FL: FedAvg in a chain, every model counting the same (ALGORITHMS §9).

Li et al., *Blockchain Assisted Decentralized Federated Learning (BLADE-FL): Performance Analysis and Resource
Allocation*, 2022. Everyone broadcasts a model and mines, the winner's block commits to the models of the round, and
each takes over their plain mean. Training and mining share a time budget, which DFPL's time model follows: `budget_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.specs.hyperparameters import Hyperparameters, choice
from ml.specs.sharing import ModelHyperparameters, ModelSpec


@dataclass(frozen=True, kw_only=True)
class BladeFlHyperparameters(ModelHyperparameters):
    """Settings of BLADE-FL. `weights` has one value: no model counts more, and nobody learns how many samples another
    has."""

    weights: str = choice("uniform")


@dataclass(frozen=True)
class BladeFlSpec(ModelSpec):
    """BLADE-FL's spec: the model, at weight 1."""

    name: ClassVar[str] = "blade_fl"
    hides_samples: ClassVar[bool] = True
    settings: ClassVar[type[Hyperparameters]] = BladeFlHyperparameters

    hyperparameters: BladeFlHyperparameters
