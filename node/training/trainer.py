"""Training as the daemon sees it.

A trainer is one client of `ml` behind two calls that move it, `train` and `apply`, and others that only ask, as
`predict` and `score` do. `node.training.worker` runs it in a process of its own.
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
    """The worker went away in the middle of this call. A new one is being started: ask again."""


class WorkerFailed(NodeError):
    """No worker can be kept alive here, or it refused what it was given; carries the last lines it wrote."""


class TrainingAbandoned(NodeError):
    """The training was broken off because its round is over. What it had learned stays in the client's own state."""


class TrainingFailed(WorkerFailed):
    """The method cannot do what it was asked, as when a loss diverges, or a file of the exchange cannot be read or
    written. Its state is as before, or as after a whole local phase whose result found no room; the worker is alive."""


class AggregateSpoiled(TrainingFailed):
    """The aggregate leaves the client without a finite loss."""


class AnswerRefused(NodeError):
    """The client can say nothing of what it is asked about, or not any more. Its state is as before, the worker
    alive."""


@dataclass(frozen=True, slots=True)
class RunTask:
    """A run as a trainer is told of it; its `initial_model` is held here.

    `goes_on_after` is the last round of the run before, if this one continues that with the same method and model, so
    that a client's own state goes on too; None where all begin from the initial model. `own` is the round whose own
    models sites may lend in this run, None where they may lend none; this one `lends` its own.
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
    """A trainer's word about itself when it is ready.

    `model_bytes` is what sending the whole model would cost, `precision` what forward passes in training are computed
    in. The state it starts from has `checkpoint_round` as the round of the last aggregate applied (None: no
    checkpoint, the state before the first round) and `trained_round` as that of the last training in it (0: none).
    `data_change` says how the site's data differ from those trained on before, None where they do not.
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
    """A round's local result: the encoded arrays of each payload kind, and their weight.

    What is too large to pass through memory lies in `files`, by kind, each on the store's filesystem and whoever
    receives it to keep or to delete. `went_back` says why training began from the client's own model before the last
    aggregate, None where it did not. `data_change` is news of the site's data, None where there is none.
    """

    weight: int
    payloads: Mapping[str, bytes]
    metrics: Metrics
    files: Mapping[str, Path] = field(default_factory=dict)
    went_back: str | None = None
    data_change: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a client's answers to its own test samples show, None where it has none; and what those of a model show that
    was trained without the others, None where there is none. `before` are the measures before the exchange, of the
    model that the round's training had left, where it has trained for it; `missing` are the classes of which the client
    has no training samples. `curves` are those of `describe_curves`, `privacy` is what the site has told of its samples
    (`PrivacySpent` of admin.proto), None where the run does not hide them."""

    measures: AnyMeasures | None = None
    alone: TrainedAlone | None = None
    curves: Mapping[str, Any] | None = None
    privacy: Mapping[str, Any] | None = None
    before: AnyMeasures | None = None
    missing: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class OwnAnswers:
    """The answers to the own test samples, for `decode_answers`, of a client that has taken in this round of a run, or
    passed it over; None where there are none, or very many."""

    run: int
    round: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Predicted:
    """A client's answer about samples: the encoded arrays of `ml.clients.inference`, and the run and the round of the
    last aggregate in the model that gave it (0: none yet). Where it was asked for and there is such training, how far
    training alone is, and if it has one that model's answer, and that of both mixed."""

    answer: bytes
    applied_round: int
    run: int = 1
    trained_alone: TrainedAlone | None = None
    alone: bytes | None = None
    mixed: bytes | None = None


