"""Small blobs as rows of the database, each durable in one transaction with what names it.

A file of its own costs a small blob more than its bytes do: an inode, two names and two syncs, where a row costs little
beside the vote or the block that it is written with. Its digest is checked as with files.

SQLite serialises what several threads ask of one connection, so blobs may be read on any thread, as files may; a read
during a commit waits for the disk.
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

SMALL_BLOB_BYTES = 1 << 16  # the largest blob that becomes a row

BlobSource = Path | bytes  # the file of a blob, or its bytes


class WriteBlobs(Protocol):
    """Writes small blobs in the transaction under way."""

    def __call__(self, blobs: Sequence[bytes], *, are_own: bool = False) -> None: ...


class BlobRows(BlobFiles):
    """The blobs of one data directory, rows and files."""

    def __init__(self, path: Path, rows: Rows, *, readonly: bool, faults: Faults | None) -> None:
        BlobFiles.__init__(self, path, readonly=readonly, faults=faults)
        self._rows = rows
        self._new: set[Digest] = set()

    @cached_property
    def _has_rows(self) -> bool:
        """True if the database has a table of blobs. One of an earlier release that was opened read-only has none."""
        return self._rows.has_blobs()

    def write_blobs(self, blobs: Sequence[bytes], *, are_own: bool = False) -> None:
        """Inserts small blobs unless they are held. Runs inside a transaction. `are_own`: this node made them, and
        `take_new_rows` does not return them."""
        for data in blobs:
            digest = hashlib.sha256(data).digest()
            if not super().has_blob(digest):
                cursor = self._rows.connection.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (digest, data))
                if cursor.rowcount and not are_own:
                    self._new.add(digest)

    def take_new_rows(self) -> set[Digest]:
        """Returns the digests of others' blobs that became rows since the last call and were not held before."""
        new, self._new = self._new, set()
        return new

    def has_blob(self, digest: Digest) -> bool:
        return self._read_size(digest) is not None or super().has_blob(digest)

    def blob_size(self, digest: Digest) -> int | None:
        """Returns the bytes of a held blob, None if it is not held."""
        size = self._read_size(digest)
        return super().blob_size(digest) if size is None else size

    def get_blob(self, digest: Digest) -> bytes:
        """Returns the blob's bytes after hashing them again. Raises BlobMissing, or StoreCorrupted naming the place."""
        data = self._read_row(digest)
        return super().get_blob(digest) if data is None else data

    def check_blob(self, digest: Digest) -> None:
        """Hashes the blob where it is stored. Raises BlobMissing, or StoreCorrupted naming the place."""
        if self._read_row(digest) is None:
            super().check_blob(digest)

    def locate_blob(self, digest: Digest) -> BlobSource:
        """Returns the bytes of a blob that is a row after hashing them again, else the path of its file, which may be
        missing. Raises StoreCorrupted naming the place."""
        data = self._read_row(digest)
        return self.blob_path(digest) if data is None else data

    def delete_blob(self, digest: Digest) -> bool:
        """Deletes a blob. Returns False if there was none."""
        was_row = self._read_size(digest) is not None
        if was_row:
            with self._rows.transaction("blobs", f"blob {digest.hex()}") as connection:
                connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
        return super().delete_blob(digest) or was_row

    def held_blobs(self, min_bytes: int = 0) -> Iterator[Digest]:
        """Yields the digests of the held blobs of `min_bytes` and more."""
        if self._has_rows:
            found = self._rows.read("blobs", "SELECT digest FROM blobs WHERE length(data) >= ? ORDER BY 1", min_bytes)
            yield from (digest for (digest,) in found)
        for digest in super().held_blobs(min_bytes):
            if self._read_size(digest) is None:
                yield digest

    def held_files(self) -> Iterator[Digest]:
        """Yields the digests of the blobs that are files."""
        return super().held_blobs()

    def read_rows_of(self, digests: Collection[Digest]) -> list[bytes]:
        """Returns the bytes of those of these blobs that are undamaged rows."""
        found: list[bytes] = []
        for digest in digests:
            with suppress(StoreCorrupted):
                if (data := self._read_row(digest)) is not None:
                    found.append(data)
        return found

    def _read_size(self, digest: Digest) -> int | None:
        """Returns the bytes of a blob that is a row, None if it is not one."""
        if not self._has_rows:
            return None
        query = "SELECT length(data) FROM blobs WHERE digest = ?"
        row = self._rows.read_one(f"blob {digest.hex()}", query, digest)
        return None if row is None else int(row[0])

    def _read_row(self, digest: Digest) -> bytes | None:
        """Returns a blob that is a row after hashing it, None if it is not one. Raises BlobRowCorrupted."""
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
