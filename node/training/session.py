"""A worker's session: a client, and its position in its rounds.

The answer to a call is sent before the checkpoint is made; `node.training.checkpoint` says why that is safe. Payloads
too large for an answer are first written to files of their own, which the daemon takes over.
"""

from __future__ import annotations

import errno
import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ml.payload import Arrays, compute_encoded_bytes, decode_arrays, encode_arrays, iter_encoded
from ml.specs import get_kind
from ml.specs.methods.evaluation import EVALUATION
from ml.specs.privacy import HIDDEN
from node.host.allocator import give_freed_memory_back
from node.training.beside import Beside
from node.training.checkpoint import Checkpoint, Checkpoints, Phase, Position
from node.training.data_watch import DataWatch
from node.training.exchange import Exchange, FileUnusable
from node.training.kept_answers import KeptAnswers
from node.training.kept_rounds import standing_after
from node.training.privacy_ledger import PrivacyLedger
from node.training.trainer import Answer, apply_to, score_with, tell_with, train_with

if TYPE_CHECKING:
    from ml.clients.alone import TrainingAlone
    from ml.clients.client import Client

_log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Built(NamedTuple):
    """Holds a client, the function that answers about samples, the device it is on, and the precision of its forward
    passes."""

    client: Client
    answer: Answer
    device: str
    precision: str = "fp32"
    alone: TrainingAlone | None = None
    ledger: PrivacyLedger | None = None  # where samples are hidden
    watch: DataWatch | None = None  # where the data are the site's own


