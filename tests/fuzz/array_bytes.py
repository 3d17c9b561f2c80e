"""Named arrays: payloads, samples to classify, checkpoints."""

from __future__ import annotations

import numpy as np

from fuzz.claims import MIB, Seeds, passes, takes_only_its_own
from ml.errors import PayloadError
from ml.payload import Array, ArraySchema, ArraySpec, decode_arrays, encode_arrays, validate_arrays
from node.admin.samples import decode_samples
from node.errors import InvalidRequest
from node.training.checkpoint import (
    Checkpoint,
    CheckpointCorrupted,
    decode_checkpoint,
    encode_checkpoint,
    seal_checkpoint,
)
from node.training.checkpoint import Phase as CheckpointPhase

SCHEMA = ArraySchema(
    {"classes": ArraySpec("int64", ("n",)), "prototypes": ArraySpec("float32", ("n", 4))}, {"n": (1, 10)}
)
SAMPLE_SHAPE = (1, 2, 2)
_check_arrays_bytes = takes_only_its_own(lambda data: decode_arrays(data, MIB), encode_arrays, PayloadError)


def make_arrays() -> Seeds:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    every: dict[str, Array] = {code: np.ones((2, 1), code) for code in ("float16", "float32", "float64", "int64")}
    return {
        "none": encode_arrays({}),
        "prototypes": encode_arrays({"classes": np.array([2, 5]), "prototypes": rows}),
        "dtypes": encode_arrays({**every, "u8": np.array(7, np.uint8), "empty": np.zeros((0, 3), np.float32)}),
        "samples": encode_arrays({"x": np.zeros((2, *SAMPLE_SHAPE), np.uint8)}),
        "images": encode_arrays({"x": np.ones((1, 3, 3, 1), np.float32)}),
    }


def check_arrays(data: bytes) -> bool:
    """Any arrays, then as a payload and as samples to classify, which are fewer."""
    taken = _check_arrays_bytes(data)
    are_samples = passes(lambda: decode_samples(data, SAMPLE_SHAPE, 4), InvalidRequest)
    assert taken or not are_samples
    if taken:
        passes(lambda: validate_arrays(decode_arrays(data, MIB), SCHEMA), PayloadError)
    return taken


def make_checkpoints() -> Seeds:
    states: dict[str, dict[str, Array]] = {
        "small": {"model/w": np.array([[1.5, -2.0]], np.float32), "a": np.zeros((0, 4), np.float32)},
        "empty": {},
    }
    made = {name: encode_checkpoint(Checkpoint(7, CheckpointPhase.TRAINED, arrays)) for name, arrays in states.items()}
    for data in made.values():
        seal_checkpoint(data)
    return {name: bytes(data) for name, data in made.items()}


def write_checkpoint(checkpoint: Checkpoint) -> bytes:
    data = encode_checkpoint(checkpoint)
    seal_checkpoint(data)
    return bytes(data)


_check_checkpoint_bytes = takes_only_its_own(
    lambda data: decode_checkpoint(data, CheckpointPhase.TRAINED), write_checkpoint, CheckpointCorrupted
)


def check_checkpoint(data: bytes) -> bool:
    """As it is, and with the digest of what it holds."""
    taken = _check_checkpoint_bytes(data)
    sealed = bytearray(data)
    if len(data) >= 40 and int.from_bytes(data[:8], "little") <= len(data) - 40:
        seal_checkpoint(sealed)
        taken = _check_checkpoint_bytes(bytes(sealed)) or taken
    return taken
