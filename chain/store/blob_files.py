"""Blobs: content-addressed files under DATA/blobs, named by their SHA-256 (PROTOCOL §10). Small ones are rows where
they come with what names them (`chain.store.blob_rows`).

    blobs/aa/aabbcc...      a whole blob, written under another name first, synced, then renamed
    blobs/tmp/*.tmp         a blob being written; swept at the next start
    blobs/tmp/*.part        a blob being fetched; kept, so that the transfer resumes where it broke off

A file that another process has finished is adopted: hashed, synced and renamed, never read whole.

Nothing here touches the database, so these methods may run on any thread.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chain.block import Digest
from chain.errors import BlobCorrupted, BlobMissing, StoreError, StoreForbidden, StoreFull, ValidationError
from chain.store.interface import Faults

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def translated_os_errors(where: object) -> Iterator[None]:
    """Turns OSError into StoreFull, StoreForbidden or StoreError; `where` is the path that the message names."""
    try:
        yield
    except OSError as error:
        kind = StoreFull if error.errno in _FULL else StoreForbidden if error.errno in _FORBIDDEN else StoreError
        raise kind(f"{where}: {error.strerror or error}") from error


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file(path: Path) -> None:
    """Makes durable the bytes of a file that another process has written."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _hash_file(path: Path) -> Digest:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@contextmanager
def reading_blob(path: Path) -> Iterator[None]:
    """Turns OSError into BlobMissing if there is no such file, else as `translated_os_errors` does."""
    with translated_os_errors(path):
        try:
            yield
        except FileNotFoundError as error:
            raise BlobMissing(f"{path}: no such blob is held") from error


