"""The model that a run begins from, put together where the run goes on from an aggregate that holds no whole one.

A method shares what it shares: of FedPer an aggregate holds the layers in common, of DFPL no model at all. A run that
goes on from such an aggregate begins with the model of the run before, as that began, and what the aggregate has of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chain.run import Run
from ml.errors import PayloadError, SpecError
from ml.payload import Array, encode_arrays, map_arrays
from ml.specs import add_kind, get_kind
from ml.specs.architectures import initial_schema
from ml.specs.statistics import STATISTICS, get_statistics


def holds_whole_model(run: Run, path: Path) -> bool:
    """Whether the blob in `path` has every array of the run's model, as it must be."""
    try:
        wanted = initial_schema(run.model, run.input["shape"], len(run.classes)).arrays
        return wanted.keys() <= _pick(run, path).keys()
    except (PayloadError, SpecError, OSError):
        return False


def read_initial(run: Run, paths: Sequence[Path]) -> bytes:
    """The encoded model that a run begins from, of the blobs that it and runs before it name, newest first. Raises
    PayloadError, SpecError and OSError."""
    return paths[0].read_bytes() if holds_whole_model(run, paths[0]) else combine(run, paths)


def combine(run: Run, paths: Sequence[Path]) -> bytes:
    """The encoded model of a run from the blobs that it and the runs before it began from, newest first: each array is
    the newest that fits the run's model. The newest's statistics come along. Raises PayloadError, SpecError and
    OSError."""
    model: dict[str, Array] = {}
    for path in reversed(paths):
        model |= _pick(run, path)
    newest = map_arrays(paths[0], paths[0].stat().st_size)
    return encode_arrays(add_kind("model", model) | add_kind(STATISTICS, get_statistics(newest)))


def _pick(run: Run, path: Path) -> dict[str, Array]:
    """The arrays of a blob that belong to the run's model and have their shape."""
    wanted = initial_schema(run.model, run.input["shape"], len(run.classes)).arrays
    held = get_kind(map_arrays(path, path.stat().st_size), "model") or {}
    return {
        name: array
        for name, array in held.items()
        if name in wanted and (array.shape, str(array.dtype)) == (wanted[name].shape, wanted[name].dtype)
    }
