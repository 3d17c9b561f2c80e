"""Training as the daemon sees it.

A trainer is one client of `ml` behind two calls that move it, `train` and `apply`, and others that only ask, such as
`predict` and `score`. `node.training.worker` runs it in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from chain.calendar import Place
from chain.rules import Limits
from chain.run import Run
from ml.data.base import Samples
from ml.guard import OnRefused
from ml.measures.alone import Answered, TrainedAlone
from ml.measures.kinds import AnyMeasures
from ml.payload import decode_arrays, encode_arrays
from node.errors import NodeError
from node.training.checkpoint import Checkpoint
from node.training.exchange import Exchange
from node.training.progress import OnProgress

if TYPE_CHECKING:
    from ml.clients.client import Client  # whose torch only the worker may load
    from ml.methods.base import Trained as LocalResult

Metrics = Mapping[str, float]

NOTHING_TAKEN = Exchange()


class WorkerDied(NodeError):
    """The worker died during this call. A new one is being started: repeat the call."""


class WorkerFailed(NodeError):
    """No worker can be kept alive here, or it refused its input; carries the last lines it wrote."""


class TrainingAbandoned(NodeError):
    """The training was ended early because its round is over. What it had learned stays in the client's own state."""


class TrainingFailed(WorkerFailed):
    """The method cannot do this, as when a loss diverges, or a file of the exchange cannot be read or written. The
    client's state is as before, or as after a whole local phase whose result found no room on the disk; the worker is
    alive."""


class AggregateSpoiled(TrainingFailed):
    """The aggregate leaves the client without a finite loss."""


class AnswerRefused(NodeError):
    """The client cannot answer this request, or no longer. Its state is as before, and the worker is alive."""


@dataclass(frozen=True, slots=True)
class RunTask:
    """Describes a run to a trainer; its `initial_model` is held here.

    `goes_on_after` is the last round of the run before, if this run continues that one with the same method and model,
    so that a client's own state goes on too; None where all begin from the initial model. `own` is the round whose own
    models sites may lend in this run, None where they may lend none; this site `lends` its own.
    """

    run: Run
    limits: Limits
    num_members: int
    initial_model: Path | bytes
    goes_on_after: int | None = None
    own: Place | None = None
    lends: bool = False


