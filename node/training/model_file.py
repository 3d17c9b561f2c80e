"""The model file: one node's model as safetensors, with the names and shapes of torch's `state_dict()`, for others to
open.

The model comes from the node's own last checkpoint, so the worker is not interrupted, and a stopped node has it too.
Reading is synchronous and takes three times the memory of the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chain.genesis import Genesis
from ml.errors import PayloadError
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.specs import get_kind
from ml.specs.architectures import frozen_shapes
from node.errors import NodeError, NotFound, VerificationFailed
from node.pb import admin_pb2 as pb
from node.training.checkpoint import CHECKPOINTS, CheckpointCorrupted, Phase, decode_checkpoint

CHUNK_BYTES = 1 << 20  # of one message; gRPC takes 4 MiB


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The file's bytes and what is in it."""

    info: pb.ModelInfo
    data: bytes

    def to_messages(self) -> Iterator[pb.ModelChunk]:
        """The description of the file, then the file piece by piece."""
        yield pb.ModelChunk(info=self.info)
        for start in range(0, len(self.data), CHUNK_BYTES):
            yield pb.ModelChunk(data=self.data[start : start + CHUNK_BYTES])


def read_model(data_dir: Path, genesis: Genesis, initial_model: bytes | None) -> ModelFile:
    """The model as it was after the newest aggregate it has taken in. `initial_model` is block 0's blob where
    `is_initial_needed`.

    Raises NotFound where there is none yet, VerificationFailed where the checkpoint is not as it was written.
    """
    path = data_dir / CHECKPOINTS / f"{Phase.APPLIED.value}.safetensors"
    try:
        checkpoint = decode_checkpoint(path.read_bytes(), Phase.APPLIED)
    except FileNotFoundError as error:
        raise NotFound(f"{data_dir}: no model yet, as this node has applied no round") from error
    except CheckpointCorrupted as error:
        raise VerificationFailed(f"{path}: {error}") from error
    except OSError as error:
        raise NodeError(f"{path}: cannot be read ({error.strerror})") from error
    own = get_kind(checkpoint.arrays, "model") or {}
    frozen = {} if initial_model is None else _get_frozen(initial_model, own)
    return make_model_file(genesis, checkpoint.applied_height, frozen | own)


def make_model_file(genesis: Genesis, applied_round: int, arrays: dict[str, Array]) -> ModelFile:
    """The file of these arrays, the same bytes whenever it is made of the same."""
    card = {
        "format": "pt",  # what readers of safetensors call the layout of torch's own arrays
        "fednode.chain_id": genesis.chain_id.hex(),
        "fednode.round": str(applied_round),
        "fednode.method": genesis.run.method["name"],
        "fednode.model": json.dumps(genesis.run.model, sort_keys=True),
        "fednode.classes": json.dumps(list(genesis.run.classes)),
        "fednode.input": json.dumps(genesis.run.input, sort_keys=True),
    }
    data = _encode(arrays, card)
    info = pb.ModelInfo(
        applied_round=applied_round,
        chain_id=genesis.chain_id.hex(),
        chain_name=genesis.chain_name,
        method=genesis.run.method["name"],
        model=json.dumps(genesis.run.model, sort_keys=True),
        classes=genesis.run.classes,
        input=json.dumps(genesis.run.input, sort_keys=True),
        numbers=sum(array.size for array in arrays.values()),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    for name in sorted(arrays):
        info.arrays.add(name=name, dtype=str(arrays[name].dtype), shape=arrays[name].shape)
    return ModelFile(info, data)


def _encode(arrays: Arrays, card: Mapping[str, str]) -> bytes:
    """The canonical bytes of the arrays with a card in their header. The safetensors library would put its entries into
    another order each time."""
    plain = encode_arrays(arrays)
    start = 8 + int.from_bytes(plain[:8], "little")
    header = json.dumps({"__metadata__": dict(card), **json.loads(plain[8:start])}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that what follows is aligned
    return len(header).to_bytes(8, "little") + header + plain[start:]


def is_initial_needed(genesis: Genesis) -> bool:
    """Whether part of the model never changes, such as a frozen encoder: block 0 has it, a checkpoint does not."""
    return bool(frozen_shapes(genesis.run.model, genesis.run.input["shape"], len(genesis.run.classes)))


def _get_frozen(initial_model: bytes, own: Arrays) -> dict[str, Array]:
    try:
        initial = get_kind(decode_arrays(initial_model, len(initial_model)), "model") or {}
    except PayloadError as error:
        raise VerificationFailed(f"the initial model: {error}") from error
    return {name: array for name, array in initial.items() if name not in own}
