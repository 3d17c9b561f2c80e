"""A client in a run whose members hide what they send in a sum of all (`ml.specs.masked`).

It trains and applies rounds as always, in the method's own rounds of two heights each, and does nothing about masks.
The client returns its plain model, or prototypes, and its node masks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ml.clients.agreed import AgreedClient, Unplaced
from ml.clients.client import Client
from ml.errors import MlError
from ml.methods.base import ClientData, Method, Metrics, Trained
from ml.models.base import Model
from ml.payload import Arrays
from ml.specs import MaskedSpec, MaskedStatisticsSpec, MethodSpec, get_kind
from ml.specs.masked.aggregate import drop_masked
from ml.specs.statistics import STATISTICS


class MaskedClient(Client):
    """A client that trains at the heights of inputs, and applies rounds at the heights of openings."""

    def __init__(self, method: Method, model: Model, data: ClientData, spec: MaskedSpec, **more: Any) -> None:
        self._spec = spec
        super().__init__(method, model, data, **more)

    @property
    def spec(self) -> MaskedSpec:
        return self._spec

    def to_method_height(self, height: int) -> int | None:
        return self._spec.to_inner(height) if self._spec.has_inputs(height) else None

    def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        if not self._spec.has_inputs(height):
            raise MlError("nothing is trained for a height at which seeds are opened")
        return super().train(self._spec.to_inner(height), beacon, **options)

    def apply(self, height: int, aggregate: Arrays | None, **options: Any) -> Metrics:
        own = self._find_round(height, aggregate)
        if own is None:
            return self.evaluate()  # the model has not changed: no round has made a mean yet
        return super().apply(own, drop_masked(aggregate), **options)

    def note_common(self, height: int, aggregate: Arrays | None) -> None:
        own = self._find_round(height, aggregate)
        if own is not None:
            super().note_common(own, aggregate)

    def _find_round(self, height: int, aggregate: Arrays | None) -> int | None:
        """Returns the method's own round whose mean the aggregate of a height has; None if the height ends no round."""
        own = self._spec.to_inner(height)
        is_end = own > 0 and not self._spec.has_inputs(height) and self._spec.has_mean(aggregate)
        return own if is_end else None

    def score(self, height: int, aggregates: Iterable[Arrays], **options: Any) -> list[float]:
        raise MlError("with aggregation masked_sum nobody sees what single members sent: there is nothing to score")


class MaskedStatisticsClient(AgreedClient):
    """The client of a run of statistics alone: it sends its own at the height of inputs, and receives those of all at
    the height of openings. None of the run's heights is a round of the method."""

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
        return self.tell(1)  # 1 is the round of statistics

    def apply(self, height: int, aggregate: Arrays | None, **options: Any) -> Metrics:
        arrays = get_kind(aggregate, STATISTICS)
        if self.constants is None and arrays is not None and not self._masked.has_inputs(height):
            self.agree(arrays)
        told = {} if self.constants is None else {"sites": self.constants.sites, "samples": self.constants.samples}
        return self.evaluate() | told

    def score(self, height: int, aggregates: Iterable[Arrays], **options: Any) -> list[float]:
        raise MlError("with aggregation masked_sum nobody sees what single members sent: there is nothing to score")
