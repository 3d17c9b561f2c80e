"""The payloads that most methods exchange, in one place: whole models, or the prototypes of classes.

A method that sends its model has one voted kind, `model`, whose aggregate is the mean. One that sends prototypes has
one voted kind, `prototypes`, combined class by class. Both may use a robust rule instead (`aggregation`). The file of
each method says what it does besides, or otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from ml.aggregation import Box, RuleSettings, compute_max_liars
from ml.aggregation.fixed_point import compute_fraction_bits
from ml.errors import AggregationError, PayloadError, SpecError
from ml.payload import Array, Arrays, ArraySchema, ArraySpec
from ml.specs.base import Judging, MethodSpec
from ml.specs.hyperparameters import Hyperparameters, choice, count, number, option
from ml.specs.model_changes import add_changes, compute_changes, make_change_schema
from ml.specs.outer import OuterHyperparameters, carry_outer, check_outer_names, describe_outer
from ml.specs.privacy import CLIP
from ml.specs.task import Task
from ml.tasks import TASKS

_PROTOTYPE_RULES = {"owners": "class_mean", "divide_by_K": "class_divide_by_k", "samples": "class_weighted_mean"}
_MOVED = ("median", "trimmed_mean")  # once values of `proto_agg`, now of `aggregation`


@dataclass(frozen=True, kw_only=True)
class AggregationHyperparameters(Hyperparameters):
    """Settings of aggregation. `aggregation`: mean is the method's own rule, by which one lying member can change the
    result at will; masked_sum is the same mean without anybody seeing its parts (`ml.specs.masked`); the others
    (`ml.aggregation.robust`) hold against fewer than a third, and ignore weights. `weight_cap` bounds the weights of a
    mean to so many times their lower median. `clip` is the distance that `clipped_mean` lets a member move the common
    model, by default the lower median of the members' own. `masked_radius` is how far from the last aggregate each
    number of a masked sum's mean may be."""

    aggregation: str = choice("mean", "median", "trimmed_mean", "clipped_mean", "multi_krum", "masked_sum")
    weight_cap: int | None = count(None)
    clip: float | None = number(None, "(0, inf)")
    masked_radius: float | None = number(None, "(0, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and self.aggregation != "clipped_mean":
            raise SpecError(
                "method.clip", f"expected none with aggregation {self.aggregation}: only clipped_mean goes by it"
            )
        if self.weight_cap is not None and self.is_masked:
            raise SpecError(
                "method.weight_cap", "expected none with aggregation masked_sum: a cap goes by the weights in the sum"
            )
        if self.masked_radius is not None and not self.is_masked:
            raise SpecError(
                "method.masked_radius", f"expected none with aggregation {self.aggregation}: only masked_sum goes by it"
            )

    @property
    def is_robust(self) -> bool:
        return self.aggregation not in ("mean", "masked_sum")

    @property
    def is_masked(self) -> bool:
        return self.aggregation == "masked_sum"

    @property
    def box(self) -> Box | None:
        return None if self.masked_radius is None else Box(self.masked_radius)

    def make_rule_settings(self, task: Task, max_weight: int) -> RuleSettings:
        """Makes the settings of the method's rules; no number counts more often than `max_weight`. Raises
        AggregationError if f is needed and the number of members is unknown."""
        num_members = task.num_members
        if self.is_masked and num_members:
            bits = compute_fraction_bits(num_members, max_weight, task.max_abs)
            return RuleSettings(fraction_bits=bits, box=self.box)
        if not self.is_robust:
            return RuleSettings(weight_cap=self.weight_cap, momentum=self.momentum)
        if num_members < 1:
            raise AggregationError(f"{self.aggregation}: expected the number of members, got {num_members}")
        return RuleSettings(compute_max_liars(num_members), self.weight_cap, self.clip, self.momentum)


@dataclass(frozen=True, kw_only=True)
class SentHyperparameters(Hyperparameters):
    """Settings of contributions. `weights`: samples signs n_k as the weight; bucketed the largest power of two up to
    n_k, and uniform signs 1, so that no one learns n_k. `bn_buffers`: whether the running statistics of batch norm are
    averaged like weights, or stay each member's own and are not sent."""

    weights: str = choice("samples", "bucketed", "uniform")
    bn_buffers: str = choice("average", "local")

    def choose_weight(self, num_samples: int, max_weight: int) -> int:
        """Returns the weight that a member with so many samples signs."""
        if self.weights == "uniform":
            return 1
        weight = min(num_samples, max_weight)
        return 1 << max(weight.bit_length() - 1, 0) if self.weights == "bucketed" else weight


@dataclass(frozen=True, kw_only=True)
class ModelHyperparameters(SentHyperparameters, AggregationHyperparameters, OuterHyperparameters):
    """Settings of methods that vote on whole models. `model_dtype`: whether models are sent as they are, or as changes
    of the common model in half precision (`ml.specs.model_changes`). With `dp_update_noise` each member hides itself:
    its change of the common model is clipped to the length `dp_update_clip`, and gets noise of so many times that
    (`ml.clients.privacy`). `masked_buffer_radius` is the `masked_radius` of batch norm's running statistics."""

    model_dtype: str | None = option("float32", "float16")
    dp_update_noise: float | None = number(None, "(0, inf)")
    dp_update_clip: float | None = number(None, "(0, inf)")
    masked_buffer_radius: float | None = number(None, "(0, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dp_update_clip is not None and self.dp_update_noise is None:
            raise SpecError("method.dp_update_clip", "expected none without dp_update_noise")
        if self.masked_buffer_radius is not None and self.masked_radius is None:
            raise SpecError("method.masked_buffer_radius", "expected none without masked_radius")

    @property
    def box(self) -> Box | None:
        return None if self.masked_radius is None else Box(self.masked_radius, self.masked_buffer_radius)

    @property
    def update_noise(self) -> float | None:
        return self.dp_update_noise

    @property
    def update_clip(self) -> float:
        return self.dp_update_clip or CLIP


@dataclass(frozen=True)
class ModelSpec(MethodSpec):
    """A spec with one voted kind, `model`: every parameter, under the names of the model's `state_dict()`."""

    settings: ClassVar[type[Hyperparameters]] = ModelHyperparameters
    tasks: ClassVar[tuple[str, ...]] = TASKS

    hyperparameters: ModelHyperparameters

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], task: Task) -> Self:
        spec = super().from_mapping(method, task)
        if spec.hyperparameters.outer is not None:
            check_outer_names(task.parameter_schema.arrays)
        return spec

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        return {"model": self._make_schema()}

    @cached_property
    def common_schema(self) -> ArraySchema:
        """The arrays of the model that members have in common: all, unless a method says otherwise."""
        return self.task.model_schema if self.hyperparameters.bn_buffers == "average" else self.task.parameter_schema

    def _make_schema(self) -> ArraySchema:
        common = self.common_schema
        return make_change_schema(common, self.task.layout.parameters) if self.sends_changes else common

    @property
    def sends_changes(self) -> bool:
        return self.hyperparameters.model_dtype == "float16"

    def pack(self, kind: str, arrays: Arrays, parent: Arrays, height: int) -> Arrays:
        return compute_changes(arrays, parent, self.schemas(height)[kind]) if self._has_changes(kind) else arrays

    def unpack(self, kind: str, arrays: Arrays, parent: Arrays | None, height: int) -> Arrays:
        if not self._has_changes(kind):
            return arrays
        return add_changes(arrays, parent, self.schemas(height)[kind], self.task.max_abs)

    def _has_changes(self, kind: str) -> bool:
        return self.sends_changes and kind == "model"

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        if self.hyperparameters.is_robust:
            return {"model": self.hyperparameters.aggregation}
        if self.hyperparameters.is_masked:
            return {"model": "fixed_mean"}
        return {"model": "uniform_mean" if self.max_weight_is_one else "weighted_mean"}

    def reads_parent(self, height: int) -> bool:
        hyper = self.hyperparameters
        return super().reads_parent(height) or hyper.box is not None or hyper.outer is not None

    @property
    def _trained(self) -> Mapping[str, ArraySpec]:
        """The arrays that an outer optimiser changes."""
        common = self.common_schema.arrays
        return {name: array for name, array in self.task.parameter_schema.arrays.items() if name in common}

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        return describe_outer(self.hyperparameters.outer, self._trained)

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        is_first, own = self.get_round_number(height) <= 1, made if "model" in self.rules(height) else None
        return carry_outer(self.hyperparameters.outer, self._trained, own, parent, is_first=is_first)

    def describe_judging(self) -> Judging:
        return dataclasses.replace(super().describe_judging(), outer=self.hyperparameters.outer)

    @property
    def rule_settings(self) -> RuleSettings:
        return self.hyperparameters.make_rule_settings(self.task, 1 if self.max_weight_is_one else self.task.max_weight)

    @property
    def max_weight_is_one(self) -> bool:
        return self.hyperparameters.weights == "uniform"

    def explain_not_hiding_updates(self) -> str | None:
        sent = [schema for height in (1, 2) for schema in self.schemas(height).items()]
        is_model = {kind for kind, _ in sent} == {"model"} and not self.training and not self.sharing_heights
        is_float = all(array.dtype in ("float16", "float32") for _, schema in sent for array in schema.arrays.values())
        has_begun = all(name in self.task.initial_schema.arrays for _, schema in sent for name in schema.arrays)
        return None if is_model and is_float and has_begun else f"{self.name} sends something besides its model"

    def explain_not_masked(self) -> str | None:
        return "models that travel as changes are no sum" if self.sends_changes else explain_no_sum(self)


