"""Evaluation: a run of one round, in which nothing is trained and each member measures one model on its test samples.

The model is the one with which the run begins: the aggregate in force, or by `of_run` and `of_round` that of an earlier
round. Each member sends its measures as `ml.specs.told` encodes them, and the aggregate has them all, a row for each
author. The model stays in it, so that a later run can go on from there. A member can lie about its own row, and about
no other.

`min_samples` is the fewest test samples about which a site sends measures; its counts are rounded down to a multiple of
`min_count`. With `lend` there are two rounds, and sites may lend their own models for it (`ml.specs.methods.lending`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ml.errors import AggregationError, PayloadError, SpecError
from ml.payload import Array, Arrays, ArraySchema, ArraySpec
from ml.specs.base import MethodSpec
from ml.specs.hyperparameters import Hyperparameters, count, switch
from ml.specs.task import Task
from ml.specs.told import describe_arrays, validate_told
from ml.tasks import TASKS

if TYPE_CHECKING:
    import dataclasses

EVALUATION = "evaluation"  # the name of the method, and of the kind
MIN_SAMPLES, MIN_COUNT = 50, 5
COLLECT_S = 60.0  # a site whose test set takes longer than others' has no next round


@dataclass(frozen=True, kw_only=True)
class EvaluationHyperparameters(Hyperparameters):
    """Settings of an evaluation. `of_run` and `of_round` name the round whose model is measured, if it is not the
    aggregate in force. With `lend` the models that sites lend after that round are measured, too, and with `only_lent`
    these alone."""

    min_samples: int = count(MIN_SAMPLES)
    min_count: int = count(MIN_COUNT)
    of_run: int | None = count(None)
    of_round: int | None = count(None)
    lend: bool | None = switch()
    only_lent: bool | None = switch()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.of_run is None) != (self.of_round is None):
            raise SpecError("method.of_round", "expected it beside of_run")
        if self.lend and self.of_run is None:
            raise SpecError("method.of_run", "expected it beside lend")
        if self.only_lent and not self.lend:
            raise SpecError("method.only_lent", "expected none without lend")
        if self.min_count > self.min_samples:
            raise SpecError(
                "method.min_count", f"expected at most min_samples, {self.min_samples}, got {self.min_count}"
            )

    @classmethod
    def keys(cls) -> dict[str, dataclasses.Field[Any]]:
        """Returns the settings by key, without those of training."""
        own = EvaluationHyperparameters.__annotations__
        return {name: setting for name, setting in super().keys().items() if name in own}


@dataclass(frozen=True)
class EvaluationSpec(MethodSpec):
    """The spec of an evaluation, with one voted kind, `evaluation`, which is stacked."""

    name: ClassVar[str] = EVALUATION
    settings: ClassVar[type[Hyperparameters]] = EvaluationHyperparameters
    tasks: ClassVar[tuple[str, ...]] = TASKS

    hyperparameters: EvaluationHyperparameters

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], task: Task) -> Self:
        if task.rounds > 1:
            raise SpecError(
                "rounds", f"expected 1 of {EVALUATION}, got {task.rounds}; a run that trains has another method.name"
            )
        return super().from_mapping(method, task)

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        return {EVALUATION: ArraySchema(describe_arrays(self.task.kind, self.task.num_classes))}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return {EVALUATION: "stack"}

    def reads_parent(self, height: int) -> bool:
        return True

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        return {f"model/{name}": array for name, array in self.task.model_schema.arrays.items()}

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        held = parent or {}
        if missing := sorted(self.carried.keys() - held.keys()):
            raise AggregationError(f"expected {missing[0]!r} in the aggregate before, got none")
        return {name: held[name] for name in self.carried}

    @property
    def max_weight_is_one(self) -> bool:
        return True

    def get_local_work(self, height: int) -> int:
        return 0

    def get_collect_s(self, height: int, default: float) -> float:
        return max(default, COLLECT_S)

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        hyper = self.hyperparameters
        try:
            validate_told(arrays, self.task.kind, min_samples=hyper.min_samples, min_count=hyper.min_count)
        except PayloadError as error:
            raise PayloadError(f"payload {kind!r}: {error}") from error
