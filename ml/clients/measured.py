"""A client as it is between rounds: a method with a model and data, which measures and predicts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ml.clients.answers import draw_judged, judge_val, list_answers, measure_judged, measure_val
from ml.clients.common_model import CommonModel
from ml.clients.probe import are_finite
from ml.data.base import InputFormat
from ml.data.sample_notes import TrainedRange
from ml.errors import Abandoned, AggregationError, DataError, Stopped
from ml.measures.kinds import Answers, AnyMeasures
from ml.methods.base import ClientData, Method, Metrics, Round, State
from ml.methods.evaluation import Evaluation
from ml.methods.lending import take_own
from ml.models.base import Model, dump_parameters, load_parameters
from ml.payload import Array, Arrays
from ml.seeding import derive_seed
from ml.specs import MethodSpec, add_kind, get_kind
from ml.specs.methods.evaluation import EvaluationHyperparameters, EvaluationSpec
from ml.specs.methods.lending import LendingSpec
from ml.specs.privacy import HIDDEN
from ml.tasks import CLASSIFICATION
from ml.training.criterion import make_criterion
from ml.training.generator import given_back, seed_torch
from ml.training.layers import check_private, find_batch_norm
from ml.training.loop import Engine, ShouldStop
from ml.training.metrics import Judged, Prediction, judge

_log = logging.getLogger(__name__)

TestSet = Literal["matched", "global"]

SCORED_AT_ONCE = 128  # samples in one forward pass; `should_stop` is called before each


class MeasuredClient:
    """One participant between its rounds.

    Each round draws from seeds of its own number, so a client restored from `state_arrays` goes on exactly as the
    original would. Only noise that hides samples is drawn afresh, unless in a rehearsal. The model has block 0's
    parameters and is on the data's device, where the samples are in the form that the model takes
    (`ml.clients.feature_cache`). What single peers offer may make the loss on its test samples at most `max_loss_ratio`
    times as large (`ml.guard`); by default there is no limit.
    """

    def __init__(
        self,
        method: Method,
        model: Model,
        data: ClientData,
        *,
        seed: int,
        engine: Engine | None = None,
        max_loss_ratio: float | None = None,
        is_rehearsal: bool = False,
    ) -> None:
        self.method = method
        self.is_rehearsal = is_rehearsal
        self.seed = seed
        self.engine = engine or Engine()
        self.max_loss_ratio = math.inf if max_loss_ratio is None else max_loss_ratio
        self.trained_range: TrainedRange | None = None  # of a table's raw features, where a node trains
        self.state = State(model, data)
        model.criterion = make_criterion(
            method.spec.hyperparameters, data.train.y, data.num_classes, kind=method.spec.task.kind
        )
        self._before: Arrays | None = None  # the state before the last aggregate, until a phase has succeeded since
        self._judged: Judged | None = None  # the answers to the matched test set, until the client changes
        self.judged_val: Judged | None = None  # the latest answers to the val samples
        self._least_batch = self._choose_least_batch()
        method.init(self.state)
        self._common = CommonModel(method.spec, model)

    def _choose_least_batch(self) -> int:
        """Returns the fewest samples that a step may have. Raises SpecError, and DataError if the client has fewer."""
        spec, model = self.method.spec, self.state.model
        check_private(model, spec)
        layer, size = find_batch_norm(model, spec), spec.hyperparameters.batch_size
        if layer is None:
            return 1
        if self.num_train == 1:
            raise DataError(f"data: expected at least 2 training samples, as {layer} takes the variance of a batch")
        if spec.hyperparameters.counts_epochs and not spec.hyperparameters.drop_last and self.num_train % size == 1:
            _log.warning(
                "data: %d training samples in batches of %d: the last one of an epoch joins the batch before it, as %s "
                "takes the variance of a batch",
                *(self.num_train, size, layer),
            )
        return 2

    def __repr__(self) -> str:
        return f"Client({self.spec.name}, seed={self.seed}, train={self.num_train}, arrays={sorted(self.state.arrays)})"

    @property
    def spec(self) -> MethodSpec:
        """The spec of the run, by which others judge payloads. Inside a client, heights are the method's own."""
        return self.method.spec

    @property
    def has_samples(self) -> bool:
        """Says whether the samples are in the form that the model takes; until then there are labels alone."""
        return True

    def to_method_height(self, height: int) -> int | None:
        """Returns the method's own height; None if the round is none of the method's."""
        return height

    def complete_input(self, input_format: InputFormat) -> InputFormat:
        """Returns the run's input together with what members have agreed on since. Raises MlError if that is not known
        yet."""
        return input_format

    @property
    def device(self) -> torch.device:
        return self.state.data.device

    @property
    def num_train(self) -> int:
        return len(self.state.data.train)

    @property
    def num_test(self) -> int:
        """The number of samples of the matched test set."""
        return len(self.state.data.matched)

    @property
    def num_val(self) -> int:
        return len(self.state.data.val or ())

    @property
    def missing_classes(self) -> list[int]:
        """The classes of which the client has no training samples; empty if samples do not have one class each."""
        if self.spec.task.kind != CLASSIFICATION:
            return []
        missing: list[int] = (self.state.data.counts == 0).nonzero().flatten().tolist()
        return missing

    def evaluate(self, which: TestSet = "matched") -> Metrics:
        """Returns `accuracy` in 0..1, or for a regression `r2`, and `loss` on the matched or the global test set."""
        data, kind = self.state.data, self.spec.task.kind
        if which == "global":
            return judge(self.predict, data.everyone.x, data.everyone.y, kind=kind).metrics
        self._judged = judge(self.predict, data.matched.x, data.matched.y, kind=kind)
        return self._judged.metrics

    def measure(self) -> AnyMeasures | None:
        """Measures the answers to the matched test set, as the client is now; None if it has no samples, or the answers
        are not finite."""
        return self.keep_answers()()

    def measure_val(self) -> Metrics:
        """Measures the client as it is now on its val samples, by `ValMeasures`. Returns {} if it has none."""
        self.judged_val = judge_val(self.state.data.val, self.predict, self.spec.task)
        return measure_val(self.judged_val, self.state.data.val, self.spec.task)

    @torch.no_grad()
    def tell_of(self, aggregate: Arrays, min_samples: int) -> Arrays:
        """Returns what this client sends to all others about the model in an aggregate: its measures on the client's
        own test samples by the classifier, as in a run of `ml.specs.methods.evaluation`, and nothing about fewer than
        `min_samples`. Raises AggregationError if the model does not fit the client's."""
        spec = EvaluationSpec(self.method.spec.task, EvaluationHyperparameters())
        now, before = self.state_arrays(), self.arrays_before
        try:
            load_parameters(self.state.model, get_kind(aggregate, "model") or {})
            return Evaluation(spec).measure(self.state, min_samples)
        except ValueError as error:
            raise AggregationError(f"the model of the round: {error}") from error
        finally:
            self.load_state_arrays(now, before)

    def take_own(self, trained: Arrays, *, lends: bool) -> None:
        """Loads the client's own model of another run into a run for which sites lend theirs. Raises DataError."""
        if isinstance(spec := self.method.spec, LendingSpec):
            take_own(self.state, spec, trained, lends=lends)

    def keep_answers(self) -> Callable[[], AnyMeasures | None]:
        """Returns a function that measures the client as it is now, to be called when there is time."""
        return partial(measure_judged, self._get_judged(), self.state.data.matched.y, self.spec.task)

    def keep_curves(self) -> Callable[[], dict[str, Any] | None]:
        """Returns a function that draws the curves of the client as it is now (`describe_curves`), to be called when
        there is time."""
        return partial(draw_judged, self._get_judged(), self.state.data.matched.y, self.spec.task)

    def _get_judged(self) -> Judged:
        if self._judged is None or not self._judged.logits:  # there may be samples by now
            self.evaluate()
        assert self._judged is not None  # noqa: S101
        return self._judged

    def get_answers(self) -> Answers | None:
        """Returns the answers to the matched test set, as the client is now; None if there are none, or they are not
        finite."""
        return list_answers(self._get_judged(), self.state.data.matched.y, self.spec.task)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Classifies x_NCHW, or the features computed from it, with the client as it is now. `ml.clients.priors`
        adjusts that."""
        self.state.model.eval()
        return self.method.predict(self.state, x)

    def score(
        self, height: int, aggregates: Iterable[Arrays], *, should_stop: ShouldStop = lambda: False
    ) -> list[float]:
        """Returns, for each of some aggregates of one round, the loss on the matched test set after applying it; it may
        not be finite. The client is unchanged afterwards. Raises Stopped if `should_stop` returns True between two
        chunks of samples."""
        round_ = Round(height, self.method.spec.get_round_number(height), b"", self.seed)
        before, samples = self.state_arrays(), self.state.data.matched

        def predict(x: Tensor) -> Prediction:
            if should_stop():
                raise Stopped("the scores were not wanted any more")
            return self.predict(x)

        losses = []
        for aggregate in aggregates:
            try:
                with self.seeded(height):
                    self.method.apply(self.state, round_, aggregate, {})
                    judged = judge(predict, samples.x, samples.y, SCORED_AT_ONCE, self.spec.task.kind)
                    losses.append(judged.metrics["loss"])
            finally:
                self._load(before)
        return losses

    def state_arrays(self, model: Arrays | None = None) -> dict[str, Array]:
        """Returns a copy of everything that training has changed: the model under "model/", the method's under
        "state/". `model` is used as the model's copy, if it is given."""
        dumped = dump_parameters(self.state.model) if model is None else model
        own = add_kind("model", dumped) | add_kind("state", self.state.arrays)
        hidden = {"steps": np.ones(1, np.int64)} if self.spec.hyperparameters.is_private else {}
        return own | self._common.to_arrays() | add_kind(HIDDEN, hidden)

    @property
    def arrays_before(self) -> Arrays | None:
        """The state to which a phase that diverges would go back; for `load_state_arrays`."""
        return self._before

    def load_state_arrays(self, arrays: Arrays, before: Arrays | None = None) -> None:
        """Restores a client from its `state_arrays`, and from the state `before` that it had when the last aggregate
        came. Raises ValueError if either is another model's; if `arrays` is, nothing has changed."""
        self._load(arrays)
        self._before = None
        self._common.load(arrays)
        if before is not None:
            self._load(before)  # raises if it does not fit
            self._load(arrays)
            self._before = before

    def _load(self, arrays: Arrays) -> None:
        self._judged = None
        load_parameters(self.state.model, get_kind(arrays, "model") or {})
        self.state.arrays = {name: array.copy() for name, array in (get_kind(arrays, "state") or {}).items()}

    @contextmanager
    def undone_on_failure(self, model: Arrays | None = None) -> Iterator[Arrays]:
        """Undoes on failure whatever was changed within, except for an Abandoned phase whose state can be used. Yields
        the state as it was, by `state_arrays` of `model`."""
        before = self.state_arrays(model)
        try:
            yield before
        except Abandoned:
            if not are_finite(self.state_arrays()):
                self._load(before)
            raise
        except BaseException:
            self._load(before)
            raise

    def _is_finite(self, measured: Metrics) -> bool:
        """Says whether the loss on the test samples is finite; True without test samples."""
        return not self.num_test or math.isfinite(measured["loss"])

    @contextmanager
    def seeded(self, height: int) -> Iterator[None]:
        """Seeds torch's own generator, from which dropout draws, for this round, and restores it on exit."""
        with given_back(self.device):
            self.seed_torch(height)
            yield

    def seed_torch(self, height: int) -> None:
        """Seeds torch's generator as `seeded` does, for a caller that restores it."""
        seed_torch(derive_seed(self.seed, "dropout", self.method.spec.get_round_number(height)), self.device)
