"""The height that closes a run which selects its best round: members tell what they measured, and send nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ml.payload import ArraySchema
from ml.specs.base import MethodSpec


@dataclass(frozen=True)
class ClosingSpec(MethodSpec):
    """A round without payloads or training, whose aggregate is that of the round before: its `kinds`."""

    kinds: Collection[str] = ()

    @classmethod
    def of(cls, spec: MethodSpec, aggregate: Collection[str]) -> MethodSpec:
        """That of a run by `spec`, whose aggregate has arrays of these names."""
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
