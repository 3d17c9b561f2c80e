"""What a method is, and the client that runs one: the only object that the simulation and a node's worker both use.

A method is a paper's training and inference. It keeps nothing: a client's `State` is its model and the named arrays
the method remembers besides, so a checkpoint of those arrays is a checkpoint of the client, whatever the method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import torch
from numpy.random import Generator
from torch import Tensor

from ml.errors import Stopped
from ml.metrics import Prediction, evaluate
from ml.models.base import Model, dump_parameters, load_parameters
from ml.payload import Array, Arrays
from ml.seeding import derive_seed, numpy_rng
from ml.specs import MethodSpec, add_kind, get_kind
from ml.training import ShouldStop

__all__ = ["Method", "Round", "Trained", "State", "Samples", "ClientData", "Client", "Stopped"]

Metrics = dict[str, float]
Blobs = Mapping[bytes, Arrays]  # on-demand payloads, by digest
TestSet = Literal["matched", "global"]


@dataclass(frozen=True, slots=True)
class Round:
    """One round for one client. `beacon` is the parent block's id, the randomness that peers can check; `seed` is the
    client's own."""

    height: int
    beacon: bytes
    seed: int

    def rng(self, purpose: str) -> Generator:
        """The draws for one purpose in this round: the same whenever the round is run again."""
        return numpy_rng(self.seed, purpose, self.height)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a client has to say after a local phase: the arrays of each payload kind, at the weight it will sign.

    `metrics`: loss (mean over the steps), steps, seconds, alpha_s (seconds of one local iteration), and accuracy on
    the matched test set before anything was exchanged.
    """

    weight: int
    payloads: Mapping[str, Arrays]
    metrics: Metrics


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """x_NCHW float32 and y_N int64 on one device."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's own samples, the test set that follows their distribution, and the one that is everyone's (§8.1)."""

    train: Samples
    matched: Samples
    everyone: Samples
    num_classes: int

    @property
    def device(self) -> torch.device:
        return self.train.x.device

    @cached_property
    def classes(self) -> Tensor:
        """The classes of the client's training samples, sorted."""
        classes: Tensor = torch.unique(self.train.y)
        return classes


@dataclass(slots=True, eq=False)
class State:
    """Everything a method may read and change: the model in place, `arrays` by replacing them."""

    model: Model
    data: ClientData
    arrays: dict[str, Array] = field(default_factory=dict)


class Method(Protocol):
    """One paper's training and inference (DESIGN §7); its spec says what validators need to know of it."""

    @property
    def spec(self) -> MethodSpec: ...

    def init(self, state: State) -> None:
        """Prepare a state whose model has just been set to block 0's."""
        ...

    def local_update(self, state: State, round_: Round, should_stop: ShouldStop | None) -> Trained:
        """Train on the client's samples. Raises Stopped, and leaves a half-trained state to its caller then."""
        ...

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        """Take over what a round agreed on. Names in `aggregate` have their kind in front."""
        ...

    def predict(self, state: State, x: Tensor) -> Prediction:
        """Classify x_NCHW; the model is in eval mode and no gradient is kept."""
        ...


class Client:
    """One participant: a method at work on a model and data of its own.

    Each round draws from seeds of its own height, so a client restored from `state_arrays` goes on exactly as the one
    they came from. `initial` is block 0's aggregate, the model under "model/".
    """

    def __init__(self, method: Method, model: Model, data: ClientData, *, seed: int, initial: Arrays) -> None:
        self.method = method
        self.seed = seed
        self._state = State(model.to(data.device), data)
        self._load_model(initial)
        method.init(self._state)

    @property
    def spec(self) -> MethodSpec:
        return self.method.spec

    @property
    def device(self) -> torch.device:
        return self._state.data.device

    @property
    def num_train(self) -> int:
        return len(self._state.data.train)

    @property
    def num_test(self) -> int:
        """Samples of the matched test set."""
        return len(self._state.data.matched)

    def train(self, height: int, beacon: bytes, *, should_stop: ShouldStop | None = None) -> Trained:
        """One local phase, and what to send of it. Raises Stopped and Diverged, and then has changed nothing."""
        with self._undone_on_failure(), self._seeded(height):
            trained = self.method.local_update(self._state, Round(height, beacon, self.seed), should_stop)
            accuracy = self.evaluate()["accuracy"]
        return Trained(trained.weight, trained.payloads, {**trained.metrics, "accuracy": accuracy})

    def apply(
        self, height: int, aggregate: Arrays | None, *, beacon: bytes = b"", blobs: Blobs | None = None
    ) -> Metrics:
        """Take over a finalised round and measure (`evaluate`) what came of it.

        That is where all methods are measured: the parameter-sharing ones after aggregation, and the personalised
        ones after local training, since applying leaves their weights alone. On failure nothing has changed.
        """
        with self._undone_on_failure(), self._seeded(height):
            self.method.apply(self._state, Round(height, beacon, self.seed), aggregate, blobs or {})
            return self.evaluate()

    def evaluate(self, which: TestSet = "matched") -> Metrics:
        """`accuracy` in 0..1 and `loss` on the matched or the global test set."""
        samples = self._state.data.matched if which == "matched" else self._state.data.everyone
        return evaluate(self.predict, samples.x, samples.y)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Classify x_NCHW as the client stands."""
        self._state.model.eval()
        return self.method.predict(self._state, x)

    def state_arrays(self) -> dict[str, Array]:
        """A copy of everything that training has changed: the model under "model/", the method's under "state/"."""
        return add_kind("model", dump_parameters(self._state.model)) | add_kind("state", self._state.arrays)

    def load_state_arrays(self, arrays: Arrays) -> None:
        """Become the client they came from. Raises ValueError, changing nothing, if they are another model's."""
        self._load_model(arrays)
        self._state.arrays = {name: array.copy() for name, array in (get_kind(arrays, "state") or {}).items()}

    def _load_model(self, arrays: Arrays) -> None:
        load_parameters(self._state.model, get_kind(arrays, "model") or {})

    @contextmanager
    def _undone_on_failure(self) -> Iterator[None]:
        before = self.state_arrays()
        try:
            yield
        except BaseException:
            self.load_state_arrays(before)
            raise

    @contextmanager
    def _seeded(self, height: int) -> Iterator[None]:
        """Dropout draws from torch's own generator: seeded for this round, and given back as it was."""
        device = self._state.data.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(derive_seed(self.seed, "dropout", height))
            yield
