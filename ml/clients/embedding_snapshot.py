"""The snapshot of a client's answers and embeddings: those of some test samples, with the prototypes, saved for a plot.
It shows which classes the model can tell apart.

Legend: N samples, C classes, D length of a representation, n prototypes. The embeddings are the vectors that the method
compares with its prototypes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ml.clients.client import Client
from ml.errors import PayloadError, SpecError
from ml.payload import Array, ArraySchema, ArraySpec, decode_arrays, encode_arrays, validate_arrays
from ml.seeding import numpy_rng
from ml.tasks import CLASSIFICATION
from ml.training.loop import Diverged

MAX_SAMPLES = 600
_MAX_CLASSES = 1 << 16
_MAX_DIM = 1 << 16
_MAX_PROTOTYPES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Holds embeddings float32[N, D] with labels and predicted int64[N], and the classifier's probabilities float32[N,
    C]; prototypes float32[n, D] with classes int64[n].

    `authors` int64[n] are places among the clients, None if prototypes belong to no single client. n is 0 if the client
    holds no prototypes.
    """

    embeddings: Array
    labels: Array
    predicted: Array
    probabilities: Array
    prototypes: Array
    classes: Array
    authors: Array | None = None

    def count_nearest(self) -> int | None:
        """Counts the samples whose nearest prototype is of their own class, by Euclidean distance; None without
        prototypes."""
        if not len(self.prototypes):
            return None
        z_ND, p_nD = self.embeddings.astype(np.float64), self.prototypes.astype(np.float64)
        squared_Nn = np.square(p_nD).sum(1) - 2 * z_ND @ p_nD.T  # without |z|^2, which is the same for all prototypes
        return int((self.classes[squared_Nn.argmin(1)] == self.labels).sum())

    def encode(self) -> bytes:
        """Returns the canonical encoding of its arrays."""
        arrays = {name: getattr(self, name) for name in _SCHEMA.arrays}
        return encode_arrays(arrays if self.authors is None else {**arrays, "authors": self.authors})

    @classmethod
    def decode(cls, data: bytes) -> Snapshot:
        """Decodes what `encode` returned. Raises PayloadError for anything else."""
        arrays = decode_arrays(data, len(data))
        validate_arrays(arrays, _AUTHORED if "authors" in arrays else _SCHEMA)
        for name in arrays:
            if arrays[name].dtype.kind == "i" and arrays[name].size and arrays[name].min() < 0:
                raise PayloadError(f"array {name!r}: expected numbers from 0, got {arrays[name].min()}")
        return cls(**arrays)


_PLAIN = {
    "embeddings": ArraySpec("float32", ("N", "D")),
    "labels": ArraySpec("int64", ("N",)),
    "predicted": ArraySpec("int64", ("N",)),
    "probabilities": ArraySpec("float32", ("N", "C")),
    "prototypes": ArraySpec("float32", ("n", "D")),
    "classes": ArraySpec("int64", ("n",)),
}
_BOUNDS = {"N": (1, MAX_SAMPLES), "C": (1, _MAX_CLASSES), "D": (1, _MAX_DIM), "n": (0, _MAX_PROTOTYPES)}
_SCHEMA = ArraySchema(_PLAIN, _BOUNDS)
_AUTHORED = ArraySchema({**_PLAIN, "authors": ArraySpec("int64", ("n",))}, _BOUNDS)


@torch.no_grad()
def take_snapshot(client: Client, seed: int) -> Snapshot:
    """Takes the snapshot of `client`, on a sample of the global test set that `seed` draws: the same for every method.

    Raises Diverged if the model's answers are not finite, and SpecError if samples have no classes.
    """
    if client.spec.task.kind != CLASSIFICATION:
        raise SpecError("task", f"expected classification for an embedding map, got {client.spec.task.kind}")
    method, state = client.method, client.state
    everyone = state.data.everyone
    samples = everyone.take(choose_samples(everyone.y.cpu().numpy(), seed))
    predicted = client.predict(samples.x)  # which puts the model into eval mode
    probabilities_NC = predicted.logits.double().softmax(1).float()
    embeddings_ND = method.represent(state, samples.x).float()
    if not bool(torch.isfinite(embeddings_ND).all() and torch.isfinite(probabilities_NC).all()):
        raise Diverged("the model after the last round gives no numbers; expected finite embeddings")
    held = method.list_prototypes(state)
    dim = embeddings_ND.shape[1]
    return Snapshot(
        embeddings=embeddings_ND.cpu().numpy(),
        labels=samples.y.cpu().numpy(),
        predicted=predicted.labels.cpu().numpy(),
        probabilities=probabilities_NC.cpu().numpy(),
        prototypes=np.zeros((0, dim), np.float32) if held is None else held.prototypes.astype(np.float32),
        classes=np.zeros(0, np.int64) if held is None else held.classes.astype(np.int64),
        authors=None if held is None or held.authors is None else held.authors.astype(np.int64),
    )


def choose_samples(labels_N: Array, seed: int, max_samples: int = MAX_SAMPLES) -> Array:
    """Returns the rows of at most `max_samples` samples, ascending, spread as evenly over the classes as their sizes
    allow."""
    rng = numpy_rng(seed, "snapshot")
    shuffled = rng.permutation(len(labels_N))
    rank_N = np.empty(len(labels_N), np.int64)  # of each sample within its class
    for label in np.unique(labels_N):
        own = shuffled[labels_N[shuffled] == label]
        rank_N[own] = np.arange(len(own))
    return np.sort(shuffled[np.argsort(rank_N[shuffled], kind="stable")][:max_samples])
