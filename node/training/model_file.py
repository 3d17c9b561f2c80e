"""The model file: one node's model as safetensors, with the names and shapes of torch's `state_dict()`, for others to
open.

The model comes from the node's own last checkpoint, so the worker is not interrupted, and a stopped node has it too.
Reading is synchronous and takes three times the memory of the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.calendar import Calendar, Place
from chain.genesis import Genesis
from chain.run import CLASSIFICATION, Run
from chain.run_input import OF_TABLES
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.specs import get_kind
from ml.specs.architectures import frozen_shapes, initial_schema, tied_names
from ml.specs.statistics import Constants, get_num_values, get_statistics
from node.errors import NodeError, NotFound, VerificationFailed
from node.pb import admin_pb2 as pb
from node.runs.chosen_round import NEWEST_ROUND, ChosenRound
from node.training.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointCorrupted,
    Phase,
    decode_checkpoint,
    get_run_dir,
    list_runs,
)
from node.training.kept_rounds import read_kept

CHUNK_BYTES = 1 << 20  # of one message; gRPC accepts 4 MiB


@dataclass(frozen=True, slots=True)
class ModelFile:
    """Holds the file's bytes and a description of them."""

    info: pb.ModelInfo
    data: bytes

    def to_messages(self) -> Iterator[pb.ModelChunk]:
        """Yields the description of the file, then the file piece by piece."""
        yield pb.ModelChunk(info=self.info)
        for start in range(0, len(self.data), CHUNK_BYTES):
            yield pb.ModelChunk(data=self.data[start : start + CHUNK_BYTES])


def find_run(data_dir: Path, calendar: Calendar) -> Run:
    """Returns the newest run that this node has a model of. Raises NotFound."""
    known = (calendar.get_run(number) for number in list_runs(data_dir / CHECKPOINTS))
    run = next((run for run in known if run is not None), None)
    if run is None:
        raise NotFound(f"{data_dir}: no model yet, as this node has applied no round")
    return run


def read_model(
    data_dir: Path, genesis: Genesis, run: Run, initial_model: bytes | None, chosen: ChosenRound = NEWEST_ROUND
) -> ModelFile:
    """Returns the model of a run as it was after the `chosen` round, by default the newest that this node applied.
    `initial_model` is the blob that the run began from, where `is_initial_needed`.

    Raises NotFound where there is none yet, VerificationFailed where the checkpoint is damaged.
    """
    run_dir = get_run_dir(data_dir / CHECKPOINTS, run.number)
    checkpoint = _read_newest(data_dir, run_dir) if chosen.number is None else read_kept(run_dir, chosen.number)
    file = _make_file(genesis, run, checkpoint.applied_round, checkpoint.arrays, initial_model)
    file.info.is_best = chosen.is_best
    return file


def read_chosen(
    data_dir: Path,
    genesis: Genesis,
    run: Run,
    initial_model: bytes | None,
    chosen: ChosenRound,
    find_aggregate: Callable[[Run, int], bytes | None],
) -> ModelFile:
    """Returns the model as `read_model` does. Where the model after the round is not kept, returns the one in the
    round's aggregate from `find_aggregate`, if that holds a whole model; else the newest, unless that very round was
    requested."""
    try:
        return read_model(data_dir, genesis, run, initial_model, chosen)
    except NotFound:
        data = None if chosen.number is None else find_aggregate(run, chosen.number)
        arrays = {} if data is None else decode_arrays(data, len(data))
        wanted = initial_schema(run.model, run.input["shape"], len(run.classes)).arrays.keys()
        if chosen.number is not None and wanted <= (get_kind(arrays, "model") or {}).keys():
            file = _make_file(genesis, run, chosen.number, arrays, None)
            file.info.is_best = chosen.is_best
            return file
        if chosen.is_asked or chosen.number is None:
            raise
        return read_model(data_dir, genesis, run, initial_model)


def find_aggregate(store: SqliteStore, calendar: Calendar, run: Run, number: int) -> bytes | None:
    """Returns the aggregate of a round, None where the store does not have it. Runs on the store's thread."""
    height = calendar.get_height(Place(run.number, number))
    stored = None if height is None else store.get_block(height)
    if stored is None or not store.has_blob(stored.block.header.aggregate):
        return None
    return store.get_blob(stored.block.header.aggregate)


def _make_file(
    genesis: Genesis, run: Run, applied_round: int, arrays: Arrays, initial_model: bytes | None
) -> ModelFile:
    own = get_kind(arrays, "model") or {}
    frozen = {} if initial_model is None else _get_frozen(initial_model, own)
    input_ = write_out_input(run, get_statistics(arrays))
    return make_model_file(genesis, run, applied_round, _add_tied(run, frozen | own), input_)


