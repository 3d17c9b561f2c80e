"""FedBN: the mean of the models, except for their batch normalisation, which is each client's own.

Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, 2021. Every array of a layer
of batch norm stays at its client: the scale gamma, the shift beta, and the running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ml.aggregation.robust import RUNNING_STATISTICS
from ml.errors import SpecError
from ml.payload import ArraySchema
from ml.specs.hyperparameters import Hyperparameters, choice
from ml.specs.sharing import ModelHyperparameters, ModelSpec


@dataclass(frozen=True, kw_only=True)
class FedBnHyperparameters(ModelHyperparameters):
    """Settings of FedBN, by which running statistics are never averaged."""

    bn_buffers: str = choice("local")


@dataclass(frozen=True)
class FedBnSpec(ModelSpec):
    """FedBN's spec, which exchanges the model without its batch normalisation."""

    name: ClassVar[str] = "fedbn"
    settings: ClassVar[type[Hyperparameters]] = FedBnHyperparameters

    hyperparameters: FedBnHyperparameters

    def __post_init__(self) -> None:
        common = self.common_schema.arrays
        if common.keys() == self.task.model_schema.arrays.keys():
            name = self.task.model["name"]
            raise SpecError("model.name", f"fedbn expects a model with batch norm that trains, {name} has none")
        if not common:
            raise SpecError("model.frozen", "fedbn expects parameters besides batch norm that train, got none")

    @cached_property
    def common_schema(self) -> ArraySchema:
        layout = self.task.layout
        statistics = [name for name in (*layout.buffers, *layout.frozen) if name.endswith(RUNNING_STATISTICS)]
        layers = {_get_layer(name) for name in statistics}
        arrays = super().common_schema.arrays
        return ArraySchema({name: array for name, array in arrays.items() if _get_layer(name) not in layers})


def _get_layer(name: str) -> str:
    return name.rpartition(".")[0]
