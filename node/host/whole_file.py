"""Files that exist whole or not at all under their name."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from node.errors import NodeError


@contextmanager
def writing_whole(path: Path, *, over: bool, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Writes a file durably, and puts it at `path` when the context ends without an error; until then it lies beside
    it. An existing file is replaced with `over`, else refused. `mode` is subject to the umask. Raises NodeError where
    this file cannot be written; other errors of the context's body pass unchanged."""
    from chain.store.blob_files import sync_directory  # imports signatures, which most commands never need

    if not over and os.path.lexists(path):
        raise NodeError(f"{path}: expected no such file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with _refused(path):
        raw = _File(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), path)
    try:
        with io.BufferedWriter(raw) as file:
            yield file
            file.flush()
            with _refused(path):
                os.fsync(file.fileno())
        with _refused(path):
            if over:
                temporary.replace(path)
            else:
                os.link(temporary, path)  # does not replace a file
    finally:
        with suppress(OSError):
            temporary.unlink()
    with _refused(path):
        sync_directory(path.parent)


class _File(io.FileIO):
    """Writes the file that will be at `path`. Raises NodeError."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, "wb")
        self._path = path

    def write(self, data: Any) -> int:
        with _refused(self._path):
            return super().write(data)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NodeError(f"{path}: cannot be written ({error.strerror})") from error
