"""`fednode model export OUT.onnx`: the model that a node gives, rebuilt by torch and written as ONNX."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

    from ml.errors import MlError
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
            raise NodeError(f"{out}: {error}") from error
    with writing_whole(out, over=True) as file:
        file.write(data)
    return OnnxExport(info, len(data), hashlib.sha256(data).hexdigest(), difference)


def _fills_empty(input_: InputFormat) -> bool:
    """True where a mean stands for an empty cell."""
    return input_.table is not None and input_.table.missing.startswith("mean")


def _rebuild(info: pb.ModelInfo, file: Path, *, plugins: Plugins) -> tuple[Model, InputFormat, dict[str, str]]:
    """The model, what it takes, and the metadata of the file. Raises MlError and ValueError."""
    from safetensors import safe_open

    from ml.data.base import InputFormat
    from ml.models import build_model, load_parameters

    input_ = InputFormat.from_mapping(json.loads(info.input))
    model = build_model(json.loads(info.model), input_.shape, len(info.classes), plugins=plugins)
    with safe_open(file, framework="np") as opened:
        load_parameters(model, {name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118 (no mapping)
        card = {key: value for key, value in opened.metadata().items() if key.startswith("fednode.")}
    return model, input_, card