class BlobFiles:
    """The blobs of one data directory. `path` is the data directory; `faults` is called at every durable step."""

    def __init__(self, path: Path, *, readonly: bool, faults: Faults | None) -> None:
        self._blobs = path / "blobs"
        self._partials = self._blobs / "tmp"
        self._readonly = readonly
        self._faults = faults

    def _reach(self, step: str) -> None:
        if self._faults is not None:
            self._faults(step)

    def _refuse_if_readonly(self) -> None:
        if self._readonly:
            raise StoreError(f"{self._blobs.parent}: opened read-only, nothing can be written")

    def _prepare_blobs(self) -> None:
        """Creates the directories and deletes the files that a crash left half written."""
        with translated_os_errors(self._blobs):
            if not self._partials.is_dir():
                self._partials.mkdir(parents=True, exist_ok=True)
                sync_directory(self._blobs)
                sync_directory(self._blobs.parent)
            for temporary in self._partials.glob("*.tmp"):
                temporary.unlink()

    def blob_path(self, digest: Digest) -> Path:
        name = digest.hex()
        return self._blobs / name[:2] / name

    def has_blob(self, digest: Digest) -> bool:
        return self.blob_path(digest).is_file()

    def blob_size(self, digest: Digest) -> int | None:
        """Returns the bytes of a held blob, None if it is not held."""
        try:
            return self.blob_path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def get_blob(self, digest: Digest) -> bytes:
        """Returns the blob's bytes after hashing them again. Raises BlobMissing, or StoreCorrupted naming the file."""
        path = self.blob_path(digest)
        with reading_blob(path):
            data = path.read_bytes()
        _check_digest(path, digest, hashlib.sha256(data).digest())
        return data

    def check_blob(self, digest: Digest) -> None:
        """Hashes the blob without reading it whole. Raises BlobMissing, or StoreCorrupted naming the file."""
        path = self.blob_path(digest)
        with reading_blob(path):
            got = _hash_file(path)
        _check_digest(path, digest, got)

    def put_blob(self, data: bytes) -> Digest:
        """Makes the blob durable and returns its digest. A held blob is kept, a damaged one is written again."""
        (digest,) = self.put_blobs([data])
        return digest

    def put_blobs(self, blobs: Sequence[bytes]) -> list[Digest]:
        """Makes several blobs durable, as `put_blob` does, and returns their digests. Each directory is synced once, at
        the end."""
        self._refuse_if_readonly()
        digests = [hashlib.sha256(data).digest() for data in blobs]
        for digest, data in zip(digests, blobs, strict=True):
            self._reach("blob.begin")
            self._place_blob(digest, data)
        for directory in {self.blob_path(digest).parent for digest in digests}:
            with translated_os_errors(directory):
                sync_directory(directory)  # also for held blobs: a crash may have come between a rename and this
        for _ in digests:
            self._reach("blob.durable")
        return digests

    def _place_blob(self, digest: Digest, data: bytes) -> None:
        """Writes the blob under its final name, which is not durable yet."""
        path = self.blob_path(digest)
        with translated_os_errors(path):
            if path.is_file() and path.stat().st_size == len(data) and _hash_file(path) == digest:
                return
            temporary = self._partials / f"{digest.hex()}.{os.urandom(4).hex()}.tmp"
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    self._reach("blob.written")
                    os.fsync(file.fileno())
                self._reach("blob.synced")
                self._rename(temporary, path, "blob")
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    def adopt_blob(self, source: Path) -> tuple[Digest, int]:
        """Moves a finished file of the same file system among the blobs, durably. Returns its digest and its size in
        bytes.

        The source file is gone afterwards, also if the blob was held already; a damaged one is replaced.
        """
        self._refuse_if_readonly()
        self._reach("adopt.begin")
        with translated_os_errors(source):
            digest, size = _hash_file(source), source.stat().st_size
            path = self.blob_path(digest)
            if path.is_file() and path.stat().st_size == size and _hash_file(path) == digest:
                sync_directory(path.parent)  # as in put_blob
                source.unlink()
                return digest, size
            self._reach("adopt.written")
            _sync_file(source)
            self._reach("adopt.synced")
            self._publish(source, path, "adopt")
        self._reach("adopt.durable")
        return digest, size

    def open_partial(self, digest: Digest, tag: str = "") -> tuple[Path, int]:
        """Returns the file that a fetched blob is appended to, and how many of its bytes are there already.

        `tag` separates the transfers of one blob that follow different lists of its chunks.
        """
        self._refuse_if_readonly()
        path = self._partial_path(digest, tag)
        with translated_os_errors(path):
            path.touch()
            return path, path.stat().st_size

    def commit_partial(self, digest: Digest, tag: str = "") -> None:
        """Checks a fetched blob and makes it durable. Raises ValidationError, and deletes the file, if its digest is
        another one."""
        self._refuse_if_readonly()
        partial, path = self._partial_path(digest, tag), self.blob_path(digest)
        self._reach("fetch.begin")
        with translated_os_errors(partial):
            got = _hash_file(partial)
            if got != digest:
                partial.unlink()
                raise ValidationError.differs("fetched blob", digest, got)
            self._reach("fetch.written")
            _sync_file(partial)
            self._reach("fetch.synced")
            self._publish(partial, path, "fetch")
        self._reach("fetch.durable")

    def drop_partial(self, digest: Digest) -> None:
        """Deletes all that was fetched of a blob, as when it grew past its declared size."""
        for partial in self._partials.glob(f"{digest.hex()}*.part"):
            partial.unlink(missing_ok=True)

    def delete_blob(self, digest: Digest) -> bool:
        """Deletes a blob. Returns False if there was none."""
        self._refuse_if_readonly()
        path = self.blob_path(digest)
        with translated_os_errors(path):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            return True

    def held_blobs(self, min_bytes: int = 0) -> Iterator[Digest]:
        """Yields the digests of the held blobs of `min_bytes` and more, by the names of their files."""
        for directory in sorted(self._blobs.glob("[0-9a-f][0-9a-f]")):
            with os.scandir(directory) as entries:
                found = [entry.path for entry in entries if min_bytes == 0 or entry.stat().st_size >= min_bytes]
            for path in map(Path, sorted(found)):
                with suppress(ValueError):  # a foreign file is not ours to touch
                    digest = bytes.fromhex(path.name)
                    if path == self.blob_path(digest):
                        yield digest

    def partial_blobs(self) -> Iterator[Digest]:
        """Yields the digests of the blobs that are held in part, by the names of their files."""
        for path in sorted(self._partials.glob("*.part")):
            with suppress(ValueError):
                yield bytes.fromhex(path.name.partition(".")[0])

    def prune_blobs(self, keep: Collection[Digest]) -> int:
        """Deletes every blob, whole or partial, that is not in `keep` (a set, if large). Returns how many whole blobs
        it deleted."""
        self._refuse_if_readonly()
        doomed = [digest for digest in self.held_blobs() if digest not in keep]
        for digest in doomed:
            self.delete_blob(digest)
        kept_names = {digest.hex() for digest in keep}
        for partial in self._partials.glob("*.part"):
            if partial.name.partition(".")[0] not in kept_names:
                partial.unlink(missing_ok=True)
        return len(doomed)

    def _partial_path(self, digest: Digest, tag: str = "") -> Path:
        name = f"{digest.hex()}.{tag}" if tag else digest.hex()
        return self._partials / f"{name}.part"

    def _publish(self, source: Path, path: Path, what: str) -> None:
        """Renames a synced file to its final name, durably. `what` begins the names of its steps for `faults`."""
        self._rename(source, path, what)
        sync_directory(path.parent)

    def _rename(self, source: Path, path: Path, what: str) -> None:
        """Renames a synced file to its final name."""
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
            sync_directory(self._blobs)
        source.replace(path)
        self._reach(f"{what}.renamed")


def _check_digest(path: Path, expected: Digest, got: Digest) -> None:
    if got != expected:
        raise BlobCorrupted.differs(f"{path}: sha256 of the bytes", expected, got)