@dataclass(frozen=True, kw_only=True)
class PrototypeHyperparameters(AggregationHyperparameters):
    """Settings of methods that vote on prototypes. `proto_agg` chooses the mean of a class's prototypes: that over its
    owners; their sum divided by all K authors of the round; or the mean weighted by class sizes, which are sent only
    then. Robust rules are taken over the owners. Classes with fewer than `min_class_samples` samples are not sent."""

    proto_agg: str = choice(*_PROTOTYPE_RULES)
    min_class_samples: int = count(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_masked and self.proto_agg == "divide_by_K":
            raise SpecError("method.proto_agg", "expected owners or samples with aggregation masked_sum")
        if self.is_robust and self.proto_agg != "owners":
            raise SpecError(
                "method.proto_agg",
                f"expected owners with aggregation {self.aggregation}, which no mean goes by; got {self.proto_agg!r}",
            )

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any]) -> Self:
        if (moved := method.get("proto_agg")) in _MOVED:
            raise SpecError(
                "method.proto_agg",
                f"expected one of {', '.join(_PROTOTYPE_RULES)}, got {moved!r}: set aggregation to {moved} instead",
            )
        return super().from_mapping(method)


@dataclass(frozen=True)
class PrototypeSpec(MethodSpec):
    """A spec with one voted kind, `prototypes`: `classes` int64[n] sorted, `prototypes` float32[n, D], and with
    `proto_agg: samples` also `counts` int64[n]. Its aggregate has `classes` and `prototypes` of the classes someone
    holds.

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
        hyper = self.hyperparameters
        if hyper.is_masked:
            return {"prototypes": "class_fixed_mean"}
        return {"prototypes": f"class_{hyper.aggregation}" if hyper.is_robust else _PROTOTYPE_RULES[hyper.proto_agg]}

    def reads_parent(self, height: int) -> bool:
        return super().reads_parent(height) or self.hyperparameters.box is not None

    @property
    def rule_settings(self) -> RuleSettings:
        counts = self.hyperparameters.proto_agg == "samples"
        return self.hyperparameters.make_rule_settings(self.task, self.task.max_weight if counts else 1)

    @property
    def max_weight_is_one(self) -> bool:
        return True

    def explain_not_masked(self) -> str | None:
        return explain_no_sum(self)

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        classes = arrays["classes"]
        if not np.all(classes[1:] > classes[:-1]):
            raise PayloadError(f"payload 'prototypes': expected classes sorted and once each, got {classes.tolist()}")


def explain_no_sum(spec: MethodSpec) -> str | None:
    """Explains why what members send, apart from the shown kinds, cannot be combined by one sum in every round; None if
    it can."""
    if spec.training or spec.sharing_heights or spec.closing is not None:
        return f"{spec.name} exchanges something else besides"
    rules = spec.rules(1)
    hidden = [rule for kind, rule in rules.items() if kind not in spec.shown]
    is_sum = len(hidden) == 1 and hidden[0] in ("fixed_mean", "class_fixed_mean")
    if is_sum and rules == spec.rules(2) and set(spec.schemas(1)) == set(spec.schemas(2)) == set(rules):
        return None
    return f"{spec.name} exchanges something else besides"