@dataclass(frozen=True, slots=True)
class TrainerInfo:
    """Describes a trainer that is ready.

    `model_bytes` is the size of the whole model when sent, `precision` that of forward passes in training. In the state
    it starts from, `checkpoint_round` is the round of the last aggregate applied (None: no checkpoint, the state before
    the first round) and `trained_round` that of the last training (0: none). `data_change` says how the site's data
    differ from those trained on before, None where they do not.
    """

    num_train: int
    num_test: int
    device: str
    parameters: int
    model_bytes: int
    precision: str = "fp32"
    checkpoint_round: int | None = None
    trained_round: int = 0
    data_change: str | None = None
    num_val: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """Holds a round's local result: the encoded arrays of each payload kind, and their weight.

    A payload too large to pass through memory is in `files`, by kind, each on the store's filesystem; the receiver
    keeps or deletes it. `went_back` says why training began from the client's own model before the last aggregate, None
    where it did not. `data_change` describes a change of the site's data, None where there is none.
    """

    weight: int
    payloads: Mapping[str, bytes]
    metrics: Metrics
    files: Mapping[str, Path] = field(default_factory=dict)
    went_back: str | None = None
    data_change: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Holds the measures of a client on its own test samples, None where it has none, and those of a model trained
    without the others, None where there is none. `before` holds the measures before the exchange, of the model after
    the round's training, if it has trained for that; `missing` the classes without training samples here. `curves` are
    those of `describe_curves`. `privacy` is what the site has revealed of its samples (`PrivacySpent` of admin.proto),
    None where the run does not hide them."""

    measures: AnyMeasures | None = None
    alone: TrainedAlone | None = None
    curves: Mapping[str, Any] | None = None
    privacy: Mapping[str, Any] | None = None
    before: AnyMeasures | None = None
    missing: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class OwnAnswers:
    """Holds a client's answers to its own test samples, for `decode_answers`, after it applied this round of a run or
    passed it over; None where there are none, or more than are sent."""

    run: int
    round: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Predicted:
    """Holds a client's answer about samples: the encoded arrays of `ml.clients.inference`, and the run and the round of
    the last aggregate in its model (0: none yet). If requested and available: how far training alone is, that model's
    answer, and the answer of both mixed."""

    answer: bytes
    applied_round: int
    run: int = 1
    trained_alone: TrainedAlone | None = None
    alone: bytes | None = None
    mixed: bytes | None = None


class Trainer(Protocol):
    """Trains one client, in one run at a time. `predict` and `score` may be called at any time, all other calls one at
    a time. `last_death` says why its worker died, until another is ready."""

    last_death: str | None

    async def start(self, task: RunTask, /) -> TrainerInfo:
        """Starts a run, and ends the one before it. Raises WorkerFailed."""
        ...

    async def warm_up(self) -> None:
        """Loads what every run needs, for the one that begins next. Raises WorkerFailed."""
        ...

    async def train(
        self,
        round_number: int,
        beacon: bytes,
        /,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        """Runs one local phase, of `num_iterations` in place of the method's own number. `shared` is what it reads of
        an earlier block.

        Cancelling stops it after the current step, with the state as it was before. During a long phase `on_progress`
        is called from time to time, and never after the call is over. Raises WorkerDied, WorkerFailed, TrainingFailed,
        and TrainingAbandoned after `abandon`.
        """
        ...

    def abandon(self) -> bool:
        """Ends the training under way after the current step and keeps what it has learned (DESIGN §3). Returns whether
        there is such a training; if not, cancelling ends the call."""
        ...

    async def apply(
        self,
        round_number: int,
        aggregate: bytes | None,
        /,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Metrics:
        """Applies a round's aggregate (None where the method has none) and the blobs fetched from single peers, and
        evaluates, also on the val samples, where the site has some (`ValMeasures`). Before it returns, `on_refused` is
        called for each peer whose model would have harmed the client. Raises like `train`, and AggregateSpoiled; then
        the client is as before that round."""
        ...

    async def pass_over(self, round_number: int, /) -> Metrics:
        """Skips a round's aggregate, and evaluates: training goes on from the client's own model. An aggregate that was
        applied already is undone. Raises WorkerDied and WorkerFailed."""
        ...

    async def measure(self) -> Measured:
        """Returns the measures of the client's answers to its own test samples when it last applied a round, or passed
        one over; nothing where this trainer was not running then. Raises as `predict`."""
        ...

    async def list_answers(self) -> OwnAnswers:
        """Returns the answers that `measure` measures. Waits and raises as `predict`."""
        ...

    async def predict(
        self,
        samples: bytes,
        *,
        alone: bool = False,
        kappa: float | None = None,
        kept: int | None = None,
        calibrated: bool = False,
    ) -> Predicted:
        """Classifies the array `x` of these canonical bytes, and leaves the client as it is. With `alone` the model
        trained alone answers too, and both mixed. With `kappa` the answer leans to the client's own prior
        (`ml.training.prior`), and with `calibrated` its probabilities are calibrated on the client's val samples
        (`ml.training.temperature`). `kept` is a round whose state answers instead.

        It waits for the end of the call under way, and delays the next one by no more than itself: of several
        predictions, `train` or `apply` waits for one. Raises AnswerRefused, WorkerDied and WorkerFailed.
        """
        ...

    async def score(self, round_number: int, aggregates: Sequence[bytes], /) -> Sequence[float]:
        """Returns, for each of some aggregates of a round, the loss on the own test samples that the client would have
        after applying it. None is applied. A loss may be no finite number.

        It waits for every call under way, and no call has to wait for it. Raises as `predict`.
        """
        ...

    async def tell_of(self, aggregate: bytes, min_samples: int, /) -> bytes:
        """Returns the payload that reports how the model in an aggregate does on the own test samples, without applying
        it. It reports nothing on fewer than `min_samples`. Raises as `predict`."""
        ...

    async def close(self) -> None: ...


# `ml.clients.answering`: samples, whether to stop, kappa, and whether calibrated
Answer = Callable[[Samples, Callable[[], bool], float | None, bool], Answered]


def get_info(
    client: Client,
    device: str,
    precision: str = "fp32",
    resumed: Checkpoint | None = None,
    data_change: str | None = None,
) -> TrainerInfo:
    """Returns the info of a trainer with this client."""
    return TrainerInfo(
        num_train=client.num_train,
        num_test=client.num_test,
        num_val=client.num_val,
        device=device,
        parameters=client.spec.task.num_parameters,
        model_bytes=client.spec.model_bytes,
        precision=precision,
        checkpoint_round=None if resumed is None else resumed.applied_round,
        trained_round=0 if resumed is None else resumed.round_number,
        data_change=data_change,
    )


def train_with(
    client: Client, round_number: int, beacon: bytes, num_iterations: int | None, shared: Exchange, **hooks: Any
) -> LocalResult:
    """Has a client train for a round, with the hooks of `Client.train`. Raises MlError and FileUnusable."""
    return client.train(round_number, beacon, num_iterations=num_iterations, **shared.decode(), **hooks)


def apply_to(
    client: Client, round_number: int, aggregate: bytes | None, exchange: Exchange, on_refused: OnRefused
) -> dict[str, float]:
    """Has a client apply a round, and returns the metrics. Raises MlError, Spoiled among them, and FileUnusable."""
    arrays, beacon = None if aggregate is None else decode_arrays(aggregate, len(aggregate)), exchange.beacon
    return dict(client.apply(round_number, arrays, beacon=beacon, on_refused=on_refused, **exchange.decode()))


def score_with(
    client: Client, round_number: int, aggregates: Iterable[bytes], should_stop: Callable[[], bool] = lambda: False
) -> list[float]:
    """Returns the losses that a client would have after each aggregate, decoded one at a time. Raises MlError."""
    decoded = (decode_arrays(data, len(data)) for data in aggregates)
    return [*client.score(round_number, decoded, should_stop=should_stop)]


def tell_with(client: Client, aggregate: bytes, min_samples: int) -> bytes:
    """Returns the encoding of what a client reports about the model in an aggregate. Raises MlError."""
    return encode_arrays(client.tell_of(decode_arrays(aggregate, len(aggregate)), min_samples))