def _read_newest(data_dir: Path, run_dir: Path) -> Checkpoint:
    path = run_dir / f"{Phase.APPLIED.value}.safetensors"
    try:
        return decode_checkpoint(path.read_bytes(), Phase.APPLIED)
    except FileNotFoundError as error:
        raise NotFound(f"{data_dir}: no model yet, as this node has applied no round") from error
    except CheckpointCorrupted as error:
        raise VerificationFailed(f"{path}: {error}") from error
    except OSError as error:
        raise NodeError(f"{path}: cannot be read ({error.strerror})") from error


def write_out_input(run: Run, statistics: Arrays) -> Mapping[str, Any]:
    """Returns the `input` of a run, with the mean and the deviation that its members have agreed on, if they have."""
    if not statistics:
        return run.input
    shape = run.input["shape"]
    constants = Constants.from_arrays(statistics, get_num_values(shape))
    return {
        "shape": shape,
        "resize": run.input["resize"],
        "mean": list(constants.mean),
        "std": list(constants.std),
        **{key: run.input[key] for key in OF_TABLES if key in run.input},
    }


def make_model_file(
    genesis: Genesis, run: Run, applied_round: int, arrays: dict[str, Array], input_: Mapping[str, Any] | None = None
) -> ModelFile:
    """Makes the file of these arrays; the same arrays always make the same bytes. `input_` is the input that samples
    are normalised by, by default the run's."""
    input_text = json.dumps(run.input if input_ is None else input_, sort_keys=True)
    card = {
        "format": "pt",  # the name that readers of safetensors have for the layout of torch's arrays
        "fednode.chain_id": genesis.chain_id.hex(),
        "fednode.run": str(run.number),
        "fednode.round": str(applied_round),
        "fednode.method": run.method["name"],
        "fednode.model": json.dumps(run.model, sort_keys=True),
        "fednode.classes": json.dumps(list(run.classes)),
        "fednode.input": input_text,
    }
    if run.task != CLASSIFICATION:
        card |= {"fednode.task": run.task, "fednode.target": json.dumps(run.target, sort_keys=True)}
    if run.labels is not None:
        card["fednode.labels"] = json.dumps(run.labels, sort_keys=True)
    data = _encode(arrays, card)
    info = pb.ModelInfo(
        applied_round=applied_round,
        run=run.number,
        chain_id=genesis.chain_id.hex(),
        chain_name=genesis.chain_name,
        method=run.method["name"],
        model=json.dumps(run.model, sort_keys=True),
        classes=run.classes,
        input=input_text,
        task=run.task,
        target=None if run.target is None else json.dumps(run.target, sort_keys=True),
        numbers=sum(array.size for array in arrays.values()),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    for name in sorted(arrays):
        info.arrays.add(name=name, dtype=str(arrays[name].dtype), shape=arrays[name].shape)
    return ModelFile(info, data)


def _encode(arrays: Arrays, card: Mapping[str, str]) -> bytes:
    """Returns the canonical bytes of the arrays with the card in their header. The safetensors library would put its
    entries into another order each time."""
    plain = encode_arrays(arrays)
    start = 8 + int.from_bytes(plain[:8], "little")
    header = json.dumps({"__metadata__": dict(card), **json.loads(plain[8:start])}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that what follows is aligned
    return len(header).to_bytes(8, "little") + header + plain[start:]


def without_card(data: bytes) -> bytes:
    """Returns a model file as the blob of its arrays; other bytes as they are."""
    start = 8 + int.from_bytes(data[:8], "little")
    if start > len(data):
        return data
    try:
        header = json.loads(data[8:start])
    except (ValueError, RecursionError):
        return data
    if not isinstance(header, dict) or header.pop("__metadata__", None) is None:
        return data
    plain = json.dumps(header, separators=(",", ":")).encode()
    plain += b" " * (-len(plain) % 8)
    return len(plain).to_bytes(8, "little") + plain + data[start:]


def is_initial_needed(run: Run) -> bool:
    """Says whether part of the model never changes, such as a frozen encoder: the run's initial model has it, a
    checkpoint does not."""
    return bool(frozen_shapes(run.model, run.input["shape"], len(run.classes)))


def _get_frozen(initial_model: bytes, own: Arrays) -> dict[str, Array]:
    try:
        initial = get_kind(decode_arrays(initial_model, len(initial_model)), "model") or {}
    except PayloadError as error:
        raise VerificationFailed(f"the initial model: {error}") from error
    return {name: array for name, array in initial.items() if name not in own}


def _add_tied(run: Run, arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns the arrays under their further names, too, as in torch's `state_dict()`."""
    tied = tied_names(run.model, run.input["shape"], len(run.classes))
    return arrays | {name: arrays[first] for name, first in tied.items() if first in arrays}
