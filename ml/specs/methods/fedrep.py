"""FedRep: the layers before the classifier are averaged, the classifier is each client's own, and one is trained after
the other.

Collins et al., *Exploiting Shared Representations for Personalized Federated Learning*, 2021. The classifier is never
sent: the common model is the layers before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ml.errors import SpecError
from ml.payload import ArraySchema
from ml.specs.hyperparameters import Hyperparameters, count
from ml.specs.sharing import ModelHyperparameters, ModelSpec


@dataclass(frozen=True, kw_only=True)
class FedRepHyperparameters(ModelHyperparameters):
    """Settings of FedRep. `head_work` is how many iterations or epochs, in the unit of the local work, train the
    classifier before the local work trains the layers before it; by default as many."""

    head_work: int | None = count(None)


@dataclass(frozen=True)
class FedRepSpec(ModelSpec):
    """FedRep's spec, which exchanges the model up to its classifier."""

    name: ClassVar[str] = "fedrep"
    settings: ClassVar[type[Hyperparameters]] = FedRepHyperparameters

    hyperparameters: FedRepHyperparameters

    def __post_init__(self) -> None:
        trained, head = self.task.parameter_schema.arrays.keys(), set(self.task.classifier_names)
        for where, names in (("before the classifier", trained - head), ("in the classifier", trained & head)):
            if not names:
                raise SpecError("model.frozen", f"fedrep expects parameters {where} that train, got none")

    @cached_property
    def common_schema(self) -> ArraySchema:
        head = self.task.classifier_names
        return ArraySchema({name: array for name, array in super().common_schema.arrays.items() if name not in head})

    def get_local_work(self, height: int) -> int:
        work = self.hyperparameters.local_work
        return (self.hyperparameters.head_work or work) + work

    def count_head_steps(self, num_iterations: int, num_steps: int) -> int:
        """Counts the steps that train the classifier in a phase of so many whole iterations, or epochs: its share of
        them, but one is left for the layers before it."""
        whole = self.get_local_work(1)
        share = round(num_iterations * (whole - self.hyperparameters.local_work) / whole)
        return min(share, max(num_iterations - 1, 0)) * (num_steps // max(num_iterations, 1))