class Trainer(Protocol):
    """Trains one client, in one run at a time. `predict` and `score` are called at any time, by anyone, all else one at
    a time. `last_death` is why its worker died, until another is ready."""

    last_death: str | None

    async def start(self, task: RunTask, /) -> TrainerInfo:
        """Gets ready for a run, and lets go of the one before it. Raises WorkerFailed."""
        ...

    async def warm_up(self) -> None:
        """Has ready what every run needs, for the one that begins next. Raises WorkerFailed."""
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
        """One local phase, of `num_iterations` in place of the method's own number. `shared` is what it reads of an
        earlier block.

        Cancelling stops it after the current step, with the state as it was before. Of a long one `on_progress` hears
        now and then, and nothing any more once the call is over. Raises WorkerDied, WorkerFailed, TrainingFailed, and
        TrainingAbandoned after `abandon`.
        """
        ...

    def abandon(self) -> bool:
        """Breaks the training under way off after the current step and keeps what it has learned (DESIGN §3). Whether
        there is one that hears of it; if not, cancelling is what ends it."""
        ...

    async def apply(
        self,
        round_number: int,
        aggregate: bytes | None,
        /,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Metrics:
        """Takes in a round's aggregate (None where the method has none) and what was taken of single peers, and
        evaluates, also by the val samples, where the site has some (`ValMeasures`). Before it returns, `on_refused`
        hears of each peer whose model would have harmed the client. Raises like `train`, and AggregateSpoiled; then
        the client still stands before that round."""
        ...

    async def pass_over(self, round_number: int, /) -> Metrics:
        """Leaves out a round's aggregate, and evaluates: the client's own model is what training goes on from. An
        aggregate that was taken in already is undone. Raises WorkerDied and WorkerFailed."""
        ...

    async def measure(self) -> Measured:
        """All that the client's answers to its own test samples showed when it last took in a round, or passed one
        over; nothing where this trainer has not lived through that. Raises as `predict`."""
        ...

    async def list_answers(self) -> OwnAnswers:
        """The answers that `measure` tells of, and waits as `predict`. Raises as that."""
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
        """Classifies the array `x` of these canonical bytes, if asked by the model trained `alone` too, and by both
        mixed, and leaves the client as it is. With `kappa` the answer leans to the client's own prior
        (`ml.training.prior`), and `calibrated` its probabilities are by the client's val samples
        (`ml.training.temperature`). `kept` asks the client as it was after that round.

        It waits for the end of the call under way, and holds the next one up by no more than itself: of several
        predictions, `train` or `apply` waits for one. Raises AnswerRefused, WorkerDied and WorkerFailed.
        """
        ...

    async def score(self, round_number: int, aggregates: Sequence[bytes], /) -> Sequence[float]:
        """The loss on the own test samples that each of some aggregates of a round would leave the client with, as it
        stands: it takes over none of them. It may be no finite number.

        It waits for whatever is under way, and nothing need wait for it. Raises as `predict`.
        """
        ...

    async def tell_of(self, aggregate: bytes, min_samples: int, /) -> bytes:
        """The payload of what the own test samples show of the model in an aggregate, which is not taken over; it tells
        nothing of fewer than `min_samples`. Raises as `predict`."""
        ...

    async def close(self) -> None: ...


# `ml.clients.answering`: of samples, of whether to stop, at what kappa, and whether calibrated
Answer = Callable[[Samples, Callable[[], bool], float | None, bool], Answered]


def get_info(
    client: Client,
    device: str,
    precision: str = "fp32",
    resumed: Checkpoint | None = None,
    data_change: str | None = None,
) -> TrainerInfo:
    """The info of a trainer with this client."""
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
    """Lets a client train for a round, with the hooks that `Client.train` has. Raises MlError and FileUnusable."""
    return client.train(round_number, beacon, num_iterations=num_iterations, **shared.decode(), **hooks)


def apply_to(
    client: Client, round_number: int, aggregate: bytes | None, exchange: Exchange, on_refused: OnRefused
) -> dict[str, float]:
    """Lets a client take over a round, and says what it measured. Raises MlError, Spoiled among them, and
    FileUnusable."""
    arrays, beacon = None if aggregate is None else decode_arrays(aggregate, len(aggregate)), exchange.beacon
    return dict(client.apply(round_number, arrays, beacon=beacon, on_refused=on_refused, **exchange.decode()))


def score_with(
    client: Client, round_number: int, aggregates: Iterable[bytes], should_stop: Callable[[], bool] = lambda: False
) -> list[float]:
    """The losses that aggregates would leave a client with, one decoded at a time. Raises MlError."""
    decoded = (decode_arrays(data, len(data)) for data in aggregates)
    return [*client.score(round_number, decoded, should_stop=should_stop)]


def tell_with(client: Client, aggregate: bytes, min_samples: int) -> bytes:
    """The encoding of what a client tells of the model in an aggregate. Raises MlError."""
    return encode_arrays(client.tell_of(decode_arrays(aggregate, len(aggregate)), min_samples))
