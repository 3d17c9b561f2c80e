"""Files that are there whole or not at all: what an operator asked for, under the name that was given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from node.errors import NodeError


@contextmanager
def writing_whole(path: Path, *, over: bool) -> Iterator[IO[bytes]]:
    """What is written is at `path` once the context is left without an error, and durable; until then it is beside it.
    A file that is there already is written `over`, or refused. Raises NodeError."""
    if not over and os.path.lexists(path):
        raise NodeError(f"{path}: expected no such file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if over:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # which replaces nothing
    except OSError as error:
        raise NodeError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
