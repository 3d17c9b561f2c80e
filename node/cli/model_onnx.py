"""`fednode model export OUT.onnx`: the model that a node gives, rebuilt by torch and written as ONNX."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import NodeError

if TYPE_CHECKING:
    from ml.data.base import InputFormat
    from ml.models import Model
    from ml.plugins import Plugins
    from node.pb import admin_pb2 as pb


@dataclass(frozen=True, slots=True)
class OnnxExport:
    """A file as written, and by how much onnxruntime differs from torch on it; None where that is not installed."""

    info: pb.ModelInfo
    num_bytes: int
    sha256: str
    difference: float | None


def require_onnx() -> None:
    """Raises NodeError where what writes ONNX is not installed."""
    from ml.models import onnx_file

    try:
        onnx_file.require_onnx()
    except onnx_file.OnnxRefused as error:
        raise NodeError(str(error)) from error


def write_onnx(out: Path, chunks: Iterator[pb.ModelChunk], *, plugins: Plugins) -> OnnxExport:
    """The model of these chunks in `out`, whole or not at all. A user's module is imported only where it is one
    of `plugins`. Raises NodeError, and VerificationFailed where the chunks are not what was announced."""
    import hashlib

    from ml.errors import MlError, show_line
    from ml.models.onnx_file import encode_onnx
    from node.cli.model import write_model
    from node.host.whole_file import writing_whole

    with tempfile.TemporaryDirectory() as directory:
        plain = Path(directory) / "model.safetensors"
        info = write_model(plain, chunks)
        try:
            model, input_, card = _rebuild(info, plain, plugins=plugins)
            constants = input_.mean, input_.std
            data, difference = encode_onnx(model, input_.shape, *constants, card, fills=_fills_empty(input_))
        except (MlError, ValueError) as error:
            raise NodeError(show_line(f"{out}: {error}")) from error
    with writing_whole(out, over=True) as file:
        file.write(data)
    return OnnxExport(info, len(data), hashlib.sha256(data).hexdigest(), difference)


def _fills_empty(input_: InputFormat) -> bool:
    """Whether a mean stands for an empty cell."""
    return input_.table is not None and input_.table.missing.startswith("mean")


def _rebuild(info: pb.ModelInfo, file: Path, *, plugins: Plugins) -> tuple[Model, InputFormat, dict[str, str]]:
    """The model, what it takes, and the metadata of the file. Raises MlError and ValueError, before anything is built
    that the file does not hold."""
    from safetensors import SafetensorError, safe_open

    from ml.data.base import InputFormat
    from ml.models import build_model, load_parameters
    from ml.specs.architectures import num_parameters

    input_ = InputFormat.from_mapping(_read_mapping(info.input, "input"))
    model_, shape, num_classes = _read_mapping(info.model, "model"), input_.shape, len(info.classes)
    if (expected := num_parameters(model_, shape, num_classes)) > info.bytes:
        raise ValueError(f"expected a file of {expected:,} parameters, got one of {info.bytes:,} bytes")
    model = build_model(model_, shape, num_classes, plugins=plugins)
    try:
        with safe_open(file, framework="np") as opened:
            load_parameters(model, {name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118 (no mapping)
            metadata = opened.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"not a readable file of a model: {error}") from error
    return model, input_, {key: value for key, value in metadata.items() if key.startswith("fednode.")}


def _read_mapping(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{what}: nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"{what}: expected a mapping, got {type(value).__name__}")
    return value
