"""The samples of one prediction: the limits on their number, and their bytes, at both ends of the admin socket.

A prediction delays a node's next round for as long as it takes. So a request is limited to about as many samples as a
node classifies to measure itself, and a caller that has more sends several requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from ml.data.base import Samples, Shape
from ml.data.fit_input import fit
from ml.data.inference_files import InferenceFile, validate_samples
from ml.errors import DataError, PayloadError
from ml.payload import decode_arrays, encode_arrays
from node.errors import InvalidRequest

NAME = "x"  # the one array in a request
MAX_BYTES = 16 << 20
DEFAULT_TOP = 3
_HEADER_BYTES = 1 << 10  # more than one array's header takes
_MAX_SAMPLES = 2048
_MAX_WORK_BYTES = 64 << 20  # what the samples become: the model's input, or a number for each class
_MAX_RANKED = 1 << 15  # classes in one reply: keeps it below gRPC's 4 MiB


def get_top(top: int, num_classes: int) -> int:
    """Returns the number of classes shown for each sample; a `top` of 0 asks for the usual number."""
    return min(top or DEFAULT_TOP, num_classes)


def get_max_samples(shape: Shape, num_classes: int, top: int, num_models: int = 1) -> int:
    """Returns the most samples that a request may have, for models that take `shape`."""
    by_work = _MAX_WORK_BYTES // (4 * max(prod(shape), num_classes))
    by_reply = _MAX_RANKED // (num_models * get_top(top, num_classes))
    return max(1, min(_MAX_SAMPLES, by_work, by_reply))


def get_room_bytes() -> int:
    """Returns the most bytes of samples that a request may have."""
    return MAX_BYTES - _HEADER_BYTES


def count_models(alone: bool) -> int:
    """Returns how many models' answers a reply has: with `alone` also those of the model trained alone, and of both
    mixed."""
    return 3 if alone else 1


# ---- the node's end


def decode_samples(data: bytes, shape: Shape, max_samples: int, takes_empty: bool = False) -> Samples:
    """Decodes at most `max_samples` samples that fit `shape`. Raises InvalidRequest."""
    try:
        arrays = decode_arrays(data, MAX_BYTES)
        if arrays.keys() != {NAME}:
            raise InvalidRequest(f"samples: expected one array {NAME}, got {', '.join(arrays)[:80] or 'none'}")
        x: Samples = arrays[NAME]
        if len(x.shape) == 4 and len(x) > max_samples:
            raise InvalidRequest(f"samples: expected at most {max_samples} in one request, got {len(x)}")
        validate_samples(x, shape, takes_empty=takes_empty)
    except PayloadError as error:
        raise InvalidRequest(f"samples: {error}") from error
    except DataError as error:
        raise InvalidRequest(str(error)) from error
    return x


# ---- the caller's end


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The samples `start` to `stop` of a file."""

    file: InferenceFile
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def x(self) -> Samples:
        return self.file.x[self.start : self.stop]


Batch = list[Piece]


def make_batches(files: Iterable[InferenceFile], shape: Shape, max_samples: int) -> Iterator[Batch]:
    """Yields the samples in batches, in order, each for one request: of one type and shape, and not too many.

    An image too large to be sent is resized to the model's input here, as the node would do.
    """
    batch: Batch = []
    for piece in _cut(files, shape, max_samples):
        if batch and not _goes_with(batch, piece, max_samples):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def encode_batch(batch: Batch) -> bytes:
    """Encodes a batch as the `samples` of a request."""
    return encode_arrays({NAME: np.concatenate([piece.x for piece in batch])})


def _cut(files: Iterable[InferenceFile], shape: Shape, max_samples: int) -> Iterator[Piece]:
    for file in files:
        sent = file
        if file.x[0].nbytes > get_room_bytes():
            sent = InferenceFile(file.path, fit(file.x, shape), file.rows, file.labels)
        step = min(max_samples, max(1, _get_room(sent)))
        for start in range(0, len(sent), step):
            yield Piece(sent, start, min(start + step, len(sent)))


def _get_room(file: InferenceFile) -> int:
    """Returns how many samples of this size fit into a request."""
    sample_bytes: int = file.x[0].nbytes
    return get_room_bytes() // sample_bytes


def _goes_with(batch: Batch, piece: Piece, max_samples: int) -> bool:
    first, count = batch[0].file, sum(map(len, batch)) + len(piece)
    is_alike = (first.x.dtype, first.x.shape[1:]) == (piece.file.x.dtype, piece.file.x.shape[1:])
    return is_alike and count <= min(max_samples, _get_room(piece.file))
