"""The state of a simulation between two rounds, in a file, from which a run that was killed resumes.

A state is a tree of dictionaries, lists, numbers, texts, bytes and arrays. In the file arrays are safetensors', and the
tree around them is JSON in its metadata. The file begins with a digest of the rest, so that an incomplete file is not
used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ml.payload import Array

_log = logging.getLogger(__name__)

MAX_SHARE = 0.05  # share of the time that saving may take
_ARRAY, _BYTES = "array", "bytes"  # types that JSON lacks, each the only key of its object
_DIGEST_BYTES = 32

Tree = Mapping[str, Any]


class StateFile:
    """The file with the saved state of one run. A file with another `name` belongs to another run, and is ignored.
    Saving is due every `every_s` seconds, or less often where it takes long; with 0 after each round."""

    def __init__(self, path: Path, name: str, every_s: float) -> None:
        self.path = path
        self._name = name
        self._every_s = every_s
        self._wait_s = every_s
        self._saved_s = time.monotonic()

    def __repr__(self) -> str:
        return f"StateFile({str(self.path)!r}, every_s={self._every_s})"

    def is_due(self) -> bool:
        return time.monotonic() - self._saved_s >= self._wait_s

    def save(self, tree: Tree) -> None:
        """Writes the file, whole or not at all. If the disk refuses it, logs a warning and goes on."""
        began_s = time.monotonic()
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(encode_tree({"name": self._name, "state": tree}))
            part.replace(self.path)
        except OSError as error:
            _log.warning("%s: cannot be written (%s); the run would begin anew", self.path, error.strerror)
            with suppress(OSError):
                part.unlink(missing_ok=True)
        self._saved_s = time.monotonic()
        self._wait_s = max(self._every_s, (self._saved_s - began_s) / MAX_SHARE) if self._every_s else 0.0

    def load(self) -> Tree | None:
        """Returns the saved state; None where there is no file, or none of this run."""
        try:
            tree = decode_tree(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: cannot be used (%s); the run begins anew", self.path, error)
            return None
        state: Tree | None = tree["state"] if tree.get("name") == self._name else None
        return state

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def encode_tree(tree: Tree) -> bytes:
    """Returns the bytes of a file."""
    arrays: dict[str, Array] = {}

    def take_out(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            name = str(len(arrays))
            arrays[name] = np.asarray(value, order="C")
            return {_ARRAY: name}
        if isinstance(value, bytes):
            return {_BYTES: value.hex()}
        if isinstance(value, Mapping):
            return {key: take_out(own) for key, own in value.items()}
        if isinstance(value, list | tuple):
            return [take_out(own) for own in value]
        return value.item() if isinstance(value, np.generic) else value

    text = json.dumps(take_out(tree))
    body = save(arrays, {"tree": text})
    return hashlib.sha256(body).digest() + body


def decode_tree(data: bytes) -> dict[str, Any]:
    """Returns the tree in a file's bytes. Raises ValueError for bytes that `encode_tree` has not made."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError(f"expected SHA-256 {digest.hex()[:16]} of what follows")
    try:
        header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        arrays = load(body)
    except SafetensorError as error:
        raise ValueError(str(error)) from error

    def put_back(value: Any) -> Any:
        if isinstance(value, list):
            return [put_back(own) for own in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {_ARRAY} and isinstance(value[_ARRAY], str):
            return arrays[value[_ARRAY]]
        if value.keys() == {_BYTES} and isinstance(value[_BYTES], str):
            return bytes.fromhex(value[_BYTES])
        return {key: put_back(own) for key, own in value.items()}

    tree: dict[str, Any] = put_back(json.loads(header["__metadata__"]["tree"]))
    return tree
