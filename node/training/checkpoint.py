"""Checkpoints: a client's state on disk, so that a worker killed at any moment goes on from where it was.

Two files in the canonical encoding of arrays (no pickle; any safetensors reader opens them), one for each phase a
round leaves the state in. Each also holds the round it belongs to and a SHA-256 over all of the file:

    trained.safetensors    after training for a round: what was learned, not yet mixed with the others'
    applied.safetensors    after applying a round's aggregate: where training for the next round starts from; where
                           that was spoiled, or training from it has diverged, the client as it was before

The newer of the two is where a worker goes on. The older stays good for one thing: a round that has to be trained
again, because its result was lost with the daemon, is trained from where it began the first time, to the same bytes.

Files are written to a temporary name, synced and renamed, in a thread of their own: a round does not wait for a disk
(some 4 ms per file) unless that is a whole phase behind. That is safe since nothing here is promised to anyone: what a
node signed is durable in its store before it is sent. A checkpoint lost by a power cut, or by a kill meanwhile, leaves
the one before it, and the same training or aggregate on top of that gives the same state again: `node.training.worker`
remembers the last two phases and repeats them. More than two are missing from the files only if the disk refused one.
Where the daemon dies too, the node goes on from the files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from chain.store.interface import Faults
from ml.errors import PayloadError
from ml.payload import Array, Arrays, decode_arrays, encode_arrays

_log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"  # in a node's data directory, with a directory for each run in it
_RUN = "run-"
_DIGEST, _ROUND = "checkpoint/digest", "checkpoint/round"  # beside the state's own arrays, under "state/"
_STATE = "state/"

# The steps of writing a file that `faults` is called with, after its phase's name; see `chain.store.interface`.
STEPS = ("begin", "written", "synced", "renamed")


class CheckpointCorrupted(Exception):
    """The bytes of a checkpoint are not those that were written; the text says where and how."""


Position = tuple[int, bool]  # (round, whether its aggregate is in): orders states in time


class Phase(Enum):
    """Names the phase that was done last. The value names the file."""

    TRAINED = "trained"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Holds a client's state right after `phase` of `round_number`. (APPLIED, 0) is the state before the first
    round."""

    round_number: int
    phase: Phase
    arrays: Arrays

    @property
    def applied_round(self) -> int:
        """Returns the round of the last aggregate in this state."""
        return self.round_number if self.phase is Phase.APPLIED else self.round_number - 1

    @property
    def position(self) -> Position:
        return (self.round_number, self.phase is Phase.APPLIED)


def encode_checkpoint(checkpoint: Checkpoint) -> bytearray:
    """Returns the file's bytes without the digest, which `seal_checkpoint` adds: another thread may do the hashing."""
    arrays: dict[str, Array] = {_STATE + name: array for name, array in checkpoint.arrays.items()}
    arrays[_ROUND] = np.array([checkpoint.round_number], np.int64)
    arrays[_DIGEST] = np.zeros(32, np.uint8)
    return bytearray(encode_arrays(arrays))


def seal_checkpoint(data: bytearray) -> None:
    """Writes the digest of all other bytes into its place."""
    place = _get_digest_place(data)
    data[place] = bytes(32)
    data[place] = hashlib.sha256(data).digest()


def decode_checkpoint(data: bytes, phase: Phase) -> Checkpoint:
    """Returns the checkpoint in a file's bytes. Raises CheckpointCorrupted if any byte is wrong."""
    try:
        arrays = decode_arrays(data, len(data))
        stored = _take(arrays, _DIGEST, np.dtype(np.uint8), 32).tobytes()
        unsealed = bytearray(data)
        unsealed[_get_digest_place(data)] = bytes(32)
        actual = hashlib.sha256(unsealed).digest()
        if actual != stored:
            raise CheckpointCorrupted(f"expected SHA-256 {stored.hex()}, got {actual.hex()}")
        round_number = int(_take(arrays, _ROUND, np.dtype(np.int64), 1)[0])
    except PayloadError as error:
        raise CheckpointCorrupted(f"expected a checkpoint: {error}") from error
    if round_number < 0:
        raise CheckpointCorrupted(f"expected a round of at least 0, got {round_number}")
    for name in arrays:
        if not name.startswith(_STATE):
            raise CheckpointCorrupted(f"expected arrays below {_STATE}, got {name!r}")
    return Checkpoint(round_number, phase, {name.removeprefix(_STATE): array for name, array in arrays.items()})


def _take(arrays: dict[str, Array], name: str, dtype: np.dtype[Any], count: int) -> Array:
    """Removes an array that is not part of the state from `arrays` and returns it. Raises CheckpointCorrupted."""
    array = arrays.pop(name, None)
    if array is None or (array.dtype, array.shape) != (dtype, (count,)):
        got = "none" if array is None else f"{array.dtype} {list(array.shape)}"
        raise CheckpointCorrupted(f"expected {name} of {dtype} [{count}], got {got}")
    return array


