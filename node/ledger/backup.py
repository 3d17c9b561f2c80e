"""The backup of a data directory: one tar file, a manifest first, then each file that the manifest names.

The manifest has the size and the SHA-256 of each file, in the order of the archive. Nothing in the backup depends on
when or where it was written: the same content makes the same bytes. A reader computes what each header must be, so that
a backup can hold no other kind of entry and no other name. Files that can be made again are left out: the watermark,
which follows from the database, and partial blobs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

from chain.block import Id
from chain.genesis import Genesis
from chain.store.blob_files import sync_directory
from chain.store.copying import copy_database
from chain.store.rows import DATABASE, HEAD, Rows, connect
from chain.store.sqlite import SqliteStore
from node.errors import NodeError, VerificationFailed
from node.training.checkpoint import CHECKPOINTS
from node.training.data_watch import DATA_FILE
from node.training.own_split import SEED_FILE, SPLIT_FILE
from node.training.privacy_ledger import PRIVACY_FILE

VERSION = 1  # the format's
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20
MAX_MEMBERS = 1 << 20
CHUNK_BYTES = 1 << 20
END = bytes(2 * tarfile.BLOCKSIZE)

SITE_CONFIG, SITE_KEY, SITE_SPARE_KEY = "site/node.yaml", "site/node.key", "site/node.key.next"
SMALL_FILES = (
    "addresses.json",
    "bans.json",
    DATA_FILE,
    "paused.json",
    PRIVACY_FILE,
    SEED_FILE,
    SPLIT_FILE,
    "tokens.json",
)  # of tokens only digests are kept

_BLOB = re.compile(r"blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_CHECKPOINT = re.compile(r"checkpoints/run-[0-9]{1,10}/[a-z]{1,32}(-[0-9]{1,10})?\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")

OnProgress = Callable[[float, str], None]  # the share that is done, and the name of the step


def ignore_progress(done: float, what: str) -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file in a backup."""

    name: str
    size: int
    sha256: str

    @classmethod
    def of_manifest(cls, data: bytes) -> Self:
        return cls(MANIFEST, len(data), hashlib.sha256(data).hexdigest())

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _is_known(self.name):
            raise VerificationFailed(f"expected only files of a data directory, got {str(self.name)[:100]!r}")
        if not isinstance(self.size, int) or isinstance(self.size, bool) or not 0 <= self.size < 1 << 63:
            raise VerificationFailed(f"{self.name}: expected a size, got {str(self.size)[:100]!r}")
        if not isinstance(self.sha256, str) or not _SHA256.fullmatch(self.sha256):
            raise VerificationFailed(f"{self.name}: expected a SHA-256, got {str(self.sha256)[:100]!r}")
        if (blob := _BLOB.fullmatch(self.name)) is not None and blob[2] != self.sha256:
            raise VerificationFailed(f"{self.name}: expected the SHA-256 of its name, got {self.sha256}")


def _is_known(name: str) -> bool:
    if name in (MANIFEST, DATABASE, SITE_CONFIG, SITE_KEY, SITE_SPARE_KEY, *SMALL_FILES):
        return True
    return _BLOB.fullmatch(name) is not None or _CHECKPOINT.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a backup: its chain, the height and id of the head, and each file. Raises VerificationFailed."""

    chain_id: str
    chain_name: str
    height: int
    head: str
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        if len(names) > MAX_MEMBERS or len(set(names)) != len(names) or DATABASE not in names or MANIFEST in names:
            raise VerificationFailed(f"expected each file once, {DATABASE} among them, got {len(names)} names")

    @property
    def num_bytes(self) -> int:
        return sum(member.size for member in self.members)

    def encode(self) -> bytes:
        tree = {"version": VERSION, **asdict(self)}
        return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decodes a manifest. Raises VerificationFailed."""
        try:
            tree: Any = json.loads(data.decode("ascii"))
            version = tree.pop("version")
            if version != VERSION:
                raise VerificationFailed(f"expected version {VERSION} of the format, got {str(version)[:20]}")
            members = tuple(Member(**entry) for entry in tree.pop("members"))
            for name, kind in (("chain_id", str), ("chain_name", str), ("height", int), ("head", str)):
                if type(tree[name]) is not kind:
                    raise VerificationFailed(f"{name}: expected another kind of value")
            manifest = cls(members=members, **tree)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise VerificationFailed("expected a manifest, got something else") from error
        if manifest.encode() != data:
            raise VerificationFailed("expected the manifest as a backup writes it, got another spelling")
        return manifest


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a backup as they lie on this disk, by name."""

    manifest: Manifest
    paths: dict[str, Path]

    def read(self) -> Iterator[bytes]:
        """Yields the bytes of all members as they lie in the archive, in the manifest's order. Raises NodeError where a
        file changes."""
        for member in self.manifest.members:
            yield from frame(member, _read_file(self.paths[member.name], member.size))


def frame(member: Member, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields one file as it lies in a tar archive: header, bytes, zeros up to the next block."""
    yield make_header(member.name, member.size)
    yield from chunks
    yield bytes(-member.size % tarfile.BLOCKSIZE)


