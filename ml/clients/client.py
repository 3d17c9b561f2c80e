"""The client: a method with a model and data. The simulation and a node's worker both run this object.

A local phase has a beginning (samples drawn, the method prepared), steps, and an end (payloads made and checked). All
three can be called separately by code that runs many clients at once. Whatever fails leaves the client as it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ml.accountant import Release
from ml.clients.batched_measures import Measured
from ml.clients.measured import MeasuredClient
from ml.clients.privacy import describe_release, make_step_privacy
from ml.clients.probe import are_finite, explain_untrainable, has_finite_weights
from ml.errors import PayloadError, Spoiled
from ml.guard import Guard, OnRefused, Outcome
from ml.methods.base import Blobs, Metrics, Round, Trained
from ml.payload import Arrays
from ml.seeding import derive_seed
from ml.specs import Offer, get_kind
from ml.specs.releases import plan_release
from ml.training.loop import (
    MAX_GATHERED_BYTES,
    Batch,
    Diverged,
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
from ml.training.optimizers import Sgd, make_optimizer
from ml.training.private import StepPrivacy


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Holds a local phase that has been prepared and not yet run: what its steps need, and the seconds that preparing
    took."""

    round: Round
    schedule: Schedule
    prepared: Prepared
    sgd: Sgd
    seconds: float
    payloads: Mapping[str, Arrays]  # made from the model as the phase begins
    trains_alone: bool = False  # its loss is weighted by the client's own classes, or it hides samples
    privacy: StepPrivacy | None = None


class Client(MeasuredClient):
    """One participant: it trains local phases by a method and applies the results of rounds."""

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
        """Trains one local phase, of `num_iterations` instead of the method's own number, and returns what to send.

        If the spec makes the phase read an earlier block, `offers` are that block's, and `blobs` are those that the
        spec wants of them. A phase that diverges right after an aggregate is run once more from the client's own state
        before that aggregate; `on_back` is called first. Raises Stopped and Diverged, with the client as it was before
        the phase, and Abandoned if `should_stop` raises it, with the model as it was after the last step.
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
        """Returns the most that a phase of this height releases about any sample; None if nothing hides samples."""
        return plan_release(self.spec, self.num_train, height, num_iterations)

    def validate_common(self, height: int) -> None:
        """Raises AggregationError if a phase of this height sends a change of the common model, and that model is not
        known."""
        own = self.to_method_height(height)
        if own is not None:
            self._common.validate(own)

    def note_common(self, height: int, aggregate: Arrays | None) -> None:
        """Stores the common model in the aggregate of a round that the client has applied, for a client that has stored
        none."""
        if (model := get_kind(aggregate, "model")) is not None:
            self._common.note(height, model)

    def go_on_from(self, arrays: Arrays) -> None:
        """Restores the state that an earlier run left (`state_arrays`). The common model stays this run's own. Raises
        ValueError for the state of another model."""
        self._load(arrays)
        self._before = None

    def go_back(self) -> bool:
        """Restores the state before the last aggregate, unless a phase has succeeded since. Returns whether there was
        such a state."""
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
        """Draws the samples of a local phase and lets the method prepare for them."""
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
        """Runs the steps of a local phase, and the training that some methods have after them. Raises as
        `ml.training.loop.train`; the model is then partly trained."""
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
        """Returns the result of a local phase whose steps are done; `measured` holds what is measured already. Raises
        Diverged if the last step left weights, losses or payloads that are not finite, or payloads that others would
        refuse."""
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
        """Applies a finalised round and measures the client after it (`evaluate`, `measure_val`, and the method's own
        metrics).

        All methods are measured here: those that share parameters after aggregation, and personalised ones after local
        training, since applying leaves their weights alone. Blobs of peers that would harm the client are not used, and
        `on_refused` is called for each such peer. Raises Spoiled if the round would leave the client without a finite
        loss all the same, on its test samples or in training. After a failure nothing has changed.
        """
        blobs, number = blobs or {}, self.method.spec.get_round_number(height)
        self._common.note(height, get_kind(aggregate, "model") or {})  # also if applying it fails

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
        """Applies a round as it is and returns the outcome."""
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
        """Returns the round without the authors whose wanted blobs are not among `blobs`. Without some authors a method
        may want the blobs of others, so this is repeated until nothing is missing."""
        offers = round_.offers
        while True:
            wanted = self.method.spec.wanted(round_.height, round_.beacon, round_.me, offers, aggregate, round_.gone)
            missing = set(wanted) - blobs.keys()
            absent = {offer.author for offer in offers if not missing.isdisjoint(offer.digests.values())} - round_.gone
            if not absent:
                return round_
            round_ = replace(round_, gone=round_.gone | absent)

    def get_batches(self, phase: Phase, max_bytes: int = MAX_GATHERED_BYTES) -> Iterator[Batch]:
        """Yields the samples of each step of a local phase, copied together in pieces of at most `max_bytes`."""
        samples, kind, prepared = self.state.data.train, self.engine.augment, phase.prepared
        batches = gather_batches(samples.x, samples.y, prepared.by_sample, phase.schedule.batches, max_bytes)
        if kind != "none":
            generator = torch.Generator(self.device).manual_seed(derive_seed(self.seed, "augment", phase.round.number))
            batches = augment_batches(batches, kind, generator)
        if prepared.by_step is None:
            return batches
        return add_by_step(batches, prepared.by_step.gather(max_bytes // 2))  # files take as much again
