"""Small files beside the store that must be whole, durable and readable by their owner alone."""

from __future__ import annotations

from pathlib import Path

from node.errors import NodeError
from node.host.whole_file import writing_whole

MAX_BYTES = 1 << 20


def write_private(path: Path, data: bytes) -> None:
    """Replaces the content of `path` by `data`, mode 0600, all of it or nothing. Raises NodeError."""
    with writing_whole(path, over=True, mode=0o600) as file:
        file.write(data)


def read_private(path: Path) -> bytes | None:
    """Returns the content of `path`, None if there is no such file. Raises NodeError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NodeError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > MAX_BYTES:
        raise NodeError(f"{path}: expected at most {MAX_BYTES} bytes")
    return data


def remove_private(path: Path) -> None:
    """Removes the file durably, if there is one. Raises NodeError."""
    from chain.store.blob_files import sync_directory  # imports signatures, which most callers never need

    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise NodeError(f"{path}: cannot be removed ({error.strerror})") from error


def make_private_folder(path: Path) -> None:
    """Makes a folder with mode 0700. Raises NodeError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NodeError(f"{path}: cannot be made ({error.strerror})") from error