def make_header(name: str, size: int) -> bytes:
    """Returns the only header that a file of this name and size may have in a backup."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.GNU_FORMAT)


def take_snapshot(
    store: SqliteStore, genesis: Genesis, folder: Path, on_progress: OnProgress = ignore_progress
) -> Snapshot:
    """Copies all that a store's data directory holds now into `folder`, which is empty: a copy of the database, links
    to blobs, and copies of the rest. Raises ChainError or OSError.

    The database comes first: a file that it names and that is deleted meanwhile is not needed to continue from its
    head.
    """
    copy = folder / DATABASE
    copy_database(store, copy, lambda done: on_progress(done / 2, "database"))
    paths = {DATABASE: copy}
    for name in _find_files(store):
        with suppress(FileNotFoundError):  # deleted meanwhile
            paths[name] = _hold(store.path / name, folder / name)
    total, done, members = sum(path.stat().st_size for path in paths.values()), 0, []
    for name in sorted(paths):
        digest, size = hashlib.sha256(), 0
        for chunk in _read_file(paths[name]):
            digest.update(chunk)
            size += len(chunk)
            on_progress(0.5 + min(done + size, total) / total / 2, "digests")
        done += size
        members.append(Member(name, size, digest.hexdigest()))
    height, head = _read_head(copy)
    return Snapshot(Manifest(genesis.chain_id.hex(), genesis.chain_name, height, head.hex(), tuple(members)), paths)


def _find_files(store: SqliteStore) -> Iterator[str]:
    """Yields the names of all files to keep beside the database."""
    yield from (name for name in SMALL_FILES if (store.path / name).is_file())
    for path in (store.path / CHECKPOINTS).glob("*/*.safetensors"):
        if _CHECKPOINT.fullmatch(name := f"{CHECKPOINTS}/{path.parent.name}/{path.name}"):
            yield name
    for digest in store.held_files():
        yield f"blobs/{digest.hex()[:2]}/{digest.hex()}"


def _hold(path: Path, held: Path) -> Path:
    """Returns a path at which the file's bytes will not change. A link is enough, as a blob never changes and other
    files are replaced whole. Where no link can be made, it is the file's own path."""
    held.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, held)
    except FileNotFoundError:
        raise
    except OSError:  # on another file system, or on one without links
        return path
    return held


def _read_head(database: Path) -> tuple[int, Id]:
    with closing(connect(database, readonly=True)) as connection:
        value = Rows(database, connection).get_meta(HEAD)
    if value is None or len(value) != 40:
        raise VerificationFailed(f"{database}: expected a head, got none")
    return int.from_bytes(value[:8], "big"), value[8:]


def _read_file(path: Path, size: int | None = None) -> Iterator[bytes]:
    """Yields the bytes of a file. Raises NodeError where it does not have `size` bytes."""
    count = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            count += len(chunk)
            yield chunk
    if size is not None and count != size:
        raise NodeError(f"{path}: expected {size} bytes, got {count}: it changed while it was read")


# ---- writing


