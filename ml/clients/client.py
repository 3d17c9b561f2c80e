"""The client: a method at work on a model and data of its own. The simulation and a node's worker both run this object.

A local phase has a beginning (samples drawn, the method prepared), steps, and an end (payloads made and checked); all
three are open to those who run many clients at once. Whatever fails leaves the client as it was.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ml.accountant import Release
from ml.clients.answers import draw_judged, judge_val, list_answers, measure_judged, measure_val
from ml.clients.batched_measures import Measured
from ml.clients.common_model import CommonModel
from ml.clients.privacy import describe_release, make_step_privacy
from ml.clients.probe import are_finite, explain_untrainable, has_finite_weights
from ml.clients.told import tell_of
from ml.data.base import InputFormat
from ml.data.sample_notes import TrainedRange
from ml.errors import Abandoned, DataError, PayloadError, Spoiled, Stopped
from ml.guard import Guard, OnRefused, Outcome
from ml.measures.kinds import Answers, AnyMeasures
from ml.methods.base import Blobs, ClientData, Method, Metrics, Round, State, Trained
from ml.methods.lending import take_own
from ml.models.base import Model, dump_parameters, load_parameters
from ml.payload import Array, Arrays
from ml.seeding import derive_seed
from ml.specs import MethodSpec, Offer, add_kind, get_kind
from ml.specs.lending import LendingSpec
from ml.specs.privacy import HIDDEN
from ml.specs.releases import plan_release
from ml.tasks import CLASSIFICATION
from ml.training.criterion import make_criterion
from ml.training.generator import given_back, seed_torch
from ml.training.layers import check_private, find_batch_norm
from ml.training.loop import (
    MAX_GATHERED_BYTES,
    Batch,
    Diverged,
    Engine,
    OnStep,
    Prepared,
    Progress,
    Schedule,
    ShouldStop,
    Stepping,
    add_by_step,
    augment_batches,
    compile_loss,
    gather_batches,
    step_beside,
    train,
)
from ml.training.metrics import Judged, Prediction, judge
from ml.training.optimizers import Sgd, make_optimizer
from ml.training.private import StepPrivacy

_log = logging.getLogger(__name__)

TestSet = Literal["matched", "global"]

SCORED_AT_ONCE = 128  # samples in one forward pass, between two looks at whether a score is still wanted


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A local phase that is about to begin: what its steps are made of, and the seconds that making it took."""

    round: Round
    schedule: Schedule
    prepared: Prepared
    sgd: Sgd
    seconds: float
    payloads: Mapping[str, Arrays]  # of the model as the phase begins
    trains_alone: bool = False  # by a loss that is weighted by the client's own classes, or hiding its samples
    privacy: StepPrivacy | None = None


