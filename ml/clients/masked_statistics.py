"""The client of a run of statistics by masked sums: it tells its own for the inputs, and learns those of all from the
openings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ml.clients.agreed import AgreedClient, Unplaced
from ml.errors import MlError
from ml.methods.base import Method, Metrics, Trained
from ml.models.base import Model
from ml.payload import Arrays
from ml.specs import MaskedStatisticsSpec, MethodSpec, get_kind
from ml.specs.statistics import STATISTICS

_ROUND = 1  # of statistics


class MaskedStatisticsClient(AgreedClient):
    """A client whose rounds are the run's heights, none of which is the method's."""

    def __init__(
        self, method: Method, model: Model, unplaced: Unplaced, spec: MaskedStatisticsSpec, **more: Any
    ) -> None:
        self._masked = spec
        super().__init__(method, model, unplaced, spec.inner, **more)

    @property
    def spec(self) -> MethodSpec:
        return self._masked

    def to_method_height(self, height: int) -> int | None:
        return None

    def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        if not self._masked.has_inputs(height):
            raise MlError("nothing is told at a height at which seeds are opened")
        return self.tell(_ROUND)

    def apply(self, height: int, aggregate: Arrays | None, **options: Any) -> Metrics:
        arrays = get_kind(aggregate, STATISTICS)
        if self.constants is None and arrays is not None and not self._masked.has_inputs(height):
            self.agree(arrays)
        told = {} if self.constants is None else {"sites": self.constants.sites, "samples": self.constants.samples}
        return self.evaluate() | told

    def score(self, height: int, aggregates: Iterable[Arrays], **options: Any) -> list[float]:
        raise MlError("with aggregation masked_sum nobody sees what single members sent: there is nothing to score")
