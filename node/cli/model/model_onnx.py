"""`fednode model export OUT.onnx`: the model that a node gives, rebuilt by torch and written as ONNX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import NodeError

if TYPE_CHECKING:
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
    """Raises NodeError where the packages that write ONNX are not installed."""
    from ml.models import onnx_file

    try:
        onnx_file.require_onnx()
    except onnx_file.OnnxRefused as error:
        raise NodeError(str(error)) from error


def write_onnx(out: Path, chunks: Iterator[pb.ModelChunk], *, plugins: Plugins) -> OnnxExport:
    """Writes the model of these chunks to `out`, whole or not at all. A user's module is imported only where it is one
    of `plugins`. Raises NodeError, and VerificationFailed where the chunks differ from what was announced."""
    import hashlib

    from ml.errors import MlError, show_line
    from ml.models.onnx_file import encode_onnx
    from node.admin.exported_model import RebuiltModel
    from node.host.whole_file import writing_whole

    try:
        built = RebuiltModel.read(chunks, plugins=plugins)
        taken = built.input
        data, difference = encode_onnx(
            built.model, taken.shape, taken.mean, taken.std, built.card, fills=taken.fills_empty
        )
    except (MlError, ValueError) as error:
        raise NodeError(show_line(f"{out}: {error}")) from error
    with writing_whole(out, over=True) as file:
        file.write(data)
    return OnnxExport(built.info, len(data), hashlib.sha256(data).hexdigest(), difference)