class Session:
    """Runs the calls on a client, and keeps its position in its rounds. Repeating the last step of a round changes
    nothing but the count of a `ledger`. A client that `hides_itself`, by noise of the site's own, resumes from no state
    that was trained without that noise: it would send what nobody has counted.

    Payloads too large for an answer are written into `outgoing_dir`.
    """

    def __init__(
        self,
        built: Built,
        checkpoints: Checkpoints,
        outgoing_dir: Path,
        checkpoint_every: int,
        before: Checkpoint | None = None,
        run: int = 1,
        beside: Beside | None = None,
        *,
        hides_itself: bool = False,
    ) -> None:
        self.beside = beside
        self._hides_itself = hides_itself
        self._client, self._answer = built.client, built.answer
        self._ledger, self._watch = built.ledger, built.watch
        self._checkpoints = checkpoints
        self._outgoing_dir = outgoing_dir
        self._every = checkpoint_every
        self._run = run
        self._round, self._phase = 0, Phase.APPLIED
        self._is_saved = False
        self._answers = KeptAnswers()
        self.resumed = self._resume()
        if self.resumed is None and before is not None:
            self._go_on_from(before)
        self.data_change = None if self._watch is None else self._watch.describe(self._round)
        self._untold = self.data_change
        if self.data_change is not None:
            _log.warning("%s", self.data_change)

    def _resume(self) -> Checkpoint | None:
        while (checkpoint := self._checkpoints.load_newest()) is not None:
            try:
                if self._hides_itself:
                    _require_hidden(checkpoint.arrays)
                self._client.load_state_arrays(checkpoint.arrays)
            except ValueError as error:
                self._checkpoints.set_aside(checkpoint.phase, str(error))
                continue
            with suppress(ValueError):  # of another model: the client cannot go back then
                self._client.load_state_arrays(checkpoint.arrays, self._load_before(checkpoint))
            self._round, self._phase, self._is_saved = checkpoint.round_number, checkpoint.phase, True
            return checkpoint
        return None

    def _go_on_from(self, before: Checkpoint) -> None:
        """Loads the state that the run before left of this client, if it fits; else the client begins from the initial
        model."""
        try:
            if self._ledger is not None and "dp_noise" in self._ledger.noise:
                _require_hidden(before.arrays)
            self._client.go_on_from(before.arrays)
        except ValueError as error:
            _log.warning("The client begins anew, as its state in the run before does not fit: %s", error)

    def _load_before(self, applied: Checkpoint) -> Arrays | None:
        """Returns the client's state before the aggregate in `applied`, if that is on disk."""
        before = None if applied.phase is Phase.TRAINED else self._checkpoints.load(Phase.TRAINED)
        return None if before is None or before.position > applied.position else before.arrays

    def train(
        self,
        round_number: int,
        beacon: bytes,
        num_iterations: int | None,
        shared: Exchange,
        should_stop: Callable[[], bool],
        on_step: Callable[[int, int], None],
    ) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
        """Returns the answer to `train`. Raises MlError and FileUnusable."""
        if (self._round, self._phase) == (round_number, Phase.TRAINED):
            self._go_back()
        if self._watch is not None:
            self._watch.keep()
            if (told := self._watch.look_again()) is not None:
                _log.warning("%s", told)
                self._untold = told

        def on_back() -> None:  # a repetition has to begin there, too
            _log.warning("Training for round %d diverged, and began again from the node's own model", round_number)
            self._move(round_number - 1, Phase.APPLIED)
            self.save()

        self._client.validate_common(round_number)
        self._count(round_number, num_iterations)
        hooks = {"should_stop": should_stop, "on_step": on_step, "on_back": on_back}
        trained = train_with(self._client, round_number, beacon, num_iterations, shared, **hooks)
        self._move(round_number, Phase.TRAINED)
        self._answers.on_trained(round_number, self._client)
        if self.beside is not None:
            self.beside.owe(round_number, int(trained.metrics["iterations"]))
        streamed = self._client.spec.get_streamed(round_number)
        files = {
            kind: str(write_arrays(self._outgoing_dir, f"{round_number}-{kind}", arrays))
            for kind, arrays in trained.payloads.items()
            if kind in streamed
        }
        if files:
            give_freed_memory_back()  # the model trained to make them is larger than that of the rounds
        payloads = {kind: encode_arrays(arrays) for kind, arrays in trained.payloads.items() if kind not in files}
        result = {"weight": trained.weight, "metrics": dict(trained.metrics), "went_back": trained.went_back}
        result["data_change"], self._untold = self._untold, None
        return {**result, "files": files}, payloads

    def _count(self, round_number: int, num_iterations: int | None) -> None:
        """Counts what a phase will reveal, before it begins: even an abandoned phase leaves its steps in the model.
        Raises MlError where the budget is spent, or the phase cannot be counted."""
        release = None if self._ledger is None else self._client.plan_release(round_number, num_iterations)
        if self._ledger is not None and release is not None:
            self._ledger.check(release)
            self._ledger.add(release, round_number)

    def apply(self, round_number: int, aggregate: bytes | None, exchange: Exchange) -> Mapping[str, Any]:
        """Returns the answer to `apply`. Raises MlError, Spoiled among them, and FileUnusable."""
        refused: dict[str, str] = {}
        if (self._round, self._phase) == (round_number, Phase.APPLIED):
            if aggregate is not None:
                self._client.note_common(round_number, decode_arrays(aggregate, len(aggregate)))
            metrics = {**self._client.evaluate(), **self._client.measure_val()}
        else:
            metrics = apply_to(
                self._client, round_number, aggregate, exchange, lambda peer, why: refused.update({peer.hex(): why})
            )
            self._move(round_number, Phase.APPLIED)
        self._keep_answers(round_number)
        return {"metrics": metrics, "refused": refused}

    def pass_over(self, round_number: int) -> Mapping[str, Any]:
        """Returns the answer to `pass_over`."""
        if (self._round, self._phase) == (round_number, Phase.APPLIED):
            self._client.go_back()
        self._move(round_number, Phase.APPLIED)
        metrics = {**self._client.evaluate(), **self._client.measure_val()}
        self._keep_answers(round_number)
        return {"metrics": metrics}

    def _keep_answers(self, round_number: int) -> None:
        self._answers.on_taken_in(round_number, self._client)
        if self.beside is not None:
            self.beside.note_together(round_number)

    def measure(self) -> Mapping[str, Any]:
        """Returns the answer to `measure`: for the client as it was when it last applied a round, even if it has
        trained since. If it has not, nobody waits for its training, so epsilon is computed at once."""
        return {
            **self._answers.describe(),
            "alone": None if self.beside is None else self.beside.describe().to_mapping(),
            "privacy": None if self._ledger is None else self._ledger.describe(has_time=self._phase is Phase.APPLIED),
        }

    def list_answers(self) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
        """Returns the answer to `answers`: the answers that `measure` measures."""
        return {"run": self._run, "round": self._answers.round_number}, self._answers.encode()

    def predict(
        self,
        samples: bytes,
        alone: bool,
        kappa: float | None,
        should_stop: Callable[[], bool],
        kept: int | None = None,
        calibrated: bool = False,
    ) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
        """Returns the answer to `predict`, and leaves everything as it was. Raises MlError."""
        x = decode_arrays(samples, len(samples))["x"]
        told = None
        with standing_after(self._client, self._checkpoints.directory, kept):
            said = self._answer(x, should_stop, kappa, calibrated)
            attachments = {"answer": encode_arrays(said.own)}
            if alone and self.beside is not None:
                told, beside = self.beside.answer(said.ask_beside)
                attachments |= {name: encode_arrays(answer) for name, answer in beside.items()}
        applied_round = self._round if self._phase is Phase.APPLIED else self._round - 1
        applied_round = applied_round if kept is None else kept
        result = {"run": self._run, "applied_round": applied_round}
        return {**result, "alone": None if told is None else told.to_mapping()}, attachments

    def score(
        self, round_number: int, aggregates: Mapping[str, bytes], should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Returns the answer to `score`, and leaves everything as it was. Raises MlError."""
        in_order = (aggregates[str(place)] for place in range(len(aggregates)))
        return {"losses": score_with(self._client, round_number, in_order, should_stop)}

    def tell_of(self, aggregate: bytes, min_samples: int) -> Mapping[str, bytes]:
        """Returns the answer to `tell_of`, and leaves everything as it was. Raises MlError."""
        return {EVALUATION: tell_with(self._client, aggregate, min_samples)}

    def _go_back(self) -> None:
        """Restores the state before a training that is requested again, so that it gives the same result."""
        before = self._checkpoints.load(Phase.APPLIED)
        if before is not None and before.round_number == self._round - 1:
            self._client.load_state_arrays(before.arrays)
        else:
            _log.warning(
                "Training for round %d was repeated from where it had ended: no checkpoint of round %d",
                self._round,
                self._round - 1,
            )

    def _move(self, round_number: int, phase: Phase) -> None:
        self._round, self._phase, self._is_saved = round_number, phase, False

    def save(self, *, is_last: bool = False) -> None:
        """Makes a checkpoint in the background if this step is due for one, and always for the last."""
        is_kept = self._checkpoints.keep_as is not None and self._phase is Phase.APPLIED
        if self._is_saved or not (is_last or is_kept or self._round % self._every == 0):
            return
        try:
            self._checkpoints.save(Checkpoint(self._round, self._phase, self._client.state_arrays()))
        except OSError as error:
            _log.error("Checkpoint of round %d could not be written: %s", self._round, error)
        self._is_saved = True

    @property
    def saved(self) -> Position | None:
        """Returns the position of the newest state that is on disk."""
        return self._checkpoints.saved

    def use_time(self) -> bool:
        """Does a small part of the work that may wait. Returns False where there is none."""
        return self.beside is not None and self.beside.step()

    def close(self) -> None:
        self.save(is_last=True)
        if self.beside is not None:
            self.beside.close()
        try:
            self._checkpoints.close()
        except OSError as error:
            _log.error("Last checkpoint could not be written: %s", error)


def _require_hidden(arrays: Arrays) -> None:
    """Raises ValueError for the state of a client that was trained without noise."""
    if get_kind(arrays, HIDDEN) is None:
        raise ValueError("expected a state whose training has hidden samples, got one without noise")


def write_arrays(directory: Path, name: str, arrays: Arrays) -> Path:
    """Writes the encoding of `arrays` to a new file, whose name begins with `name`, without a copy of it in memory. The
    file is not synced: it may be lost before the daemon takes it over. Raises FileUnusable, and then there is no
    file."""
    path = directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, text = tempfile.mkstemp(prefix=f"{name}.", dir=directory)
        path = Path(text)
        try:
            with open(descriptor, "wb") as file:
                file.writelines(iter_encoded(arrays))
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        num_bytes = compute_encoded_bytes({key: (str(array.dtype), array.shape) for key, array in arrays.items()})
        what = "the disk is full" if error.errno in _FULL else f"cannot be written ({error.strerror or error})"
        raise FileUnusable(f"{path}: {what}; expected room for {num_bytes} bytes") from error
    return path
