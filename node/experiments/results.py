"""The results of a run: one JSON file, written whole or not at all, and accepted only for the very run it names. Where
a figure asks for one, the snapshot of a client lies beside it, named in the JSON by its digest.

format, fednode, id, config     which run this is; `config` is what the id is a digest of
rounds, clients                 series over the method's rounds (means over clients), and each client after the last
sharing                         the same of the heights before round 1, where the method has some
priors                          the answers after the last round over kappa, where they have priors
epsilon                         of a run that hides samples
liars, halted_at                of a run under attack: which clients lied, and the height that was never made, if any
error                           in place of all these, why the run failed
snapshot                        the names of the classes, and the SHA-256 of the file of arrays, of client 0
snapshots                       the same of other clients, by number
input, seconds, finished, machine
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ml.clients.embedding_snapshot import Snapshot
from ml.errors import PayloadError
from node.errors import NodeError
from node.experiments.plan import FORMAT, VERSION, Run, forget_device
from node.finite import to_finite

EXPERIMENT = "experiment.yaml"  # the file as it was run, kept beside the results
RUNS = "runs"
_TEMPORARY = ".part"


class BrokenResult(NodeError):
    """A file is not the result of the run that it is named after."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class RoundRow(_Part):
    """One round, as ml.simulation.run's RoundResult, but numbered as the method counts: from 1 on, and up to 0 in
    `Result.sharing`. A field is None where the loss is not finite, the method has no such value, the round was not
    measured, or an earlier version wrote the file without it."""

    round: int
    taa: float | None
    tal: float | None
    taa_local: float | None
    global_: float | None = Field(alias="global")
    tal_global: float | None
    sent_params: int
    sent_bytes: int
    received_params: int | None = None
    received_bytes: int | None = None
    peers: float | None = None
    similar: float | None = None
    dropout: float | None = None
    divergence: float | None = None
    aux_loss: float | None = None
    divergences: tuple[tuple[float, ...], ...] | None = None
    val_accuracy: float | None = None
    sent_prototypes: int | None = None
    left_out: int | None = None
    spoiled: int | None = None
    train_s: Annotated[float, Field(ge=0)] | None = None
    aggregate_s: Annotated[float, Field(ge=0)] | None = None


class ClientRow(_Part):
    """One client after the last round."""

    id: int
    accuracy: float
    global_accuracy: float
    local_accuracy: float | None = None
    num_train: int
    num_test: int


class PriorRow(_Part):
    """The answers after the last round at one kappa; None stands for each client's own."""

    kappa: float | None
    taa: float
    global_: float = Field(alias="global")


class SnapshotRow(_Part):
    """The facts of a snapshot besides its arrays."""

    sha256: str
    classes: tuple[str, ...]


