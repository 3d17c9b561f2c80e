"""Kept rounds: a client's state after rounds of its run, kept for as long as the operator wants them
(`training.keep_models`).

The worker keeps each beside its checkpoints, as another name of the file that it wrote after the round's aggregate; the
daemon, which knows the best round, deletes the others. A state takes as much disk as the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chain.run import Run
from chain.select import LOSS
from ml.errors import DataError
from node.errors import NodeError, NotFound, VerificationFailed
from node.training.checkpoint import Checkpoint, CheckpointCorrupted, Phase, decode_checkpoint, get_run_dir
from node.training.own_best import OwnBest, note_own_best

if TYPE_CHECKING:
    from ml.clients.client import Client

ALL, BEST, NEWEST = "all", "best", "newest"
_START = "round-"
NUM_BEST = 5  # the best, the site's own best, the newest two, and one that is still to be deleted


def get_kept_path(run_dir: Path, number: int) -> Path:
    """Returns the path of the state after a round."""
    return run_dir / f"{_START}{number}.safetensors"


def list_kept(run_dir: Path) -> list[int]:
    """Returns the rounds whose state is kept, in order."""
    names = (path.name.removeprefix(_START).partition(".")[0] for path in run_dir.glob(f"{_START}*.safetensors"))
    return sorted(int(name) for name in names if name.isdecimal())


def read_kept(run_dir: Path, number: int) -> Checkpoint:
    """Returns the state after a round. Raises NotFound where it is not kept, VerificationFailed where it is damaged."""
    path = get_kept_path(run_dir, number)
    try:
        return decode_checkpoint(path.read_bytes(), Phase.APPLIED)
    except FileNotFoundError as error:
        kept = ", ".join(map(str, list_kept(run_dir))) or "none"
        raise NotFound(f"round {number}: its model is not kept here (training.keep_models); kept: {kept}") from error
    except CheckpointCorrupted as error:
        raise VerificationFailed(f"{path}: {error}") from error


@contextmanager
def standing_after(client: Client, run_dir: Path, number: int | None) -> Iterator[None]:
    """Puts the client into the state after a kept round for as long as the context lasts; None: leaves it as it is.
    Raises DataError where that is impossible."""
    if number is None:
        yield
        return
    try:
        kept = read_kept(run_dir, number)
    except NodeError as error:
        raise DataError(str(error)) from error
    now, before = client.state_arrays(), client.arrays_before
    try:
        client.load_state_arrays(kept.arrays)
    except ValueError as error:
        raise DataError(f"round {number}: what is kept of it does not fit this client: {error}") from error
    try:
        yield
    finally:
        client.load_state_arrays(now, before)


def keeps_rounds(keep_models: str, run: Run) -> bool:
    """Says whether the worker keeps the models of rounds beside its checkpoints."""
    return run.select is not None or keep_models != BEST


def count_kept(keep_models: str, run: Run) -> int:
    """Returns how many models a run keeps at most, 0 for none; for a run without an end those of a thousand rounds."""
    if keep_models == BEST:
        return NUM_BEST if keeps_rounds(keep_models, run) else 0
    word, _, count = keep_models.partition(" ")
    return int(count) + NUM_BEST if word == NEWEST else run.last_round or 1000


def choose_kept(keep_models: str, rounds: Collection[int], *best: int) -> set[int]:
    """Returns which of `rounds` to keep. Besides the `best` rounds these include the newest two, which are not judged
    yet."""
    if keep_models == ALL:
        return set(rounds)
    word, _, count = keep_models.partition(" ")
    newest = max(2, int(count)) if word == NEWEST else 2
    return {*sorted(rounds)[-newest:], *best}


@dataclass(frozen=True, slots=True)
class KeptRounds:
    """Notes and deletes the kept rounds of a node, whose checkpoints are in `directory`."""

    directory: Path
    keep_models: str

    def take_in(self, run: Run, number: int, metrics: Mapping[str, float], best: int) -> None:
        """Notes a round that was applied, and deletes what `best`, the best round of the run, makes superfluous."""
        self.note(run, number, metrics)
        self.prune(run.number, best)

    def note(self, run: Run, number: int, metrics: Mapping[str, float]) -> None:
        """Notes the measures of an applied round: its model may be the site's own best."""
        if keeps_rounds(self.keep_models, run):
            by = LOSS if run.select is None else run.select.by
            note_own_best(get_run_dir(self.directory, run.number), number, by, metrics)

    def prune(self, run: int, best: int) -> int:
        """Deletes the rounds that need not be kept when `best` is the best round of a run, 0 for none. Returns how many
        were deleted."""
        run_dir = get_run_dir(self.directory, run)
        rounds, own = list_kept(run_dir), OwnBest.read(run_dir)
        gone = set(rounds) - choose_kept(self.keep_models, rounds, best, 0 if own is None else own.round)
        for number in gone:
            get_kept_path(run_dir, number).unlink(missing_ok=True)
        return len(gone)
