"""Local: everyone trains alone (ALGORITHMS §9). Every other method has to be better than this one.

Nothing is sent and nothing aggregated; the aggregate has the zero digest. With `outer` the own model changes by an
optimiser's step after each local phase, as the common model of a federation of one would, so that it trains at the same
pace as a federation with which it is compared. Local work and its defaults are DFPL's (20 mini-batch steps of 32 at lr
0.1, no momentum), so that DFPL with lambda 0 is this method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ml.payload import ArraySchema
from ml.specs.base import MethodSpec
from ml.specs.hyperparameters import Hyperparameters, option
from ml.specs.outer import OuterHyperparameters
from ml.tasks import TASKS


@dataclass(frozen=True, kw_only=True)
class LocalHyperparameters(OuterHyperparameters):
    """Settings of Local. With `aggregation: masked_sum` members hide what they send in a run of statistics
    (`ml.specs.masked.statistics`), which trains nothing."""

    aggregation: str | None = option("none", "masked_sum")

    @property
    def is_masked(self) -> bool:
        return self.aggregation == "masked_sum"


@dataclass(frozen=True)
class LocalSpec(MethodSpec):
    """Local's spec, without payloads, hence without an aggregate."""

    name: ClassVar[str] = "local"
    settings: ClassVar[type[Hyperparameters]] = LocalHyperparameters
    hides_samples: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = TASKS

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return {}

    def rules(self, height: int) -> Mapping[str, str]:
        return {}

    @property
    def max_weight_is_one(self) -> bool:
        return True
