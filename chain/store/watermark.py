"""The watermark of a store: a small file beside the database that says how far it had come. It shows when the database
has lost its end.

SQLite drops what is torn at the end of its write-ahead log as if it had never been committed, and an old copy of a
database opens like any other. Either way the node would sign a second time what it has signed already. So each commit
writes to the file how far the database is, and at a start the two are compared.

The file is not synced, as that would double the cost of a commit. After a power cut it may be behind the database,
which says nothing; it is never ahead of one that is whole.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from chain.errors import StoreError
from chain.store.blob_files import translated_os_errors

WATERMARK = "watermark"

_FIELDS = struct.Struct(">QQQ")


@dataclass(frozen=True, slots=True)
class Mark:
    """The progress of a store: the head's height, the highest height that anything was signed for, and the number of
    signed rows."""

    height: int = 0
    signed_height: int = 0
    num_signed: int = 0

    def is_ahead_of(self, other: Mark) -> bool:
        """Says whether `other` lacks blocks or signed rows that this mark counts."""
        return self.height > other.height or self.num_signed > other.num_signed

    def encode(self) -> bytes:
        data = _FIELDS.pack(self.height, self.signed_height, self.num_signed)
        return data + hashlib.sha256(data).digest()


def read_mark(directory: Path) -> Mark | None:
    """Returns the mark in a directory, None if there is none or a power cut has torn it. Raises StoreError."""
    path = directory / WATERMARK
    with translated_os_errors(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    mark = Mark(*_FIELDS.unpack_from(data)) if len(data) >= _FIELDS.size else Mark()
    return mark if data == mark.encode() else None


def write_mark(directory: Path, mark: Mark) -> None:
    """Overwrites the mark in place: a process that is killed has written all of it or nothing of it. Raises
    StoreError."""
    path = directory / WATERMARK
    with translated_os_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            data = mark.encode()
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)


def describe_loss(database: Path, kept: Mark, found: Mark) -> str:
    """Describes what a database lacks that is behind its watermark."""
    return (
        f"{database}: expected height {kept.height} and {kept.num_signed} signed rows, as {WATERMARK} beside it says, "
        f"got height {found.height} and {found.num_signed}: "
        "the end of its write-ahead log is gone, or it is an old copy"
    )


class Watermark:
    """The mark of an open store. `found` is how far its database is; `lost` what the mark had beyond that, if anything.

    After a loss nothing may be signed up to `silent_until`: it may have been signed already (PROTOCOL §4).
    """

    def __init__(self, directory: Path, found: Mark) -> None:
        self._directory = directory
        self._mark = found
        kept = read_mark(directory)
        self.lost = kept if kept is not None and kept.is_ahead_of(found) else None
        if self.lost is None and kept != found:
            write_mark(directory, found)

    def __repr__(self) -> str:
        mark = self._mark
        return f"Watermark(height={mark.height}, signed_height={mark.signed_height}, lost={self.lost is not None})"

    @property
    def found(self) -> Mark:
        return self._mark

    @property
    def silent_until(self) -> int:
        """The height up to which nothing may be signed, 0 if nothing was lost."""
        return 0 if self.lost is None else max(self.lost.height, self.lost.signed_height)

    def check(self, height: int, what: str) -> None:
        """Raises StoreError if a signed row for this height may have been lost."""
        if height <= self.silent_until:
            raise StoreError(f"{what}: nothing is signed up to height {self.silent_until}, as signed rows were lost")

    def on_signed(self, height: int) -> None:
        mark = self._mark
        self._move(Mark(mark.height, max(mark.signed_height, height), mark.num_signed + 1))

    def on_block(self, height: int) -> None:
        mark = self._mark
        self._move(Mark(height, mark.signed_height, mark.num_signed))

    def _move(self, mark: Mark) -> None:
        self._mark = mark
        if mark.height >= self.silent_until:
            self.lost = None
            write_mark(self._directory, mark)