def write_archive(
    file: Path,
    manifest: Manifest,
    body: Iterable[bytes],
    site: Mapping[str, bytes],
    on_progress: OnProgress = ignore_progress,
) -> Manifest:
    """Writes a backup, mode 0600, which has its name only once it is whole and was read back. `site` are files beside
    the data directory, by name. Returns its manifest. Raises NodeError or OSError."""
    added = tuple(Member(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in sorted(site.items()))
    manifest = replace(manifest, members=(*manifest.members, *added))
    unfinished = file.with_name(f".{file.name}.part")
    with _locked_file(unfinished) as out:
        for chunk in _frame_all(manifest, body, [(member, site[member.name]) for member in added]):
            out.write(chunk)
            on_progress(min(1.0, out.tell() / max(1, manifest.num_bytes)), "archive")
        out.flush()
        os.fsync(out.fileno())
        read_archive(unfinished, on_progress)
        _publish(unfinished, file)
        sync_directory(file.absolute().parent)
    return manifest


def _publish(unfinished: Path, file: Path) -> None:
    """Moves the finished backup to its name. Raises NodeError where there is a file of that name."""
    try:
        os.link(unfinished, file)
    except FileExistsError as error:
        raise NodeError(f"{file}: expected no file, as nothing is written over") from error
    except OSError:  # a file system without links
        unfinished.rename(file)
    else:
        unfinished.unlink()


def _frame_all(manifest: Manifest, body: Iterable[bytes], added: Iterable[tuple[Member, bytes]]) -> Iterator[bytes]:
    encoded = manifest.encode()
    yield from frame(Member.of_manifest(encoded), [encoded])
    yield from body
    for member, data in added:
        yield from frame(member, [data])
    yield END


@contextmanager
def _locked_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file that only this process writes, and deletes it on failure."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w+b") as file:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeError(f"{path}: another backup is being written there") from error
        try:  # the lock is ours from here on
            os.fchmod(fd, 0o600)
            file.truncate()
            yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise


# ---- reading

OnData = Callable[[Member, bytes], None]  # called for each member in order, with empty bytes at its end


def read_archive(file: Path, on_progress: OnProgress = ignore_progress, on_data: OnData | None = None) -> Manifest:
    """Reads a backup whole, and checks every byte of it. Raises VerificationFailed or OSError."""
    with file.open("rb") as stream:
        try:
            return _Reader(stream, on_progress).read(on_data)
        except VerificationFailed as error:
            raise VerificationFailed(f"{file}: not a whole backup: {error}") from error


class _Reader:
    """Reads an archive once, from start to end."""

    def __init__(self, stream: IO[bytes], on_progress: OnProgress) -> None:
        self._stream = stream
        self._on_progress = on_progress
        self._size = max(1, os.fstat(stream.fileno()).st_size)

    def read(self, on_data: OnData | None) -> Manifest:
        manifest = Manifest.decode(self._read_manifest())
        for member in manifest.members:
            self._read_member(member, on_data)
        if self._take(len(END), "its end") != END or self._stream.read(1):
            raise VerificationFailed("expected its end after the last file")
        return manifest

    def _read_manifest(self) -> bytes:
        header = self._take(tarfile.BLOCKSIZE, "a manifest")
        try:
            size = tarfile.TarInfo.frombuf(header, "ascii", "strict").size
        except (tarfile.HeaderError, ValueError) as error:
            raise VerificationFailed("expected a tar archive with a manifest") from error
        if not 0 < size <= MAX_MANIFEST_BYTES or header != make_header(MANIFEST, size):
            raise VerificationFailed(f"expected a manifest of at most {MAX_MANIFEST_BYTES} bytes first")
        data = self._take(size, "the manifest")
        self._skip_padding(size)
        return data

    def _read_member(self, member: Member, on_data: OnData | None) -> None:
        if self._take(tarfile.BLOCKSIZE, member.name) != make_header(member.name, member.size):
            raise VerificationFailed(f"{member.name}: expected the header of a plain file of {member.size} bytes")
        digest, left = hashlib.sha256(), member.size
        while left:
            chunk = self._take(min(left, CHUNK_BYTES), member.name)
            digest.update(chunk)
            left -= len(chunk)
            if on_data is not None:
                on_data(member, chunk)
            self._on_progress(min(1.0, self._stream.tell() / self._size), "files" if on_data else "digests")
        if digest.hexdigest() != member.sha256:
            raise VerificationFailed(f"{member.name}: expected SHA-256 {member.sha256}, got {digest.hexdigest()}")
        if on_data is not None:
            on_data(member, b"")
        self._skip_padding(member.size)

    def _skip_padding(self, size: int) -> None:
        if any(self._take(-size % tarfile.BLOCKSIZE, "zeros")):
            raise VerificationFailed("expected zeros between two files")

    def _take(self, size: int, what: str) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise VerificationFailed(f"it ends within {what}")
        return data
