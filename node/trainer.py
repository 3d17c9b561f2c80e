"""What training looks like from the daemon, and the trainer that needs no second process.

A trainer is one client of `ml` behind two calls, `train` and `apply`. `node.worker` runs it in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ml.errors import MlError
from ml.payload import Arrays, decode_arrays, encode_arrays
from ml.specs import MethodSpec
from node.checkpoint import Checkpoint
from node.errors import NodeError

Metrics = Mapping[str, float]


class WorkerDied(NodeError):
    """The worker went away in the middle of this call. A new one is being started: ask again."""


class WorkerFailed(NodeError):
    """No worker can be kept alive here, or it refused what it was given; carries the last lines it wrote."""


class TrainingFailed(WorkerFailed):
    """The method cannot do what it was asked, as when a loss diverges. Its state is as before, the worker alive."""


@dataclass(frozen=True, slots=True)
class TrainerInfo:
    """What a trainer says of itself when it is ready.

    `model_bytes` is what sending the whole model would cost. The state it starts from has `checkpoint_height` as the
    height of the last aggregate applied (None: no checkpoint, the state before the first round) and `trained_height`
    as that of the last training in it (0: none).
    """

    num_train: int
    num_test: int
    device: str
    parameters: int
    model_bytes: int
    checkpoint_height: int | None = None
    trained_height: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """A round's local result: the encoded arrays of each payload kind, and their weight."""

    weight: int
    payloads: Mapping[str, bytes]
    metrics: Metrics


class Trainer(Protocol):
    """Trains one client. Calls are made one at a time."""

    async def start(self) -> TrainerInfo:
        """Gets ready. Raises WorkerFailed."""
        ...

    async def train(self, height: int, beacon: bytes) -> Trained:
        """One local phase; cancelling stops it after the current step, with the state as it was before.

        Raises WorkerDied, WorkerFailed and TrainingFailed.
        """
        ...

    async def apply(self, height: int, aggregate: bytes | None) -> Metrics:
        """Takes in a height's aggregate (None where the method has none) and evaluates. Raises like `train`."""
        ...

    async def close(self) -> None: ...


class LocalResult(Protocol):
    """What `Client.train` returns."""

    @property
    def weight(self) -> int: ...
    @property
    def payloads(self) -> Mapping[str, Arrays]: ...
    @property
    def metrics(self) -> Metrics: ...


class Client(Protocol):
    """The part of `ml.method.Client` a trainer needs; named here since only the worker may import torch."""

    @property
    def spec(self) -> MethodSpec: ...
    @property
    def num_train(self) -> int: ...
    @property
    def num_test(self) -> int: ...
    def train(self, height: int, beacon: bytes, *, should_stop: Callable[[], bool] | None = None) -> LocalResult: ...
    def apply(self, height: int, aggregate: Arrays | None) -> Metrics: ...
    def evaluate(self) -> Metrics: ...
    def state_arrays(self) -> Arrays: ...
    def load_state_arrays(self, arrays: Arrays) -> None: ...


def get_info(client: Client, device: str, resumed: Checkpoint | None = None) -> TrainerInfo:
    """What a trainer with this client says of itself."""
    return TrainerInfo(
        num_train=client.num_train,
        num_test=client.num_test,
        device=device,
        parameters=client.spec.task.num_parameters,
        model_bytes=client.spec.model_bytes,
        checkpoint_height=None if resumed is None else resumed.applied_height,
        trained_height=0 if resumed is None else resumed.height,
    )


class InlineTrainer:
    """Trains in this process and thread, holding up the event loop: for tests, also under virtual time."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start(self) -> TrainerInfo:
        return get_info(self._client, "cpu")

    async def train(self, height: int, beacon: bytes) -> Trained:
        try:
            result = self._client.train(height, beacon)
        except MlError as error:
            raise TrainingFailed(f"height {height}: {error}") from error
        payloads = {kind: encode_arrays(arrays) for kind, arrays in result.payloads.items()}
        return Trained(result.weight, payloads, dict(result.metrics))

    async def apply(self, height: int, aggregate: bytes | None) -> Metrics:
        try:
            arrays = None if aggregate is None else decode_arrays(aggregate, len(aggregate))
            return dict(self._client.apply(height, arrays))
        except MlError as error:
            raise TrainingFailed(f"height {height}: {error}") from error

    async def close(self) -> None:
        """Holds nothing."""
