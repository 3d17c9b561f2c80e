"""FedDBE: FedAvg with a domain bias eliminator: a vector of each client's own holds what is peculiar to its embeddings.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, *Eliminating Domain Bias for Federated Learning in Representation Space*,
2023. Before the first round each member trains the initial model for itself, and sends the mean of its samples'
embeddings. All agree on the mean of these, near which each keeps its embeddings from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ml.errors import SpecError
from ml.payload import Arrays, ArraySchema, ArraySpec
from ml.specs.hyperparameters import Hyperparameters, number
from ml.specs.sharing import ModelHyperparameters, ModelSpec

REPRESENTATION = "representation"  # the kind
MEMORY = "representation_bias"  # the name of a client's own vector, which is a parameter of its model


@dataclass(frozen=True, kw_only=True)
class FedDbeHyperparameters(ModelHyperparameters):
    """Settings of FedDBE. `kappa` weighs the mean regularisation, and `mu` is the momentum of the mean: the share of a
    mini-batch in it. The paper has kappa 50 at lr 0.005 and mu 1 for Fashion-MNIST: at the default lr of 0.1 here,
    kappa 1 pulls about as hard."""

    kappa: float = number(1.0, "[0, inf)")
    mu: float = number(1.0, "(0, 1]")


@dataclass(frozen=True)
class FedDbeSpec(ModelSpec):
    """FedDBE's spec. The first height has `representation`: `mean` float32[D], of the embeddings of the member's
    samples, combined by the rule for models; later heights have the model. The mean stays in every later aggregate of
    the run, so that everyone who has one, a late joiner too, has the mean."""

    name: ClassVar[str] = "feddbe"
    settings: ClassVar[type[Hyperparameters]] = FedDbeHyperparameters

    hyperparameters: FedDbeHyperparameters

    def __post_init__(self) -> None:
        if MEMORY in self.task.initial_schema.arrays:
            raise SpecError("model.name", f"feddbe expects a model without a {MEMORY} of its own")

    @property
    def sharing_heights(self) -> int:
        return 1

    def is_agreeing(self, height: int) -> bool:
        """Says whether contributions of this height carry means."""
        return height <= self.sharing_heights

    @cached_property
    def _mean_schemas(self) -> Mapping[str, ArraySchema]:
        return {REPRESENTATION: ArraySchema({"mean": ArraySpec("float32", (self.task.embedding_dim,))})}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._mean_schemas if self.is_agreeing(height) else super().schemas(height)

    def rules(self, height: int) -> Mapping[str, str]:
        rules = super().rules(height)
        return {REPRESENTATION: rules["model"]} if self.is_agreeing(height) else rules

    def get_kept(self, height: int) -> Collection[str]:
        return ("model",) if self.is_agreeing(height) else (REPRESENTATION,)

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        mean = self._mean_schemas[REPRESENTATION].arrays["mean"]
        return {**super().carried, f"{REPRESENTATION}/mean": mean}

    def get_origin(self, kind: str) -> Arrays | None:
        return {"mean": np.zeros(self.task.embedding_dim, np.float32)} if kind == REPRESENTATION else None
