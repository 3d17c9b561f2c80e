"""FedIntR: MOON's contrast on every intermediate representation (ALGORITHMS §9).

Tun et al., *Federated Learning with Intermediate Representation Regularization*, 2023. Each representation is projected
to 256 numbers; the projections are trained and averaged with the model, so they are part of its payload. They are not
part of block 0: each node makes the same first ones (`ml.methods.fedintr`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.errors import SpecError
from ml.payload import ArraySchema, ArraySpec
from ml.specs.hyperparameters import Hyperparameters, number
from ml.specs.sharing import ModelHyperparameters, ModelSpec

PROJECTIONS = "projections"  # the beginning of their arrays' names
WIDTH = 256


@dataclass(frozen=True, kw_only=True)
class FedIntRHyperparameters(ModelHyperparameters):
    """Settings of FedIntR. `mu` weighs the contrast, `tau` is its temperature. The paper tries mu from 0.001 to 10 and
    its notebook has 10, at lr 0.01; at the default lr of 0.1 here, 1 pulls as hard, and it is MOON's value."""

    mu: float = number(1.0, "[0, inf)")
    tau: float = number(0.5, "(0, inf)")


@dataclass(frozen=True)
class FedIntRSpec(ModelSpec):
    """FedIntR's spec: the model with its projections; without them if `mu` is 0."""

    name: ClassVar[str] = "fedintr"
    settings: ClassVar[type[Hyperparameters]] = FedIntRHyperparameters

    hyperparameters: FedIntRHyperparameters

    def __post_init__(self) -> None:
        taken = [name for name in self.task.initial_schema.arrays if name.split(".")[0] == PROJECTIONS]
        if taken:
            raise SpecError("model.name", f"fedintr expects a model without {PROJECTIONS} of its own, got {taken[0]}")

    @property
    def projected_dims(self) -> tuple[int, ...]:
        """The width of each representation that is projected."""
        return self.task.layer_dims if self.hyperparameters.mu else ()

    def _make_schema(self) -> ArraySchema:
        arrays = dict(super()._make_schema().arrays)
        for layer, dim in enumerate(self.projected_dims):
            arrays[f"{PROJECTIONS}.{layer}.weight"] = ArraySpec("float32", (WIDTH, dim))
            arrays[f"{PROJECTIONS}.{layer}.bias"] = ArraySpec("float32", (WIDTH,))
        return ArraySchema(arrays)
