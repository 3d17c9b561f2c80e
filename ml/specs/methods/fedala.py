"""FedALA: FedAvg whose clients take over from the common model, element by element, what helps them.

Zhang, Hua, Wang, Song, Xue, Ma, Guan, *FedALA: Adaptive Local Aggregation for Personalized Federated Learning*, 2023.
What is exchanged is FedAvg's; the weights of the local aggregation never leave their client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ml.payload import ArraySpec
from ml.specs.hyperparameters import Hyperparameters, count, number
from ml.specs.sharing import ModelHyperparameters, ModelSpec


@dataclass(frozen=True, kw_only=True)
class FedAlaHyperparameters(ModelHyperparameters):
    """Settings of FedALA. `num_layers` is p, the layers from the top that a client takes over by weights of its own;
    `sample_share` is s, the share of its samples on which these weights are learned; `eta` is their learning rate. The
    defaults are the paper's."""

    num_layers: int = count(1)
    sample_share: float = number(0.8, "(0, 1]")
    eta: float = number(1.0, "(0, inf)")


@dataclass(frozen=True)
class FedAlaSpec(ModelSpec):
    """FedALA's spec, which exchanges the model alone."""

    name: ClassVar[str] = "fedala"
    settings: ClassVar[type[Hyperparameters]] = FedAlaHyperparameters

    hyperparameters: FedAlaHyperparameters

    @cached_property
    def top(self) -> Mapping[str, ArraySpec]:
        """The trained parameters of the last p layers. Parameters belong to one layer if their names are the same up to
        the last dot."""
        trained = self.task.parameter_schema.arrays
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in trained))
        last = set(layers[-self.hyperparameters.num_layers :])
        return {name: array for name, array in trained.items() if name.rpartition(".")[0] in last}
