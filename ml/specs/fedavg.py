"""FedAvg: the mean of the models, weighted by how many samples each has seen (ALGORITHMS §9).

McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, 2017. With
`weights: uniform` it is the average of BLADE-FL. A member that misses the round is left out and the weights are those
of the others. The defaults of local work are DFPL's, so that the two are compared at the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ml.payload import ArraySchema
from ml.specs.base import Hyperparameters, MethodSpec, Task, choice


@dataclass(frozen=True, kw_only=True)
class FedAvgHyperparameters(Hyperparameters):
    """`weights`: samples signs n_k as the weight, uniform signs 1, so that no one learns n_k."""

    weights: str = choice("samples", "uniform")


@dataclass(frozen=True)
class FedAvgSpec(MethodSpec):
    """One voted kind, `model`: every parameter, under the names of the model's `state_dict()`."""

    name: ClassVar[str] = "fedavg"

    hyperparameters: FedAvgHyperparameters

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], task: Task) -> Self:
        return cls(task, FedAvgHyperparameters.from_mapping(method))

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return {"model": self.task.model_schema}

    def rules(self, height: int) -> Mapping[str, str]:
        return {"model": "uniform_mean" if self.max_weight_is_one else "weighted_mean"}

    @property
    def max_weight_is_one(self) -> bool:
        return self.hyperparameters.weights == "uniform"
