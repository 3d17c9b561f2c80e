"""Training alone beside a node's rounds: done while no call is under way, and kept in checkpoints of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ml.errors import MlError, Stopped
from ml.measures.alone import TrainedAlone
from ml.payload import Arrays
from node.training.checkpoint import Checkpoint, Checkpoints, Phase, read_checkpoint

if TYPE_CHECKING:
    from ml.clients.alone import TrainingAlone  # whose torch only the worker may load

_log = logging.getLogger(__name__)

DIRECTORY = "alone"  # below a run's checkpoints


class Beside:
    """Trains one worker's model alone, and keeps it. A round is saved once it is complete; an incomplete one is
    repeated after a restart."""

    def __init__(self, alone: TrainingAlone, run_dir: Path, before_dir: Path | None) -> None:
        self._alone = alone
        self._checkpoints = Checkpoints(run_dir / DIRECTORY)
        self._saved = 0
        found = self._checkpoints.load(Phase.TRAINED) or _read(before_dir)
        if found is not None:
            try:
                alone.load_state_arrays(found.round_number, found.arrays)
            except ValueError as error:
                _log.warning("Training alone begins anew, as its state does not fit: %s", error)
        self._saved = alone.rounds

    def owe(self, round_number: int, num_iterations: int) -> None:
        """Notes that the node's client has trained for a round: training alone owes as many iterations."""
        self._alone.owe(round_number, num_iterations)

    def note_together(self, round_number: int) -> None:
        """Notes that the node's client has applied a round, or passed it over."""
        self._alone.note_together(round_number)

    def step(self) -> bool:
        """Does one small step. Returns False where there is nothing to do."""
        did = self._alone.step()
        if self._alone.is_between_rounds and self._alone.rounds > self._saved:
            self._saved = self._alone.rounds
            self._keep()
        return did

    def _keep(self) -> None:
        try:
            self._checkpoints.save(Checkpoint(self._alone.rounds, Phase.TRAINED, self._alone.state_arrays()))
        except OSError as error:
            _log.error("Checkpoint of training alone could not be written: %s", error)

    def describe(self) -> TrainedAlone:
        return self._alone.describe()

    def answer(self, ask: Callable[[], Mapping[str, Arrays]]) -> tuple[TrainedAlone, Mapping[str, Arrays]]:
        """Returns how far training alone is, and what its model answers now: `alone`, and `mixed` with the client's
        answer. There are no answers before one round is complete, or where the model's numbers are not finite; that is
        reported as its failure. Raises Stopped."""
        told = self.describe()
        if not told.rounds or told.failure is not None:
            return told, {}
        try:
            return told, ask()
        except Stopped:
            raise
        except MlError as error:
            return replace(told, failure=str(error)), {}

    def close(self) -> None:
        try:
            self._checkpoints.close()
        except OSError as error:
            _log.error("Checkpoint of training alone could not be written: %s", error)


def _read(before_dir: Path | None) -> Checkpoint | None:
    """Returns the state that the run before has left, as of round 0: that run's rounds do not count in this one."""
    found = None if before_dir is None else read_checkpoint(before_dir / DIRECTORY, Phase.TRAINED)
    return None if found is None else Checkpoint(0, Phase.TRAINED, found.arrays)