def _get_digest_place(data: bytes | bytearray) -> slice:
    """Returns the place of the digest: the data begins with it, as names are sorted and its name comes first."""
    start = 8 + int.from_bytes(data[:8], "little")
    return slice(start, start + 32)


def get_run_dir(directory: Path, run: int) -> Path:
    """Returns the directory of a run's checkpoints, within the directory of all runs."""
    return directory / f"{_RUN}{run}"


def forget_old_runs(run_dir: Path, kept: Path | None = None) -> None:
    """Deletes the checkpoints of all runs but three: the run of `run_dir`, the one before it, and that of `kept`."""
    newest = run_dir.name.removeprefix(_RUN)
    if newest.isdecimal():
        for run in list_runs(run_dir.parent):
            if run < int(newest) - 1 and (old := get_run_dir(run_dir.parent, run)) != kept:
                shutil.rmtree(old, ignore_errors=True)


def list_runs(directory: Path) -> list[int]:
    """Returns the runs that have checkpoints, the newest first."""
    names = [path.name.removeprefix(_RUN) for path in directory.glob(f"{_RUN}*")]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def read_checkpoint(directory: Path, phase: Phase) -> Checkpoint | None:
    """Returns the checkpoint of a phase in a run's directory; None where there is no good one."""
    path = directory / f"{phase.value}.safetensors"
    try:
        return decode_checkpoint(path.read_bytes(), phase)
    except FileNotFoundError:
        return None
    except (OSError, CheckpointCorrupted) as error:
        _log.warning("Checkpoint %s cannot be used: %s", path, error)
        return None


class Checkpoints:
    """Keeps the two files in `directory`, which is made if it is missing. `close` waits until all is written.

    With `keep_as` each state after a round's aggregate is also kept under the path that `keep_as` returns for the
    round. `faults` is called at every step of writing a file; nothing in production uses it.
    """

    def __init__(
        self, directory: Path, faults: Faults | None = None, keep_as: Callable[[int], Path] | None = None
    ) -> None:
        self.directory = directory
        self.keep_as = keep_as
        self._faults = faults
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self.saved: Position | None = None  # the newest that is in a file
        directory.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        return f"Checkpoints({str(self.directory)!r}, saved={self.saved})"

    def path(self, phase: Phase) -> Path:
        return self.directory / f"{phase.value}.safetensors"

    def load_newest(self) -> Checkpoint | None:
        """Returns the checkpoint to go on from. A corrupt file is set aside with a warning, and the other one is used
        if it is good."""
        found = [checkpoint for phase in Phase if (checkpoint := self.load(phase)) is not None]
        return max(found, key=lambda checkpoint: checkpoint.position, default=None)

    def load(self, phase: Phase) -> Checkpoint | None:
        """Returns the last checkpoint of this phase, None where there is no whole one."""
        self.wait()
        path = self.path(phase)
        try:
            checkpoint = decode_checkpoint(path.read_bytes(), phase)
        except FileNotFoundError:
            return None
        except CheckpointCorrupted as error:
            self.set_aside(phase, str(error))
            return None
        self._set_saved(checkpoint.position)
        return checkpoint

    def set_aside(self, phase: Phase, why: str) -> None:
        """Renames a file to NAME.corrupt, so that it is not used but can be inspected."""
        path = self.path(phase)
        aside = path.with_name(path.name + ".corrupt")
        with suppress(FileNotFoundError):
            path.replace(aside)
        _log.warning("Checkpoint %s cannot be used and was moved to %s: %s", path, aside.name, why)

    def save(self, checkpoint: Checkpoint) -> None:
        """Copies the state now and writes it in the background. Waits until the checkpoint before is in its file, so
        that a slow disk is never more than one behind. Raises OSError if that one could not be written."""
        data = encode_checkpoint(checkpoint)
        before = self._writing
        self._writing = self._writer.submit(self._write, checkpoint.phase, checkpoint.round_number, data)
        if before is not None:
            before.result()

    def wait(self) -> None:
        """Waits until all saved checkpoints are durable. Raises OSError if one could not be written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def _write(self, phase: Phase, round_number: int, data: bytearray) -> None:
        seal_checkpoint(data)
        path = self.path(phase)
        temporary = path.with_name(path.name + ".tmp")
        self._reach(phase, "begin")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            self._reach(phase, "written")
            os.fsync(file.fileno())
        self._reach(phase, "synced")
        temporary.replace(path)  # not synced: after a power cut the older file is as good a place to start from
        self._reach(phase, "renamed")
        if phase is Phase.APPLIED and self.keep_as is not None and round_number:
            kept = self.keep_as(round_number)
            kept.unlink(missing_ok=True)
            os.link(path, kept)  # the file's bytes are written once
        self._set_saved((round_number, phase is Phase.APPLIED))

    def _reach(self, phase: Phase, step: str) -> None:
        if self._faults is not None:
            self._faults(f"{phase.value}.{step}")

    def _set_saved(self, position: Position) -> None:
        self.saved = position if self.saved is None else max(self.saved, position)
