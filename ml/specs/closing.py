"""The heights that close a run which selects its best round: members send what they measured, and nothing is trained.

At the first they send their measures of the last round, and no payload. At the second, if the run evaluates, each sends
its measures of the best round's model on its test samples, as in a run of `ml.specs.methods.evaluation`. The aggregate
stays that of the round before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ml.payload import Array, Arrays, ArraySchema, ArraySpec
from ml.specs.base import MethodSpec
from ml.specs.methods.evaluation import EVALUATION, EvaluationHyperparameters, EvaluationSpec


@dataclass(frozen=True)
class ClosingSpec(MethodSpec):
    """A round without payloads or training, whose aggregate keeps the `kinds` of the round before."""

    kinds: Collection[str] = ()

    @classmethod
    def of(cls, spec: MethodSpec, aggregate: Collection[str]) -> MethodSpec:
        """Returns the closing round of a run by `spec`, whose aggregate has arrays of these names."""
        kinds = tuple(sorted({name.partition("/")[0] for name in aggregate}))
        named = type(cls.__name__, (cls,), {"name": spec.name, "__module__": cls.__module__})
        closing: MethodSpec = named(spec.task, spec.hyperparameters, kinds)
        return closing

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return {}

    def rules(self, height: int) -> Mapping[str, str]:
        return {}

    def get_kept(self, height: int) -> Collection[str]:
        return self.kinds

    def get_local_work(self, height: int) -> int:
        return 0

    @property
    def max_weight_is_one(self) -> bool:
        return True


@dataclass(frozen=True)
class ClosingEvaluationSpec(EvaluationSpec):
    """A round of the sites' measures. Each is a payload that is voted on and does not go into the aggregate. The fewest
    samples about which a site sends figures, and the rounding of counts, are the same in every run."""

    @classmethod
    def of(cls, spec: MethodSpec) -> ClosingEvaluationSpec:
        """Returns the evaluation round of a run by `spec`, whose aggregate has a whole model."""
        return cls(spec.task, EvaluationHyperparameters())

    def rules(self, height: int) -> Mapping[str, str]:
        return {EVALUATION: "carry"}

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        return {}

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        return {}
