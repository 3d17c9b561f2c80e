"""DFPL: prototypes are exchanged instead of models (ALGORITHMS §2).

Zhang et al., *DFPL: Decentralized Federated Prototype Learning Across Heterogeneous Data Distributions*. Each node
sends the mean embedding of each class it owns; the global prototype of a class is the mean over its owners, Eq. (2),
and pulls the local ones towards it, Eqs. (3) and (4).

Where we deviate: `proto_agg` owners divides by the number of owners, not by K, since absent prototypes would shrink a
class towards 0 (`divide_by_K` is as printed, K the authors of the round); `samples` weighs by class sizes, which are
sent only then; `median` and `trimmed_mean` are ours, against lying members. Class sizes are private otherwise, so
every weight is signed as 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from ml.errors import PayloadError
from ml.payload import Arrays, ArraySchema, ArraySpec
from ml.specs.base import Hyperparameters, MethodSpec, Task, choice, count, number

_RULES = {
    "owners": "class_mean",
    "divide_by_K": "class_divide_by_k",
    "samples": "class_weighted_mean",
    "median": "class_median",
    "trimmed_mean": "class_trimmed_mean",
}


@dataclass(frozen=True, kw_only=True)
class DfplHyperparameters(Hyperparameters):
    """`lambda_` (genesis: `lambda`) weighs the auxiliary loss of Eq. (3), `aux` is its distance (l2 is Eq. (4)).

    `aux_protos` takes the local prototypes from the mini-batch or from all local data; `iteration` says whether one of
    the `local_iterations` is a mini-batch step or an epoch; `infer` predicts by the classifier or the nearest
    prototype; classes with fewer than `min_class_samples` samples are not sent.
    """

    lambda_: float = number(1.0, "[0, inf)")
    aux: str = choice("l2", "sq", "mse")
    aux_protos: str = choice("batch", "full")
    iteration: str = choice("step", "epoch")
    proto_agg: str = choice(*_RULES)
    infer: str = choice("classifier", "prototype")
    min_class_samples: int = count(1)


@dataclass(frozen=True)
class DfplSpec(MethodSpec):
    """One voted kind, `prototypes`: `classes` int64[n] sorted, `prototypes` float32[n, D], and with `proto_agg:
    samples` also `counts` int64[n]. Its aggregate has `classes` and `prototypes` of the classes someone holds."""

    name: ClassVar[str] = "dfpl"

    hyperparameters: DfplHyperparameters

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], task: Task) -> Self:
        return cls(task, DfplHyperparameters.from_mapping(method))

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        arrays = {
            "classes": ArraySpec("int64", ("n",)),
            "prototypes": ArraySpec("float32", ("n", self.task.embedding_dim)),
        }
        if self.hyperparameters.proto_agg == "samples":
            arrays["counts"] = ArraySpec("int64", ("n",))
        return {"prototypes": ArraySchema(arrays, {"n": (0, self.task.num_classes)})}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return {"prototypes": _RULES[self.hyperparameters.proto_agg]}

    @property
    def max_weight_is_one(self) -> bool:
        return True

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        classes = arrays["classes"]
        if classes.size and not (classes[0] >= 0 and classes[-1] < self.task.num_classes):
            raise PayloadError(
                f"payload 'prototypes': expected classes from 0 to {self.task.num_classes - 1}, got {classes.tolist()}"
            )
        if not np.all(classes[1:] > classes[:-1]):
            raise PayloadError(f"payload 'prototypes': expected classes sorted and once each, got {classes.tolist()}")
        counts = arrays.get("counts")
        if counts is not None and counts.size and not 1 <= counts.min() <= counts.max() <= self.task.max_weight:
            raise PayloadError(
                f"payload 'prototypes': expected counts from 1 to {self.task.max_weight}, got {counts.tolist()}"
            )
