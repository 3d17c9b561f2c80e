"""Blobs of nodes as tests lose and spoil them, wherever they lie: in a row of the database, or in a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from chain.store.rows import DATABASE
from chain.store.sqlite import SqliteStore


def put_rows(store: SqliteStore, blobs: Sequence[bytes]) -> None:
    """Stores blobs as rows, in one transaction of their own."""
    with store.rows.transaction("blobs", "blobs"):
        store.write_blobs(blobs)


def lose_blob(data_dir: Path, digest: bytes) -> None:
    """Removes a blob from a stopped node."""
    with closing(sqlite3.connect(data_dir / DATABASE)) as connection, connection:
        lost = connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,)).rowcount
    file = data_dir / "blobs" / digest.hex()[:2] / digest.hex()
    assert lost or file.exists(), f"{digest.hex()} is not in {data_dir}"
    file.unlink(missing_ok=True)


def is_held(data_dir: Path, digest: bytes) -> bool:
    """Says whether a stopped node holds a blob."""
    with closing(sqlite3.connect(data_dir / DATABASE)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM blobs WHERE digest = ?", (digest,)).fetchone()
    return bool(count) or (data_dir / "blobs" / digest.hex()[:2] / digest.hex()).exists()


def spoil_blob(data_dir: Path, digest: bytes, at: int = -1) -> None:
    """Changes a byte of a blob, in the directory of a stopped node."""
    with closing(sqlite3.connect(data_dir / DATABASE)) as connection, connection:
        _spoil(connection, data_dir / "blobs" / digest.hex()[:2] / digest.hex(), digest, at)


def spoil_held_blob(store: SqliteStore, digest: bytes, at: int = -1) -> None:
    """Changes a byte of a blob in an open store."""
    _spoil(store.rows.connection, store.blob_path(digest), digest, at)


def _spoil(connection: sqlite3.Connection, file: Path, digest: bytes, at: int) -> None:
    row = connection.execute("SELECT data FROM blobs WHERE digest = ?", (digest,)).fetchone()
    data = bytearray(file.read_bytes() if row is None else row[0])
    data[at] ^= 1
    if row is not None:
        connection.execute("UPDATE blobs SET data = ? WHERE digest = ?", (bytes(data), digest))
    else:
        file.chmod(0o600)
        file.write_bytes(data)
