"""A model that a node has exported: written to a file, or built again by torch."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        """Builds the model from these chunks. It imports a user's module only if that is one of `plugins`. Raises
        MlError and ValueError before it builds anything that the file does not hold, and VerificationFailed where the
        chunks do not have the announced size and digest."""
        from safetensors import SafetensorError, safe_open

        from ml.data.base import InputFormat
        from ml.models import build_model, load_parameters
        from ml.specs.architectures import num_parameters

        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "model.safetensors"
            info = write_model(file, chunks)
            input_ = InputFormat.from_mapping(_read_mapping(info.input, "input"))
            model_, shape, num_classes = _read_mapping(info.model, "model"), input_.shape, len(info.classes)
            if (expected := num_parameters(model_, shape, num_classes)) > info.bytes:
                raise ValueError(f"expected a file of {expected:,} parameters, got one of {info.bytes:,} bytes")
            model = build_model(model_, shape, num_classes, plugins=plugins)
            try:
                with safe_open(file, framework="np") as opened:
                    # safe_open returns no mapping
                    load_parameters(model, {name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
                    metadata = opened.metadata() or {}
            except SafetensorError as error:
                raise ValueError(f"not a readable file of a model: {error}") from error
        return cls(info, model, input_, {key: value for key, value in metadata.items() if key.startswith("fednode.")})


def _read_mapping(text: str, what: str) -> dict[str, Any]:
    """Returns a JSON object. Raises ValueError."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{what}: nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"{what}: expected a mapping, got {type(value).__name__}")
    return value


def write_model(out: Path, chunks: Iterator[pb.ModelChunk]) -> pb.ModelInfo:
    """Writes the chunks into `out`. Raises VerificationFailed where they do not have the announced size and digest,
    NodeError where they cannot be written; then there is no file."""
    from node.pb import admin_pb2 as pb

    digest, size = hashlib.sha256(), 0
    with writing_whole(out, over=True) as file:
        info = next(chunks, pb.ModelChunk()).info
        for chunk in chunks:
            digest.update(chunk.data)
            size += len(chunk.data)
            file.write(chunk.data)
        if (size, digest.hexdigest()) != (info.bytes, info.sha256):
            raise VerificationFailed(
                f"{out}: expected {info.bytes} bytes with SHA-256 {info.sha256}, got {size} with {digest.hexdigest()}"
            )
    return info
