"""The client of a run that agrees on statistics: it sends its sums in the first round, and from then on its samples are
normalised by the sums of all.

Until the constants are known there are no samples to train on or to answer, only labels. The constants come with any
aggregate of the run, with a checkpoint, or, in a run that inherits them, with the model it begins from. They stay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ml.clients.client import Client
from ml.data.base import Images, InputFormat, Labels
from ml.data.fitted import FittedImages
from ml.data.hidden_statistics import StatisticsPrivacy, compute_hidden_statistics
from ml.data.statistics import compute_statistics
from ml.errors import MlError
from ml.methods.base import ClientData, Method, Metrics, Round, Samples, Trained
from ml.models.base import Model
from ml.payload import Array, Arrays
from ml.specs import MethodSpec, StatisticsSpec, add_kind, get_kind
from ml.specs.releases import plan_release
from ml.specs.statistics import STATISTICS, Constants, drop_statistics, get_num_values
from ml.training.criterion import make_criterion

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Unplaced:
    """Holds a site's samples before they are normalised: the labels it trains on, and the numbers of its test and val
    samples. `read` returns the training samples as they are, and `place` normalises all samples by some constants and
    copies them to the model's device."""

    labels: Labels | Images
    num_test: int
    num_classes: int
    read: Callable[[], Images | FittedImages]
    place: Callable[[Constants], ClientData]
    num_val: int = 0

    def hold_labels(self, device: torch.device) -> ClientData:
        """Returns data that have the labels alone."""
        y = torch.tensor(self.labels).to(device)
        nothing = Samples(torch.empty((0, 0), device=device), y[:0])
        return ClientData(Samples(torch.empty((len(y), 0), device=device), y), nothing, nothing, self.num_classes)


class AgreedClient(Client):
    """A client whose heights are the run's. If the first round is that of statistics, the method's own rounds come one
    later."""

    def __init__(self, method: Method, model: Model, unplaced: Unplaced, spec: StatisticsSpec, **more: Any) -> None:
        self._spec = spec
        self.unplaced: Unplaced | None = unplaced
        self._num_test, self._num_val = unplaced.num_test, unplaced.num_val
        self._statistics: dict[str, Array] = {}  # those that members agreed on, as an aggregate has them
        self.constants: Constants | None = None
        labels = unplaced.hold_labels(next(model.parameters()).device)
        super().__init__(method, model, labels, **more)

    @property
    def spec(self) -> MethodSpec:
        return self._spec

    @property
    def num_test(self) -> int:
        return self._num_test

    @property
    def num_val(self) -> int:
        return self._num_val

    @property
    def has_samples(self) -> bool:
        return self.constants is not None

    def to_method_height(self, height: int) -> int | None:
        return None if self._spec.is_statistics(height) else self._spec.to_inner(height)

    def complete_input(self, input_format: InputFormat) -> InputFormat:
        constants = self._get_constants()
        return input_format.with_constants(constants.mean, constants.std)

    # ---- rounds

    def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        own = self.to_method_height(height)
        if own is None:
            return self.tell(height)
        self._get_constants()
        return super().train(own, beacon, **options)

    def tell(self, height: int) -> Trained:
        """Returns what this site sends in the round of statistics. Nothing is trained."""
        start_s, unplaced, most = time.perf_counter(), self.unplaced, self._spec.task.max_weight
        if unplaced is None:
            raise MlError("this site's samples are normalised already, by statistics that members have agreed on")
        samples = unplaced.read()[:most], np.asarray(unplaced.labels[:most], np.int64)
        num_classes, agreement, privacy = unplaced.num_classes, self._spec.agreement, self.make_privacy(height)
        if privacy is None:
            told = compute_statistics(*samples, num_classes, agreement)
        else:
            told = compute_hidden_statistics(*samples, num_classes, agreement, privacy)
        self._spec.validate_payload(STATISTICS, told, height)
        metrics = {"iterations": 0, "steps": 0, "samples": int(told["count"]), "seconds": time.perf_counter() - start_s}
        return Trained(1, {STATISTICS: told}, metrics, release=plan_release(self._spec, self.num_train, height))

    def make_privacy(self, height: int) -> StatisticsPrivacy | None:
        """Returns the noise settings that hide samples in the sums of this site; None if nothing hides them."""
        hyper, bounds = self._spec.hyperparameters, self._spec.agreement.bounds
        if not hyper.is_private:
            return None
        if bounds is None:
            raise MlError("expected what values lie between, by which samples are hidden; got none")
        round_ = Round(height, 0, b"", self.seed, is_rehearsal=self.is_rehearsal)
        return StatisticsPrivacy(hyper.dp.statistics_noise, bounds, round_.secret_stream("noise in statistics"))

    def apply(self, height: int, aggregate: Arrays | None, **options: Any) -> Metrics:
        if self.constants is None and (arrays := get_kind(aggregate, STATISTICS)) is not None:
            self.agree(arrays)
        own = self.to_method_height(height)
        constants = self._get_constants()
        if own is None:
            return self.evaluate() | {"sites": constants.sites, "samples": constants.samples}
        return super().apply(own, drop_statistics(aggregate), **options)

    def note_common(self, height: int, aggregate: Arrays | None) -> None:
        own = self.to_method_height(height)
        if own is not None:
            super().note_common(own, aggregate)

    def score(self, height: int, aggregates: Iterable[Arrays], **options: Any) -> list[float]:
        own = self.to_method_height(height)
        if own is None:  # the round of statistics changes no model
            return [self.evaluate()["loss"] for _ in aggregates]
        return super().score(own, (drop_statistics(aggregate) or {} for aggregate in aggregates), **options)

    # ---- the agreed statistics

    def agree(self, statistics: Arrays) -> None:
        """Normalises the samples by these statistics, which an aggregate has under "statistics/"."""
        if self.unplaced is None:
            return
        task = self._spec.task
        constants = Constants.from_arrays(statistics, get_num_values(task.input_shape))
        labels = self.state.data.train.y  # not read again: a simulated liar's labels may have been changed
        placed = self.unplaced.place(constants)
        self.state.data = replace(placed, train=Samples(placed.train.x, labels))
        self._statistics = {name: np.array(array) for name, array in statistics.items()}
        self.constants, self.unplaced, self._judged = constants, None, None
        hyper = self._spec.hyperparameters
        self.state.model.criterion = make_criterion(hyper, labels, task.num_classes, constants.classes, task.kind)
        _log.info("Samples are normalised as %d sites with %d agreed", constants.sites, constants.samples)

    def _get_constants(self) -> Constants:
        if self.constants is None:
            raise MlError(
                "what normalises this run's samples is not known yet: it comes with the run's first aggregate"
            )
        return self.constants

    def state_arrays(self, model: Arrays | None = None) -> dict[str, Array]:
        return super().state_arrays(model) | add_kind(STATISTICS, self._statistics)

    def _load(self, arrays: Arrays) -> None:
        if (statistics := get_kind(arrays, STATISTICS)) is not None:
            self.agree(statistics)
        super()._load(arrays)
