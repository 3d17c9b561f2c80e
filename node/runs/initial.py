"""The model that a run begins from, put together where the run goes on from an aggregate that holds no whole one.

The aggregate holds only what the method shares: with FedPer the layers in common, with DFPL no model at all. A run that
continues from such an aggregate begins with the arrays in it. All others are as in the model that the run before began
with.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.run import Run
from chain.store.blob_rows import BlobSource
from ml.errors import PayloadError, SpecError
from ml.payload import Array, encode_arrays, read_arrays
from ml.specs import add_kind, get_kind
from ml.specs.architectures import initial_schema
from ml.specs.statistics import STATISTICS, get_statistics


def holds_whole_model(run: Run, blob: BlobSource) -> bool:
    """Says whether the blob has every array of the run's model in the right shape and type."""
    try:
        wanted = initial_schema(run.model, run.input["shape"], len(run.classes)).arrays
        return wanted.keys() <= _pick(run, blob).keys()
    except (PayloadError, SpecError, OSError):
        return False


def read_initial(run: Run, blobs: Sequence[BlobSource]) -> bytes:
    """Returns the encoded model that a run begins from. `blobs` are those that it and the runs before it name, newest
    first. Raises PayloadError, SpecError and OSError."""
    if not holds_whole_model(run, blobs[0]):
        return combine(run, blobs)
    return blobs[0] if isinstance(blobs[0], bytes) else blobs[0].read_bytes()


def combine(run: Run, blobs: Sequence[BlobSource]) -> bytes:
    """Returns the encoded model of a run, combined from the blobs that it and the runs before it began from, newest
    first: each array is the newest that fits the run's model. The statistics are those of the newest blob. Raises
    PayloadError, SpecError and OSError."""
    model: dict[str, Array] = {}
    for blob in reversed(blobs):
        model |= _pick(run, blob)
    newest = read_arrays(blobs[0])
    return encode_arrays(add_kind("model", model) | add_kind(STATISTICS, get_statistics(newest)))


def _pick(run: Run, blob: BlobSource) -> dict[str, Array]:
    """Returns the arrays of a blob that belong to the run's model and have their shape and type."""
    wanted = initial_schema(run.model, run.input["shape"], len(run.classes)).arrays
    held = get_kind(read_arrays(blob), "model") or {}
    return {
        name: array
        for name, array in held.items()
        if name in wanted and (array.shape, str(array.dtype)) == (wanted[name].shape, wanted[name].dtype)
    }
