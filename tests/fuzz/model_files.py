"""Files of models: published weights, and what a node's answers say is its model."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from fuzz.array_bytes import SAMPLE_SHAPE
from fuzz.claims import Seeds, attempt_at
from ml.errors import SpecError
from ml.models import load_pretrained, read_constants
from ml.payload import Array
from ml.plugins import NO_PLUGINS
from ml.specs.architectures import parameter_shapes
from node.cli.model.model_onnx import write_onnx
from node.errors import NodeError
from node.pb import admin_pb2 as pb

MODEL: dict[str, Any] = {"name": "mlp", "hidden": [3]}
CLASSES = ("cat", "dog")
INPUT: dict[str, Any] = {"shape": list(SAMPLE_SHAPE), "resize": None, "mean": [0.0], "std": [1.0]}
WORDS = (
    '"dtype":"',
    '"shape":[',
    '"data_offsets":[',
    '"__metadata__":{',
    '"mean":"[0.5]"',
    "F16",
    "F64",
    "BF16",
    "I64",
)
ONNX_WORDS = (
    *WORDS,
    '"name":"cnn_mnist"',
    '"name":"resnet18"',
    '"name":"mlp"',
    '"hidden":[',
    "999999999",
    "null",
    "[[[[",
)


def _make_arrays(dtype: str = "float32") -> dict[str, Array]:
    shapes = parameter_shapes(MODEL, SAMPLE_SHAPE, len(CLASSES))
    return {name: np.full(shape, 0.5, dtype) for name, shape in shapes.items()}


def make_weights() -> Seeds:
    constants = {"mean": np.array([0.5], np.float32), "std": np.array([0.25], np.float32)}
    return {
        "plain": save(_make_arrays()),
        "half": save(_make_arrays("float16"), {"format": "pt"}),
        "named": save(_make_arrays(), {"mean": "[0.5]", "std": "[0.25]"}),
        "card": save(_make_arrays(), {"fednode.input": json.dumps(INPUT)}),
        "constants": save(_make_arrays() | constants),
    }


def is_same_weights(one: bytes, other: bytes) -> bool:
    """Whether two files have the same header, whose entries safetensors writes in any order, and the same bytes."""
    headers, rests = zip(*(_part(data) for data in (one, other)), strict=True)
    return bool(headers[0] == headers[1] and rests[0] == rests[1])


def _part(data: bytes) -> tuple[Any, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def check_weights(data: bytes) -> bool:
    """As `--pretrained` reads them."""
    with tempfile.TemporaryDirectory(prefix="fednode-") as folder:
        path = Path(folder) / "a.safetensors"
        path.write_bytes(data)
        attempt_at(lambda: (read_constants(path),), str(path), SpecError)
        read = attempt_at(lambda: load_pretrained(path, MODEL, SAMPLE_SHAPE, len(CLASSES)), str(path), SpecError)
    return read is not None


def make_told_models() -> Seeds:
    plain = save(_make_arrays(), {"fednode.round": "3"})
    return {
        "plain": b"\0".join((json.dumps(MODEL).encode(), json.dumps(INPUT).encode(), plain)),
        "no card": b"\0".join((json.dumps(MODEL).encode(), json.dumps(INPUT).encode(), save(_make_arrays()))),
    }


def check_onnx(data: bytes) -> bool:
    """The model, its input and its file, with a zero byte between them, as a node that lies may send them to `fednode
    model export`."""
    model, input_, file = (*data.split(b"\0", 2), b"", b"")[:3]
    info = pb.ModelInfo(
        model=model.decode(errors="replace"),
        input=input_.decode(errors="replace"),
        classes=CLASSES,
        bytes=len(file),
        sha256=hashlib.sha256(file).hexdigest(),
    )
    chunks = [pb.ModelChunk(info=info), pb.ModelChunk(data=file)]
    with tempfile.TemporaryDirectory(prefix="fednode-") as folder:
        out = Path(folder) / "a.onnx"
        return attempt_at(lambda: _export(out, chunks), str(out), NodeError) is not None


def _export(out: Path, chunks: Sequence[pb.ModelChunk]) -> bool:
    """A model that is built is taken, also where nothing is installed that writes it."""
    try:
        write_onnx(out, iter(chunks), plugins=NO_PLUGINS)
    except NodeError as error:
        if "to be installed for ONNX" not in str(error):
            raise
    return True
