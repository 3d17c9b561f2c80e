"""Methods, and what they read and change: a round, the samples of a client, its state.

A method is a paper's training and inference. It has no state: a client's `State` is its model and the named arrays that
the method stores besides, so a checkpoint of those arrays is a checkpoint of the client, whatever the method.
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
    """Describes one round for one client. It makes the block at `height` and is the method's own round `number`, from 1
    on, on which learning rates and draws depend; earlier heights have numbers below 1. `beacon` is the randomness that
    peers can check and nobody chooses; `seed` is the client's own.

    `me` is the client's id. `offers` are the commitments of a block's authors, in author order; the authors in `gone`
    do not have what they offer. When a block is applied it is that block; in a local phase it is the earlier one that
    the phase reads, and `blobs` are those that the spec wants of its offers. A rehearsal has no real site: in it, noise
    that hides samples comes from `seed`, too. `sums` are those of the training samples' embeddings by the model after a
    phase's steps, if they are known already.
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
        """Returns the random numbers for one purpose in this round: the same whenever the round is run again."""
        return numpy_rng(self.seed, purpose, self.number)

    def secret_stream(self, purpose: str) -> SecretStream:
        """Returns random numbers that nobody can guess, and that never repeat; in a rehearsal they do, as all
        others."""
        if self.is_rehearsal:
            return SecretStream(derive_key(self.seed, purpose, self.number))
        return SecretStream.fresh()


@dataclass(frozen=True, slots=True)
class Trained:
    """Holds the result of a client's local phase: the arrays of each payload kind, and the weight to sign.

    `metrics`: loss (mean over the steps), first_loss and last_loss (over their first and last quarter), loss_error (the
    standard error of their difference), iterations (E), steps, seconds (of the whole phase, since what comes before the
    first step and after the last is time that mining does not have), alpha_s (seconds for each local iteration, if
    there was one), accuracy and test_loss on the matched test set before anything was exchanged, samples (those of all
    steps, each counted as often as it came), and the method's own. `release` is what the phase may have revealed about
    any sample, if samples are hidden. `went_back` says why the phase began from the client's own state before the last
    aggregate, None if it did not.
    """

    weight: int
    payloads: Mapping[str, Arrays]
    metrics: Metrics
    went_back: str | None = None
    release: Release | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Holds x_NCHW float32, or the model's precomputed features [N, E], and y_N int64 on one device. x may be in a
    file, from which batches are read."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[np.int64]) -> Samples:
        """Returns copies of some samples, or, if they are in a file, a reader of these."""
        indices = torch.from_numpy(rows).to(self.y.device)
        if isinstance(self.x, MappedSamples):
            return Samples(self.x.pick(rows), self.y.index_select(0, indices))
        return Samples(self.x.index_select(0, indices), self.y.index_select(0, indices))


@dataclass(frozen=True, eq=False)
class ClientData:
    """Holds a client's own samples, the test set with their distribution, and the one that all clients share (§8.1),
    and the `val` samples that it holds out to compare rounds by, None if it has none."""

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
        """The number of training samples of each class, int64[C] on the host."""
        return torch.bincount(self.train.y.cpu(), minlength=self.num_classes)


@dataclass(slots=True, eq=False)
class State:
    """Holds everything a method may read and change: the model in place, `arrays` by replacing them."""

    model: Model
    data: ClientData
    arrays: dict[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = {name: array.shape for name, array in sorted(self.arrays.items())}
        return f"State({type(self.model).__name__}, train={len(self.data.train)}, arrays={shapes})"


class Method(Protocol):
    """One paper's training and inference (DESIGN §7); its spec has what validators need to know of it.

    A local phase calls `prepare`, makes a step on `compute_loss` for every batch, trains what `prepare` returned as
    `then`, and calls `finish`.
    """

    @property
    def spec(self) -> MethodSpec: ...

    def init(self, state: State) -> None:
        """Prepares a state whose model has just been set to block 0's."""
        ...

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        """Returns the tensors that this round's loss needs. Rows by sample are needed only for those in
        `schedule.drawn`."""
        ...

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        """Computes the scalar that a step minimises. It depends on its arguments alone, so that it may run for many
        clients at once."""
        ...

    @property
    def takes_padding(self) -> bool:
        """Says whether the loss is the same if samples of NO_CLASS (`ml.training.criterion`) are added to the batch."""
        ...

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        """Returns the weight to sign and the payloads to send, after the last step. It leaves the model's weights
        alone."""
        ...

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float] | None:
        """Applies what a round agreed on. Names in `aggregate` have their kind in front; `blobs` are those that the
        spec wants of `round_.offers`. Returns measures besides accuracy and loss."""
        ...

    def predict(self, state: State, x: Tensor) -> Prediction:
        """Classifies x_NCHW, or the features computed from it; the model is in eval mode and no gradient is kept."""
        ...

    def score_classes(self, state: State, x: Tensor, rows_N: Tensor | None = None) -> ClassScores:
        """Returns the scores of classes, of which an answer is the largest; called as `predict` is. If x are training
        samples of the client's own, `rows_N` are their places among them, so that no sample helps to answer itself.
        Raises MlError if the method has no such scores."""
        ...

    def represent(self, state: State, x: Tensor) -> Tensor:
        """Returns the vectors [N, D] that are compared with prototypes, if there are any; called as `predict` is."""
        ...

    def list_prototypes(self, state: State) -> PrototypeRows | None:
        """Returns the prototypes of the last round, None if there are none."""
        ...