class Result(_Part):
    """One run's file. `error` is None where the run has finished."""

    format: int
    fednode: str
    id: str
    config: dict[str, Any]
    input: dict[str, Any] | None = None
    sharing: tuple[RoundRow, ...] = ()
    rounds: tuple[RoundRow, ...] = ()
    clients: tuple[ClientRow, ...] = ()
    priors: tuple[PriorRow, ...] = ()
    liars: tuple[int, ...] = ()
    halted_at: Annotated[int, Field(ge=1)] | None = None
    epsilon: float | None = None
    error: str | None = None
    snapshot: SnapshotRow | None = None
    snapshots: dict[str, SnapshotRow] = Field(default_factory=dict)
    seconds: float
    finished: str
    machine: dict[str, Any]

    @property
    def num_clients(self) -> int:
        clients: int = self.config["clients"]
        return clients

    @property
    def best_taa(self) -> float | None:
        """The highest TAA of the rounds that were measured."""
        return max((row.taa for row in self.rounds if row.taa is not None), default=None)

    @property
    def is_attacked(self) -> bool:
        return self.config.get("attack") is not None


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A snapshot as read, and the names of its classes."""

    snapshot: Snapshot
    names: tuple[str, ...]


def get_result_path(directory: Path, run_id: str) -> Path:
    return directory / RUNS / f"{run_id}.json"


def get_snapshot_path(directory: Path, run_id: str, client: int = 0) -> Path:
    return directory / RUNS / (f"{run_id}.client-{client}.safetensors" if client else f"{run_id}.safetensors")


def get_state_path(directory: Path, run_id: str) -> Path:
    """Returns the file that keeps the state of an unfinished run."""
    return directory / RUNS / f"{run_id}.state"


def write_result(
    directory: Path, run: Run, document: Mapping[str, Any], kept: Mapping[int, Kept] | None = None
) -> None:
    """Writes the result of a run, with snapshots by client: whole or not at all. Raises NodeError where that fails."""
    whole = {"format": FORMAT, "fednode": VERSION, "id": run.id, "config": run.config, **document}
    for client, own in (kept or {}).items():
        data = own.snapshot.encode()
        row = {"sha256": hashlib.sha256(data).hexdigest(), "classes": own.names}
        whole |= {"snapshots": {**whole.get("snapshots", {}), str(client): row}} if client else {"snapshot": row}
        write_whole(get_snapshot_path(directory, run.id, client), data)  # before the JSON that refers to it
    text = json.dumps(to_finite(whole), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(get_result_path(directory, run.id), text.encode("utf-8"))


def copy_result(source: Path, directory: Path, run: Run) -> None:
    """Copies a result of a run from another directory. Raises NodeError where it cannot be read or written."""
    others = sorted((source / RUNS).glob(f"{run.id}.client-*.safetensors"))
    for path in (*others, get_snapshot_path(source, run.id), get_result_path(source, run.id)):  # as `write_result` does
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NodeError(f"{path}: cannot be read ({error.strerror})") from error
        write_whole(directory / RUNS / path.name, data)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all. Raises NodeError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")  # others may write it, too
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise NodeError(f"{path}: cannot be written ({error.strerror})") from error


def remove_leftovers(directory: Path) -> None:
    """Removes what interrupted writes have left."""
    for path in (*directory.glob(f"{EXPERIMENT}.*{_TEMPORARY}"), *(directory / RUNS).glob(f"*{_TEMPORARY}")):
        path.unlink(missing_ok=True)


def read_result(directory: Path, run: Run) -> Result | None:
    """Reads the result of a run; None where there is none yet. Raises BrokenResult, naming the file."""
    path = get_result_path(directory, run.id)
    try:
        result = Result.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BrokenResult(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BrokenResult(f"{path}: not a result: {f'{place}: ' if place else ''}{first['msg']}") from error
    if (result.format, result.id) != (FORMAT, run.id):
        raise BrokenResult(
            f"{path}: expected run {run.id} in format {FORMAT}, got run {result.id} in format {result.format}"
        )
    if forget_device(result.config) != json.loads(json.dumps(forget_device(run.config))):
        raise BrokenResult(f"{path}: another configuration than the one its name is a digest of")
    if result.error is not None:
        return result
    num_heights = run.num_heights if result.halted_at is None else min(result.halted_at - 1, run.num_heights)
    num_sharing = min(num_heights, run.sharing_heights)
    num_rounds = num_heights - num_sharing
    if [row.round for row in result.rounds] != list(range(1, num_rounds + 1)):
        raise BrokenResult(f"{path}: expected rounds 1 to {num_rounds}, got {len(result.rounds)} of them")
    if len(result.sharing) != num_sharing:
        raise BrokenResult(f"{path}: expected {num_sharing} heights before round 1, got {len(result.sharing)} of them")
    if not {*result.liars} <= {*range(len(result.clients))}:
        raise BrokenResult(f"{path}: liars: expected some of {len(result.clients)} clients, got {list(result.liars)}")
    return result


def read_snapshot(directory: Path, run: Run, result: Result, client: int = 0) -> Kept | None:
    """Reads the snapshot of a client that `result` names; None where it names none. Raises BrokenResult, naming the
    file."""
    row = result.snapshots.get(str(client)) if client else result.snapshot
    if row is None:
        return None
    path = get_snapshot_path(directory, run.id, client)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BrokenResult(f"{path}: cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != row.sha256:
        raise BrokenResult(f"{path}: expected the snapshot {row.sha256[:16]}, got {digest[:16]}")
    names = row.classes
    try:
        snapshot = Snapshot.decode(data)
    except PayloadError as error:
        raise BrokenResult(f"{path}: not a snapshot: {error}") from error
    for what in ("labels", "predicted", "classes"):
        largest = int(getattr(snapshot, what).max(initial=0))
        if largest >= len(names):
            raise BrokenResult(f"{path}: {what}: expected less than {len(names)}, got {largest}")
    if snapshot.probabilities.shape[1] != len(names):
        raise BrokenResult(f"{path}: expected probabilities of {len(names)}, got {snapshot.probabilities.shape[1]}")
    return Kept(snapshot, names)