class Client:
    """One participant: a method at work on a model and data of its own.

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

    def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        me: bytes = b"",
        offers: Sequence[Offer] = (),
        blobs: Blobs | None = None,
        gone: Collection[bytes] = frozenset(),
        should_stop: ShouldStop | None = None,
        on_step: OnStep | None = None,
        on_back: Callable[[], None] = lambda: None,
    ) -> Trained:
        """One local phase, of `num_iterations` instead of the method's own number, and what to send of it.

        Where the spec has it read an earlier block, `offers` are that block's, and `blobs` those that it wants of them.
        A phase that diverges right after an aggregate begins once more from the client's own state before that, and
        `on_back` hears of it first. Raises Stopped and Diverged, and then is as the phase began; and Abandoned, where
        `should_stop` does, the model as the last step left it.
        """

        def run() -> Trained:
            with self.undone_on_failure(), self.seeded(height):
                phase = self.begin(height, beacon, num_iterations, me=me, offers=offers, blobs=blobs, gone=gone)
                return self.end(phase, self.run(phase, should_stop=should_stop, on_step=on_step))

        try:
            return run()
        except Diverged as error:
            if not self.go_back():
                raise
            why = str(error)
        on_back()
        return replace(run(), went_back=why)

    def plan_release(self, height: int, num_iterations: int | None = None) -> Release | None:
        """What a phase of this height will have told of any sample, at most; None where nothing hides them."""
        return plan_release(self.spec, self.num_train, height, num_iterations)

    def validate_common(self, height: int) -> None:
        """Raises AggregationError where what a phase of this height sends goes by the change of a common model, and
        that is not known."""
        own = self.to_method_height(height)
        if own is not None:
            self._common.validate(own)

    def note_common(self, height: int, aggregate: Arrays | None) -> None:
        """The common model in the aggregate of a round that the client has taken over, for one that kept none then."""
        if (model := get_kind(aggregate, "model")) is not None:
            self._common.note(height, model)

    def go_on_from(self, arrays: Arrays) -> None:
        """Become what `state_arrays` of a run before has left of the client, whose common model is this run's own.
        Raises ValueError if they are another model's."""
        self._load(arrays)
        self._before = None

    def go_back(self) -> bool:
        """Become what the client was before the last aggregate, unless a phase went well since. Whether there was such
        a state to go back to."""
        before, self._before = self._before, None
        if before is None:
            return False
        self._load(before)
        return True

    def begin(
        self,
        height: int,
        beacon: bytes,
        num_iterations: int | None = None,
        *,
        me: bytes = b"",
        offers: Sequence[Offer] = (),
        blobs: Blobs | None = None,
        gone: Collection[bytes] = frozenset(),
    ) -> Phase:
        """Draw the samples of a local phase and let the method prepare for them."""
        start_s = time.perf_counter()
        self._judged = None
        spec = self.method.spec
        number = spec.get_round_number(height)
        round_ = Round(
            height, number, beacon, self.seed, me, tuple(offers), frozenset(gone), blobs or {}, self.is_rehearsal
        )
        hyper = spec.hyperparameters
        planned = spec.get_local_work(height)
        work = num_iterations if planned and num_iterations is not None else planned
        if hyper.is_private:
            schedule = Schedule.draw_by_chance(hyper, self.state.data.train.y, round_.secret_stream("batches"), work)
        else:
            rng, least = round_.rng("batches"), self._least_batch
            schedule = Schedule.draw(hyper, self.state.data.train.y, rng, work, least=least)
        prepared = self.method.prepare(self.state, round_, schedule)
        lr = self.spec.compute_lr(number, len(schedule.batches))
        sgd = prepared.optimizer or make_optimizer(hyper, self.state.model.parameters(), lr, prepared.on_gradients)
        payloads = prepared.before() if prepared.before is not None else {}
        seconds = time.perf_counter() - start_s
        privacy = make_step_privacy(hyper, round_, self.num_train)
        trains_alone = hyper.class_weights == "own" or privacy is not None
        return Phase(round_, schedule, prepared, sgd, seconds, payloads, trains_alone, privacy)

    def run(self, phase: Phase, *, should_stop: ShouldStop | None = None, on_step: OnStep | None = None) -> Progress:
        """The steps of a local phase, and what is trained then. Raises as `ml.training.loop.train`, the model then
        somewhere on its way."""
        compute_loss, prepared = self.method.compute_loss, phase.prepared
        is_compiled = self.engine.compiled and phase.privacy is None  # torch.compile and torch.func do not go together
        stepping = Stepping(
            self.engine.autocast(self.device, self.state.model), should_stop, on_step, self.engine.can_replay
        )
        if prepared.instead is not None:
            return prepared.instead(stepping)
        batches = self.get_batches(phase)
        if prepared.beside is not None:
            batches = step_beside(batches, prepared.beside(stepping.autocast))
        progress = train(
            self.state.model,
            batches,
            compile_loss(compute_loss) if is_compiled else compute_loss,
            prepared.context,
            phase.sgd,
            num_steps=len(phase.schedule.batches) + prepared.then_steps,
            stepping=stepping,
            privacy=phase.privacy,
        )
        if prepared.then is None:
            return progress
        start_s = time.perf_counter()
        payloads = prepared.then(stepping.after(progress.steps, prepared.then_steps))
        seconds = progress.seconds + time.perf_counter() - start_s
        return Progress(progress.losses, progress.steps + prepared.then_steps, seconds, payloads)

    def end(self, phase: Phase, progress: Progress, measured: Measured | None = None) -> Trained:
        """The result of a local phase whose steps have been made, and of which so much has been `measured` already.
        Raises Diverged where no loss has shown what the last step did."""
        start_s = time.perf_counter()
        last = f"the last of {progress.steps} steps at lr {phase.sgd.lr:g} has left"
        known = measured or Measured(has_finite_weights(self.state.model))
        if not known.is_finite:
            raise Diverged(f"{last} weights that are no numbers")
        weight, finished = self.method.finish(self.state, replace(phase.round, sums=known.sums))
        payloads = self._common.pack({**finished, **phase.payloads, **progress.payloads}, phase.round)
        seconds = phase.seconds + progress.seconds + time.perf_counter() - start_s
        self._judged = known.judged
        before_exchange = self._judged.metrics if self._judged else self.evaluate()
        if not (self._is_finite(before_exchange) and are_finite(self.state.arrays)):
            raise Diverged(f"{last} a model that gives no numbers; expected finite ones")
        try:
            for kind, arrays in payloads.items():
                self.method.spec.validate_payload(kind, arrays, phase.round.height)
        except PayloadError as error:
            raise Diverged(f"{last} what others would refuse: {error}") from error
        self._before = None
        iterations = phase.schedule.num_iterations
        metrics = {
            "loss": progress.losses.mean,
            "first_loss": progress.losses.first,
            "last_loss": progress.losses.last,
            "loss_error": progress.losses.error,
            "iterations": iterations,
            "steps": progress.steps,
            "samples": sum(map(len, phase.schedule.batches)),
            "seconds": seconds,
            **({"alpha_s": seconds / iterations} if iterations else {}),
            **{name: value for name, value in before_exchange.items() if name != "loss"},
            "test_loss": before_exchange["loss"],
            **phase.prepared.metrics,
            **progress.metrics,
        }
        planned = plan_release(self.method.spec, self.num_train, phase.round.height, iterations)
        return Trained(weight, payloads, metrics, release=describe_release(planned, payloads))

    def apply(
        self,
        height: int,
        aggregate: Arrays | None,
        *,
        beacon: bytes = b"",
        me: bytes = b"",
        offers: Sequence[Offer] = (),
        blobs: Blobs | None = None,
        gone: Collection[bytes] = frozenset(),
        on_refused: OnRefused = lambda peer, why: None,
    ) -> Metrics:
        """Take over a finalised round and measure (`evaluate`, `measure_val`) what came of it, the method's own metrics
        besides.

        That is where all methods are measured: the parameter-sharing ones after aggregation, and the personalised
        ones after local training, since applying leaves their weights alone. Of peers whose `blobs` would harm the
        client nothing is taken, and `on_refused` hears of each. Raises Spoiled where the round would leave the client
        without a finite loss all the same, on its test samples or to train on. On failure nothing has changed.
        """
        blobs, number = blobs or {}, self.method.spec.get_round_number(height)
        self._common.note(height, get_kind(aggregate, "model") or {})  # whatever becomes of it here

        def take(out: Collection[bytes]) -> Outcome:
            if peers:
                self._load(before)
            round_ = Round(height, number, beacon, self.seed, me, tuple(offers), frozenset([*gone, *out]))
            return self._take(self._without_absent(round_, aggregate, blobs), aggregate, blobs)

        with self.undone_on_failure() as before, self.seeded(height):
            peers = {offer.author for offer in offers if not blobs.keys().isdisjoint(offer.digests.values())}
            peers -= {me, *gone}
            loss = self.evaluate()["loss"] if peers and self.max_loss_ratio < math.inf else math.nan
            outcome, refused = Guard(loss, self.max_loss_ratio).take(take, peers)
            if outcome.fault is not None:
                raise Spoiled(outcome.fault)
        self._before = before
        for peer, why in refused.items():
            on_refused(peer, why)
        return outcome.measured | self.measure_val()

    def _take(self, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Outcome:
        """What comes of taking over a round as it stands."""
        self._judged = None
        metrics = self.method.apply(self.state, round_, aggregate, blobs)
        reason = explain_untrainable(self.method, self.state, round_, self.engine)
        if reason is not None:
            return Outcome({}, reason)
        measured = self.evaluate()
        if not self._is_finite(measured):
            return Outcome({}, f"the loss of {self.num_test} test samples is {measured['loss']}")
        return Outcome(measured | dict(metrics or {}))

    def _without_absent(self, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Round:
        """The round without those of whom it would want what is not among `blobs`: where some are left out, a method
        may turn to others."""
        offers = round_.offers
        while True:
            wanted = self.method.spec.wanted(round_.height, round_.beacon, round_.me, offers, aggregate, round_.gone)
            missing = set(wanted) - blobs.keys()
            absent = {offer.author for offer in offers if not missing.isdisjoint(offer.digests.values())} - round_.gone
            if not absent:
                return round_
            round_ = replace(round_, gone=round_.gone | absent)

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

    def tell_of(self, aggregate: Arrays, min_samples: int) -> Arrays:
        """Returns what this client tells of the model in an aggregate (`ml.clients.told`). Raises AggregationError."""
        return tell_of(self, aggregate, min_samples)

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

    def get_batches(self, phase: Phase, max_bytes: int = MAX_GATHERED_BYTES) -> Iterator[Batch]:
        """The samples of each step of a local phase, copied together up to `max_bytes`."""
        samples, kind, prepared = self.state.data.train, self.engine.augment, phase.prepared
        batches = gather_batches(samples.x, samples.y, prepared.by_sample, phase.schedule.batches, max_bytes)
        if kind != "none":
            generator = torch.Generator(self.device).manual_seed(derive_seed(self.seed, "augment", phase.round.number))
            batches = augment_batches(batches, kind, generator)
        if prepared.by_step is None:
            return batches
        return add_by_step(batches, prepared.by_step.gather(max_bytes // 2))  # of files, whose pages are there as well

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
