"""Files that are there whole or not at all, under the name that was given."""

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
    """What is written is at `path` once the context is left without an error, and durable; until then it is beside it.
    A file that is there already is written `over`, or refused. `mode` is as the umask leaves it. Raises NodeError where
    this file cannot be written; other errors of the context's body go through as they are."""
    from chain.store.blob_files import sync_directory  # with signatures, which most commands never need

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
                os.link(temporary, path)  # which replaces nothing
    finally:
        with suppress(OSError):
            temporary.unlink()
    with _refused(path):
        sync_directory(path.parent)


class _File(io.FileIO):
    """Open for writing, for the file that will be at `path`. Raises NodeError."""

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
