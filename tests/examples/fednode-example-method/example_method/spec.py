"""The method as validators know it. It must not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fednode.plugin import Hyperparameters, ModelHyperparameters, ModelSpec, number


@dataclass(frozen=True, kw_only=True)
class AnchoredHyperparameters(ModelHyperparameters):
    """`mu` weighs the squared distance from the model that the round began with."""

    mu: float = number(0.01, "[0, inf)")


@dataclass(frozen=True)
class AnchoredSpec(ModelSpec):
    """The model is sent; its mean, or what `aggregation` names, is taken over."""

    name: ClassVar[str] = "anchored"
    settings: ClassVar[type[Hyperparameters]] = AnchoredHyperparameters
    training: ClassVar[str] = "example_method.training:Anchored"

    hyperparameters: AnchoredHyperparameters
