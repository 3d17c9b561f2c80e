"""What most methods exchange, once: whole models, or the prototypes of classes.

A method that sends its model has one voted kind, `model`, and takes the mean of them. One that sends prototypes has
one voted kind, `prototypes`, combined class by class. Each says in its own file what else it does, or does otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ml.errors import PayloadError
from ml.payload import Arrays, ArraySchema, ArraySpec
from ml.specs.base import Hyperparameters, MethodSpec, choice, count

_PROTOTYPE_RULES = {
    "owners": "class_mean",
    "divide_by_K": "class_divide_by_k",
    "samples": "class_weighted_mean",
    "median": "class_median",
    "trimmed_mean": "class_trimmed_mean",
}


@dataclass(frozen=True, kw_only=True)
class ModelHyperparameters(Hyperparameters):
    """`weights`: samples signs n_k as the weight, uniform signs 1, so that no one learns n_k. `bn_buffers`: whether the
    running statistics of batch norm are averaged like weights, or stay each member's own and are not sent."""

    weights: str = choice("samples", "uniform")
    bn_buffers: str = choice("average", "local")


@dataclass(frozen=True)
class ModelSpec(MethodSpec):
    """One voted kind, `model`: every parameter, under the names of the model's `state_dict()`."""

    settings: ClassVar[type[Hyperparameters]] = ModelHyperparameters

    hyperparameters: ModelHyperparameters

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        return {"model": self._make_schema()}

    def _make_schema(self) -> ArraySchema:
        task = self.task
        return task.model_schema if self.hyperparameters.bn_buffers == "average" else task.parameter_schema

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return {"model": "uniform_mean" if self.max_weight_is_one else "weighted_mean"}

    @property
    def max_weight_is_one(self) -> bool:
        return self.hyperparameters.weights == "uniform"


@dataclass(frozen=True, kw_only=True)
class PrototypeHyperparameters(Hyperparameters):
    """`proto_agg` says how the prototypes of a class combine: the mean over its owners; their sum divided by all K
    authors of the round; the mean weighted by class sizes, which are sent only then; or the median or trimmed mean of
    the owners, against lying members. Classes with fewer than `min_class_samples` samples are not sent."""

    proto_agg: str = choice(*_PROTOTYPE_RULES)
    min_class_samples: int = count(1)


@dataclass(frozen=True)
class PrototypeSpec(MethodSpec):
    """One voted kind, `prototypes`: `classes` int64[n] sorted, `prototypes` float32[n, D], and with `proto_agg:
    samples` also `counts` int64[n]. Its aggregate has `classes` and `prototypes` of the classes someone holds.

    Class sizes are private otherwise, so every weight is signed as 1.
    """

    settings: ClassVar[type[Hyperparameters]] = PrototypeHyperparameters

    hyperparameters: PrototypeHyperparameters

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        arrays = {
            "classes": ArraySpec("int64", ("n",), (0, self.task.num_classes - 1)),
            "prototypes": ArraySpec("float32", ("n", self.task.embedding_dim)),
        }
        if self.hyperparameters.proto_agg == "samples":
            arrays["counts"] = ArraySpec("int64", ("n",), (1, self.task.max_weight))
        return {"prototypes": ArraySchema(arrays, {"n": (0, self.task.num_classes)})}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return {"prototypes": _PROTOTYPE_RULES[self.hyperparameters.proto_agg]}

    @property
    def max_weight_is_one(self) -> bool:
        return True

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        classes = arrays["classes"]
        if not np.all(classes[1:] > classes[:-1]):
            raise PayloadError(f"payload 'prototypes': expected classes sorted and once each, got {classes.tolist()}")
