"""Small blobs as rows of the database, each durable in one transaction with what names it.

A file of its own costs a small blob more than its bytes do: an inode, two names and two syncs, where a row costs little
beside the vote or the block that it is written with. Whether its bytes are whole its digest says, as with files.

SQLite serialises what several threads ask of one connection, so blobs may be read on any thread, as files may; whoever
asks during a commit waits for the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Protocol

from chain.block import Digest
from chain.errors import BlobRowCorrupted, StoreCorrupted
from chain.store.blob_files import BlobFiles
from chain.store.interface import Faults
from chain.store.rows import Rows

SMALL_BLOB_BYTES = 1 << 16  # what is worth a row, at most

BlobSource = Path | bytes  # a blob where it lies, or whole


class WriteBlobs(Protocol):
    """How small blobs come into the transaction under way."""

    def __call__(self, blobs: Sequence[bytes], *, are_own: bool = False) -> None: ...


class BlobRows(BlobFiles):
    """The blobs of one data directory, rows and files."""

    def __init__(self, path: Path, rows: Rows, *, readonly: bool, faults: Faults | None) -> None:
        BlobFiles.__init__(self, path, readonly=readonly, faults=faults)
        self._rows = rows
        self._new: set[Digest] = set()

    @cached_property
    def _has_rows(self) -> bool:
        """Not in a directory that is read as an earlier release has left it."""
        return self._rows.has_blobs()

    def write_blobs(self, blobs: Sequence[bytes], *, are_own: bool = False) -> None:
        """Insert small blobs, unless they are held. Runs inside a transaction. What is this node's own is nothing that
        `take_new_rows` tells of."""
        for data in blobs:
            digest = hashlib.sha256(data).digest()
            if not super().has_blob(digest):
                cursor = self._rows.connection.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (digest, data))
                if cursor.rowcount and not are_own:
                    self._new.add(digest)

    def take_new_rows(self) -> set[Digest]:
        """What came from others and was written as a row since the last call, and had not been held."""
        new, self._new = self._new, set()
        return new

    def has_blob(self, digest: Digest) -> bool:
        return self._read_size(digest) is not None or super().has_blob(digest)

    def blob_size(self, digest: Digest) -> int | None:
        """Bytes of a held blob; None when it is not held."""
        size = self._read_size(digest)
        return super().blob_size(digest) if size is None else size

    def get_blob(self, digest: Digest) -> bytes:
        """The blob's bytes, hashed again. Raises BlobMissing, or StoreCorrupted naming the place."""
        data = self._read_row(digest)
        return super().get_blob(digest) if data is None else data

    def check_blob(self, digest: Digest) -> None:
        """Hash the blob where it lies. Raises BlobMissing, or StoreCorrupted naming the place."""
        if self._read_row(digest) is None:
            super().check_blob(digest)

    def locate_blob(self, digest: Digest) -> BlobSource:
        """The bytes of a blob that is a row, hashed again; else where its file lies, or would. Raises StoreCorrupted
        naming the place."""
        data = self._read_row(digest)
        return self.blob_path(digest) if data is None else data

    def delete_blob(self, digest: Digest) -> bool:
        """Deletes a blob; false if there was none."""
        was_row = self._read_size(digest) is not None
        if was_row:
            with self._rows.transaction("blobs", f"blob {digest.hex()}") as connection:
                connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
        return super().delete_blob(digest) or was_row

    def held_blobs(self, min_bytes: int = 0) -> Iterator[Digest]:
        """The digests of all blobs held that have so many bytes."""
        if self._has_rows:
            found = self._rows.read("blobs", "SELECT digest FROM blobs WHERE length(data) >= ? ORDER BY 1", min_bytes)
            yield from (digest for (digest,) in found)
        for digest in super().held_blobs(min_bytes):
            if self._read_size(digest) is None:
                yield digest

    def held_files(self) -> Iterator[Digest]:
        """The digests of the blobs that are files."""
        return super().held_blobs()

    def read_rows_of(self, digests: Collection[Digest]) -> list[bytes]:
        """Those of these blobs that are rows, and whole."""
        found: list[bytes] = []
        for digest in digests:
            with suppress(StoreCorrupted):
                if (data := self._read_row(digest)) is not None:
                    found.append(data)
        return found

    def _read_size(self, digest: Digest) -> int | None:
        """None where it is no row."""
        if not self._has_rows:
            return None
        query = "SELECT length(data) FROM blobs WHERE digest = ?"
        row = self._rows.read_one(f"blob {digest.hex()}", query, digest)
        return None if row is None else int(row[0])

    def _read_row(self, digest: Digest) -> bytes | None:
        """None where it is no row."""
        if not self._has_rows:
            return None
        what = f"blob {digest.hex()}"
        row = self._rows.read_one(what, "SELECT data FROM blobs WHERE digest = ?", digest)
        if row is None:
            return None
        data: bytes = row[0] if isinstance(row[0], bytes) else b""  # a flipped bit may make it something else
        got = hashlib.sha256(data).digest()
        if got != digest:
            raise BlobRowCorrupted.differs(self._rows.where(f"{what}: sha256 of the bytes"), digest, got)
        return data
