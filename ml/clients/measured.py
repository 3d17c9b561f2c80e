"""A client as it stands: a method on a model and data of its own, measured and asked."""

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

SCORED_AT_ONCE = 128  # samples in one forward pass, between two looks at whether a score is still wanted


class MeasuredClient:
    """One participant between its rounds.

    Each round draws from seeds of its own number, so a client restored from `state_arrays` goes on exactly as the one
    they came from; but for noise that hides samples, which is the same again in a rehearsal alone. The model is as
    block 0 has it and on the data's device, where the samples are as it takes them (`ml.clients.feature_cache`). What
    single peers offer may make the loss on its test samples `max_loss_ratio` times as large, and no more (`ml.guard`);
    by default any number of times.
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
        self.trained_range: TrainedRange | None = None  # of a table's features as they come, where a node trains
        self.state = State(model, data)
        model.criterion = make_criterion(
            method.spec.hyperparameters, data.train.y, data.num_classes, kind=method.spec.task.kind
        )
        self._before: Arrays | None = None  # as it was before the last aggregate, until a phase has gone well since
        self._judged: Judged | None = None  # the answers to the matched test set, while the client stands as it did
        self.judged_val: Judged | None = None  # those to the val samples, when they were last measured
        self._least_batch = self._choose_least_batch()
        method.init(self.state)
        self._common = CommonModel(method.spec, model)

    def _choose_least_batch(self) -> int:
        """The fewest samples of a step. Raises SpecError, and DataError where there are fewer."""
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
        """That of the run, which others judge payloads by; inside, heights are the method's own."""
        return self.method.spec

    @property
    def has_samples(self) -> bool:
        """Whether they are as the model takes them; until then there are labels alone."""
        return True

    def to_method_height(self, height: int) -> int | None:
        """The method's own height; None where the round is none of the method's."""
        return height

    def complete_input(self, input_format: InputFormat) -> InputFormat:
        """The input of the run with all that has been agreed on since. Raises MlError where that is not known yet."""
        return input_format

    @property
    def device(self) -> torch.device:
        return self.state.data.device

    @property
    def num_train(self) -> int:
        return len(self.state.data.train)

    @property
    def num_test(self) -> int:
        """Samples of the matched test set."""
        return len(self.state.data.matched)

    @property
    def num_val(self) -> int:
        return len(self.state.data.val or ())

    @property
    def missing_classes(self) -> list[int]:
        """The classes of which the client has no training samples; none where a sample has not one class."""
        if self.spec.task.kind != CLASSIFICATION:
            return []
        missing: list[int] = (self.state.data.counts == 0).nonzero().flatten().tolist()
        return missing

    def evaluate(self, which: TestSet = "matched") -> Metrics:
        """`accuracy` in 0..1, or of a regression `r2`, and `loss` on the matched or the global test set."""
        data, kind = self.state.data, self.spec.task.kind
        if which == "global":
            return judge(self.predict, data.everyone.x, data.everyone.y, kind=kind).metrics
        self._judged = judge(self.predict, data.matched.x, data.matched.y, kind=kind)
        return self._judged.metrics

    def measure(self) -> AnyMeasures | None:
        """All that the answers to the matched test set show, as the client stands; None where it has no samples, or the
        answers are no numbers."""
        return self.keep_answers()()

    def measure_val(self) -> Metrics:
        """What the client's val samples show of it as it stands, by `ValMeasures`; nothing where it has none."""
        self.judged_val = judge_val(self.state.data.val, self.predict, self.spec.task)
        return measure_val(self.judged_val, self.state.data.val, self.spec.task)

    @torch.no_grad()
    def tell_of(self, aggregate: Arrays, min_samples: int) -> Arrays:
        """Returns what this client tells all others of the model in an aggregate: by its own test samples and the
        classifier, as in a run of `ml.specs.methods.evaluation`, and nothing of fewer than `min_samples`. Raises
        AggregationError where the model is not the client's."""
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
        """Takes its own model of another run into one for which sites lend theirs. Raises DataError."""
        if isinstance(spec := self.method.spec, LendingSpec):
            take_own(self.state, spec, trained, lends=lends)

    def keep_answers(self) -> Callable[[], AnyMeasures | None]:
        """`measure` of the client as it stands now, for whoever calls it when there is time."""
        return partial(measure_judged, self._get_judged(), self.state.data.matched.y, self.spec.task)

    def keep_curves(self) -> Callable[[], dict[str, Any] | None]:
        """As `keep_answers`, of `describe_curves`."""
        return partial(draw_judged, self._get_judged(), self.state.data.matched.y, self.spec.task)

    def _get_judged(self) -> Judged:
        if self._judged is None or not self._judged.logits:  # perhaps there are samples by now
            self.evaluate()
        assert self._judged is not None  # noqa: S101
        return self._judged

    def get_answers(self) -> Answers | None:
        """Those to the matched test set, as the client stands; None where there are none, or they are no numbers."""
        return list_answers(self._get_judged(), self.state.data.matched.y, self.spec.task)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Classify x_NCHW, or what is precomputed of it, as the client stands (`ml.clients.priors` adjusts that)."""
        self.state.model.eval()
        return self.method.predict(self.state, x)

    def score(
        self, height: int, aggregates: Iterable[Arrays], *, should_stop: ShouldStop = lambda: False
    ) -> list[float]:
        """The loss on the matched test set that each of some aggregates of one round leaves this client with, as it
        stands; it may be no finite number. Whatever happens, all is as before then. Raises Stopped where `should_stop`
        says so between two chunks of samples.
        """
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
        """A copy of everything that training has changed: the model under "model/", the method's under "state/".
        `model` is its copy, where there is one."""
        dumped = dump_parameters(self.state.model) if model is None else model
        own = add_kind("model", dumped) | add_kind("state", self.state.arrays)
        hidden = {"steps": np.ones(1, np.int64)} if self.spec.hyperparameters.is_private else {}
        return own | self._common.to_arrays() | add_kind(HIDDEN, hidden)

    @property
    def arrays_before(self) -> Arrays | None:
        """The state that a phase which diverges would go back to; for `load_state_arrays`."""
        return self._before

    def load_state_arrays(self, arrays: Arrays, before: Arrays | None = None) -> None:
        """Become the client they came from, which was as in `before` when the last aggregate came. Raises ValueError if
        either are another model's; if the first are, nothing has changed."""
        self._load(arrays)
        self._before = None
        self._common.load(arrays)
        if before is not None:
            self._load(before)  # so that it is known to fit
            self._load(arrays)
            self._before = before

    def _load(self, arrays: Arrays) -> None:
        self._judged = None
        load_parameters(self.state.model, get_kind(arrays, "model") or {})
        self.state.arrays = {name: array.copy() for name, array in (get_kind(arrays, "state") or {}).items()}

    @contextmanager
    def undone_on_failure(self, model: Arrays | None = None) -> Iterator[Arrays]:
        """Whatever fails within has changed nothing, unless it was abandoned, in a state that can be used. Gives the
        state as it was, by `state_arrays` of `model`."""
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
        """Whether the loss on the test samples is; where there are none it says nothing."""
        return not self.num_test or math.isfinite(measured["loss"])

    @contextmanager
    def seeded(self, height: int) -> Iterator[None]:
        """Dropout draws from torch's own generator: seeded for this round, and given back as it was."""
        with given_back(self.device):
            self.seed_torch(height)
            yield

    def seed_torch(self, height: int) -> None:
        """As `seeded`, for whoever gives the generator back."""
        seed_torch(derive_seed(self.seed, "dropout", self.method.spec.get_round_number(height)), self.device)
