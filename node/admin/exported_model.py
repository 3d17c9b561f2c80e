"""A model that a node has exported: written to a file, or built again by torch."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import VerificationFailed
from node.host.whole_file import writing_whole

if TYPE_CHECKING:
    from ml.data.base import InputFormat
    from ml.models import Model
    from ml.plugins import Plugins
    from node.pb import admin_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class RebuiltModel:
    """The model, what it takes, and the metadata of its file."""

    info: pb.ModelInfo
    model: Model
    input: InputFormat
    card: dict[str, str]

    @classmethod
    def read(cls, chunks: Iterator[pb.ModelChunk], *, plugins: Plugins) -> RebuiltModel:
        """The model of these chunks. A user's module is imported only where it is one of `plugins`. Raises MlError and
        ValueError, and VerificationFailed where the chunks are not what was announced."""
        from safetensors import safe_open

        from ml.data.base import InputFormat
        from ml.models import build_model, load_parameters

        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "model.safetensors"
            info = write_model(file, chunks)
            input_ = InputFormat.from_mapping(json.loads(info.input))
            model = build_model(json.loads(info.model), input_.shape, len(info.classes), plugins=plugins)
            with safe_open(file, framework="np") as opened:
                load_parameters(model, {name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118 (no mapping)
                card = {key: value for key, value in opened.metadata().items() if key.startswith("fednode.")}
        return cls(info, model, input_, card)


def write_model(out: Path, chunks: Iterator[pb.ModelChunk]) -> pb.ModelInfo:
    """Puts the chunks into `out`. Raises VerificationFailed where they are not what was announced, NodeError where they
    cannot be written; then there is no file."""
    digest, size = hashlib.sha256(), 0
    with writing_whole(out, over=True) as file:
        info = next(chunks).info
        for chunk in chunks:
            digest.update(chunk.data)
            size += len(chunk.data)
            file.write(chunk.data)
        if (size, digest.hexdigest()) != (info.bytes, info.sha256):
            raise VerificationFailed(
                f"{out}: expected {info.bytes} bytes with SHA-256 {info.sha256}, got {size} with {digest.hexdigest()}"
            )
    return info
