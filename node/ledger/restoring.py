"""Restores a data directory from a backup, so that the node that starts on it cannot contradict itself.

Everything is verified before anything is written. The files are made in a folder within the directory, where the
database is marked as restored: a node that finds this mark signs nothing until it has caught up and two heights have
passed without it. The database is moved to its place last, so that it is never there without the mark. The next restore
removes what an interrupted one left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from chain.errors import ChainError
from chain.genesis import Genesis
from chain.store.blob_files import sync_directory
from chain.store.interface import RESTORED, Faults
from chain.store.rows import DATABASE, lock_directory
from chain.store.sqlite import SqliteStore
from node.errors import ConfigError, NodeError, VerificationFailed
from node.ledger.backup import Manifest, Member, OnProgress, ignore_progress, read_archive

UNFINISHED = ".restoring"  # in the data directory, until the restore is complete
SPARE_BYTES = 16 << 20  # free disk, beyond the files themselves
_LOCK = "lock"


def restore(
    file: Path,
    data_dir: Path,
    genesis: Genesis | None = None,
    on_progress: OnProgress = ignore_progress,
    faults: Faults | None = None,
) -> Manifest:
    """Restores a backup of the chain of `genesis`, if that is set, into `data_dir`, which has to be empty. Raises
    VerificationFailed, ConfigError or NodeError; nothing has been restored then. `faults` is called after every durable
    step."""
    reach = faults or (lambda step: None)
    manifest = read_archive(file, on_progress)
    if genesis is not None and manifest.chain_id != genesis.chain_id.hex():
        raise ConfigError(
            f"{file}: expected a backup of the chain of the configuration's genesis, {genesis.chain_id.hex()}, got one "
            f"of {manifest.chain_name}, {manifest.chain_id}"
        )
    with _empty_directory(data_dir) as unfinished:
        _check_room(manifest, unfinished)
        _extract(file, manifest, unfinished, on_progress)
        reach("restore.written")
        _mark(file, manifest, unfinished)
        reach("restore.marked")
        _move(unfinished, data_dir, reach)
    return manifest


@contextmanager
def _empty_directory(data_dir: Path) -> Iterator[Path]:
    """Makes the folder for the restore, in a directory that no node can start in meanwhile. Removes both on failure."""
    was_there = data_dir.is_dir()
    unfinished = data_dir / UNFINISHED
    with ExitStack() as stack:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = lock_directory(data_dir, readonly=False)
        except ChainError as error:
            raise NodeError(str(error)) from error
        if lock is not None:
            stack.callback(os.close, lock)
        _sweep(data_dir)
        try:
            unfinished.mkdir(mode=0o700)
            yield unfinished
        except BaseException:
            if not (data_dir / DATABASE).exists():
                _sweep(data_dir)
                if not was_there:
                    shutil.rmtree(data_dir, ignore_errors=True)
            raise


def _sweep(data_dir: Path) -> None:
    """Removes what an interrupted restore left. Raises NodeError where there is anything else."""
    found = {path.name for path in data_dir.iterdir()} - {_LOCK}
    if found and (UNFINISHED not in found or DATABASE in found):
        raise NodeError(f"{data_dir}: expected an empty directory, got {', '.join(sorted(found)[:5])}")
    for name in sorted(found - {UNFINISHED}) + sorted(found & {UNFINISHED}):  # last, as it marks the rest as ours
        path = data_dir / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _check_room(manifest: Manifest, folder: Path) -> None:
    free, needed = shutil.disk_usage(folder).free, manifest.num_bytes + SPARE_BYTES
    if free < needed:
        raise NodeError(f"{folder.parent}: expected {needed} bytes of free disk for this backup, got {free}")


def _extract(file: Path, manifest: Manifest, folder: Path, on_progress: OnProgress) -> None:
    """Writes each file durably, and checks its bytes once more meanwhile."""
    directories = {folder}
    out: IO[bytes] | None = None

    def on_data(member: Member, data: bytes) -> None:
        nonlocal out
        if out is None:
            out = _create(folder / member.name)
            directories.update((folder / member.name).parents[: member.name.count("/") + 1])
        out.write(data)
        if not data:
            out.flush()
            os.fsync(out.fileno())
            out.close()
            out = None

    try:
        if read_archive(file, on_progress, on_data) != manifest:
            raise VerificationFailed(f"{file}: it changed while it was read")
    finally:
        if out is not None:
            out.close()
    for directory in sorted(directories, reverse=True):
        sync_directory(directory)


def _create(path: Path) -> IO[bytes]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")


def _mark(file: Path, manifest: Manifest, folder: Path) -> None:
    """Checks the database as at any start, and marks it as restored."""
    try:
        stored = SqliteStore.stored_genesis(folder)
        if stored is None:
            raise VerificationFailed(f"{file}: its database is empty")
        genesis = Genesis.from_mapping(stored)
        if genesis.chain_id.hex() != manifest.chain_id:
            raise VerificationFailed(f"{file}: its database is of chain {genesis.chain_id.hex()}, not its manifest's")
        with SqliteStore.open(folder, genesis) as store:
            found = store.head_height, store.head().block.id.hex()
            if found != (manifest.height, manifest.head):
                raise VerificationFailed(f"{file}: its database ends at height {found[0]}, not as its manifest says")
            store.put_meta(RESTORED, {"until": None})
    except (ChainError, ValueError) as error:
        raise VerificationFailed(f"{file}: its database is damaged: {error}") from error


def _move(unfinished: Path, data_dir: Path, reach: Faults) -> None:
    """Moves the files, the database last: with it the directory is complete."""
    (unfinished / _LOCK).unlink(missing_ok=True)
    for path in sorted(unfinished.iterdir(), key=lambda path: (path.name == DATABASE, path.name)):
        if path.name == DATABASE:
            sync_directory(data_dir)
        path.rename(data_dir / path.name)
        reach("restore.moved")
    sync_directory(data_dir)
    unfinished.rmdir()
