"""MOON: FedAvg whose local representations are contrasted with two models' (ALGORITHMS §9).

Li, He, Song, *Model-Contrastive Federated Learning*, 2021. What is exchanged is FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.specs.hyperparameters import Hyperparameters, number
from ml.specs.sharing import ModelHyperparameters, ModelSpec


@dataclass(frozen=True, kw_only=True)
class MoonHyperparameters(ModelHyperparameters):
    """Settings of MOON. `mu` weighs the contrast, `tau` is its temperature."""

    mu: float = number(1.0, "[0, inf)")
    tau: float = number(0.5, "(0, inf)")


@dataclass(frozen=True)
class MoonSpec(ModelSpec):
    """MOON's spec, which exchanges the model alone."""

    name: ClassVar[str] = "moon"
    settings: ClassVar[type[Hyperparameters]] = MoonHyperparameters

    hyperparameters: MoonHyperparameters
