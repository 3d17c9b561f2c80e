"""Methods, and what they read and change: a round, the samples of a client, its state.

A method is a paper's training and inference. It keeps nothing: a client's `State` is its model and the named arrays
the method remembers besides, so a checkpoint of those arrays is a checkpoint of the client, whatever the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ml.accountant import Release
from ml.data.mapped_samples import MappedSamples
from ml.methods.common.prototypes import ClassSums, PrototypeRows
from ml.models.base import Model
from ml.payload import Array, Arrays
from ml.secret_stream import SecretStream
from ml.seeding import derive_key, numpy_rng
from ml.specs import MethodSpec, Offer
from ml.training.loop import Batch, Prepared, Schedule, Tensors
from ml.training.metrics import Prediction
from ml.training.prior import ClassScores

Metrics = dict[str, float]
Blobs = Mapping[bytes, Arrays]  # on-demand payloads, by digest


@dataclass(frozen=True, slots=True)
class Round:
    """One round for one client. It makes the block at `height` and is the method's own round `number`, from 1 on, which
    learning rates and draws go by; heights before that have numbers below. `beacon` is the randomness
    that peers can check and nobody chooses; `seed` is the client's own.

    `me` is the client's id, `offers` are what the authors of a block have committed to, in author order, and those in
    `gone` do not have theirs. When a block is applied that is the block; in a local phase it is the earlier one that
    the phase reads, and `blobs` are what the spec says is wanted of its offers. A rehearsal is no site's: in it noise
    that hides samples comes from `seed`, too. `sums` are those of the training samples' embeddings by the model that a
    phase's steps have left, where they are known already.
    """

    height: int
    number: int
    beacon: bytes
    seed: int
    me: bytes = b""
    offers: tuple[Offer, ...] = ()
    gone: frozenset[bytes] = frozenset()
    blobs: Blobs = field(default_factory=dict)
    is_rehearsal: bool = False
    sums: ClassSums | None = None

    def rng(self, purpose: str) -> Generator:
        """The draws for one purpose in this round: the same whenever the round is run again."""
        return numpy_rng(self.seed, purpose, self.number)

    def secret_stream(self, purpose: str) -> SecretStream:
        """Draws that nobody can guess, and that are never the same again; in a rehearsal they are, as all others."""
        if self.is_rehearsal:
            return SecretStream(derive_key(self.seed, purpose, self.number))
        return SecretStream.fresh()


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a client's local phase: the arrays of each payload kind, at the weight it will sign.

    `metrics`: loss (mean over the steps), first_loss and last_loss (over their first and last quarter), loss_error (the
    standard error of their difference), iterations (E), steps, seconds (of the whole phase, since what comes before the
    first step and after the last is time that mining does not have), alpha_s (those for each local iteration, if there
    was one), and accuracy and test_loss on the matched test set before anything was exchanged, samples (those that the
    steps went over, each as often as it came);
    and what the method says besides. `release` is what the phase may have told of any sample, where samples are hidden.
    `went_back` says why the phase began from the client's own state before the last
    aggregate, None where it did not.
    """

    weight: int
    payloads: Mapping[str, Arrays]
    metrics: Metrics
    went_back: str | None = None
    release: Release | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """x_NCHW float32, or what the model precomputes of it [N, E], and y_N int64 on one device. x may lie in a file,
    from where batches are read."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[np.int64]) -> Samples:
        """Copies of some of them, or where they lie in a file what reads these."""
        indices = torch.from_numpy(rows).to(self.y.device)
        if isinstance(self.x, MappedSamples):
            return Samples(self.x.pick(rows), self.y.index_select(0, indices))
        return Samples(self.x.index_select(0, indices), self.y.index_select(0, indices))


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's own samples, the test set that follows their distribution, and the one that is everyone's (§8.1);
    and the `val` samples that it holds out to compare rounds by, None where it has none."""

    train: Samples
    matched: Samples
    everyone: Samples
    num_classes: int
    val: Samples | None = None

    @property
    def device(self) -> torch.device:
        return self.train.x.device

    @cached_property
    def classes(self) -> Tensor:
        """The classes of the client's training samples, sorted."""
        classes: Tensor = torch.unique(self.train.y)
        return classes

    @cached_property
    def counts(self) -> Tensor:
        """How many training samples there are of each class, int64[C] on the host."""
        return torch.bincount(self.train.y.cpu(), minlength=self.num_classes)


@dataclass(slots=True, eq=False)
class State:
    """Everything a method may read and change: the model in place, `arrays` by replacing them."""

    model: Model
    data: ClientData
    arrays: dict[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = {name: array.shape for name, array in sorted(self.arrays.items())}
        return f"State({type(self.model).__name__}, train={len(self.data.train)}, arrays={shapes})"


class Method(Protocol):
    """One paper's training and inference (DESIGN §7); its spec says what validators need to know of it.

    A local phase is `prepare`, then a step on `compute_loss` for every batch and what `prepare` says is to be done
    `then`, then `finish`.
    """

    @property
    def spec(self) -> MethodSpec: ...

    def init(self, state: State) -> None:
        """Prepare a state whose model has just been set to block 0's."""
        ...

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        """The tensors that this round's loss needs; of the rows by sample only those in `schedule.drawn` count."""
        ...

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        """The scalar that a step goes down. Of its arguments alone, so that it may run for many clients at once."""
        ...

    @property
    def takes_padding(self) -> bool:
        """Whether that is the same where samples of NO_CLASS (`ml.training.criterion`) are added to the batch."""
        ...

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        """After the last step, whose weights stay: the weight to sign and the payloads to send."""
        ...

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float] | None:
        """Take over what a round agreed on. Names in `aggregate` have their kind in front; `blobs` are what the spec
        says is wanted of `round_.offers`. What is returned is measured besides accuracy and loss."""
        ...

    def predict(self, state: State, x: Tensor) -> Prediction:
        """Classify x_NCHW, or what is precomputed of it; the model is in eval mode and no gradient is kept."""
        ...

    def score_classes(self, state: State, x: Tensor, rows_N: Tensor | None = None) -> ClassScores:
        """What an answer is the largest of, called as `predict` is. Where x are training samples of the client's own,
        `rows_N` are their places among them: none is answered by itself. Raises MlError where there is no such thing.
        """
        ...

    def represent(self, state: State, x: Tensor) -> Tensor:
        """The vectors [N, D] that prototypes are compared with, where there are any; called as `predict` is."""
        ...

    def list_prototypes(self, state: State) -> PrototypeRows | None:
        """The prototypes that came of the last round, None where there are none."""
        ...
