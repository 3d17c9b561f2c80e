"""One SQLite connection whose every row carries a SHA-256 of its key and its bytes.

SQLite checks the shape of its pages but not their content, so the digest is what finds a flipped byte, and says in
which row. It guards against faults, not against a person who can rewrite it: `chain.audit.verify_chain` checks a chain
from genesis alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from chain.block import Block, Digest
from chain.codec import encode_block
from chain.errors import (
    DecodeError,
    StoreCorrupted,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreLocked,
    StoreMismatch,
)
from chain.genesis import Genesis
from chain.state import State
from chain.store.interface import Faults

SCHEMA_VERSION = 3
WITHOUT_BLOBS = 2  # the schema before, which is updated when the database is opened
APPLICATION_ID = 0x666E6F64  # "fnod"
DATABASE = "chain.db"
GENESIS, HEAD = b"genesis", b"head"
_IN_USE = "in use by another process; ask the running node, or stop it first"

BLOBS = "CREATE TABLE blobs (digest BLOB PRIMARY KEY, data BLOB NOT NULL)"
SCHEMA = (
    BLOBS,
    "CREATE TABLE meta (key BLOB PRIMARY KEY, value BLOB NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE blocks (height INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, block BLOB NOT NULL,"
    " certificate BLOB NOT NULL, block_digest BLOB NOT NULL, certificate_digest BLOB NOT NULL)",
    "CREATE TABLE states (height INTEGER PRIMARY KEY, state BLOB NOT NULL, digest BLOB NOT NULL)",
    "CREATE TABLE signed (height INTEGER, kind INTEGER, view INTEGER, phase INTEGER, data BLOB NOT NULL,"
    " digest BLOB NOT NULL, PRIMARY KEY (height, kind, view, phase)) WITHOUT ROWID",
    "CREATE TABLE locked (height INTEGER, block_id BLOB, block BLOB NOT NULL, digest BLOB NOT NULL,"
    " PRIMARY KEY (height, block_id))",
    "CREATE TABLE prevotes (height INTEGER, view INTEGER, voter BLOB, vote BLOB NOT NULL, digest BLOB NOT NULL,"
    " PRIMARY KEY (height, view, voter)) WITHOUT ROWID",
    "CREATE TABLE evidence (height INTEGER, author BLOB, kind INTEGER, evidence BLOB NOT NULL, digest BLOB NOT NULL,"
    " PRIMARY KEY (height, author, kind))",
    "CREATE TABLE consent (number INTEGER PRIMARY KEY, change_id BLOB, kind INTEGER, key BLOB, data BLOB NOT NULL,"
    " digest BLOB NOT NULL, UNIQUE (change_id, kind, key))",
    "CREATE TABLE rounds (height INTEGER PRIMARY KEY, record BLOB NOT NULL, digest BLOB NOT NULL)",
)

Value = int | bytes
_Decoded = TypeVar("_Decoded")


def compute_row_digest(table: str, *values: Value) -> Digest:
    """Returns the SHA-256 of a row's key and bytes, each with its length; integers as eight bytes."""
    hasher = hashlib.sha256()
    for value in (table.encode(), *values):
        data = value if isinstance(value, bytes) else value.to_bytes(8, "big")
        hasher.update(len(data).to_bytes(4, "big"))
        hasher.update(data)
    return hasher.digest()


def is_intact(table: str, values: Sequence[object], digest: object) -> bool:
    """Says whether a row matches its digest. It checks types too: a flipped byte may have changed the type of a
    column."""
    known: list[Value] = []
    for value in values:
        if not isinstance(value, bytes) and not (isinstance(value, int) and value >= 0):
            return False
        known.append(value)
    return compute_row_digest(table, *known) == digest


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turns the errors of SQLite into those of the store. This happens nowhere else."""
    try:
        yield
    except sqlite3.Error as error:
        _refuse(where, error)
    except UnicodeDecodeError as error:  # SQLite quoted a damaged schema in its message
        raise StoreCorrupted(f"{where}: malformed database schema") from error


def _refuse(where: str, error: sqlite3.Error) -> NoReturn:
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    if code == sqlite3.SQLITE_FULL:
        raise StoreFull(f"{where}: {error}") from error
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        raise StoreForbidden(f"{where}: {error}") from error
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        raise StoreLocked(f"{where}: {_IN_USE}") from error
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or extended == sqlite3.SQLITE_IOERR_SHORT_READ:
        raise StoreCorrupted(f"{where}: {error}") from error
    if isinstance(error, sqlite3.OperationalError) and code == sqlite3.SQLITE_ERROR:  # a table is not as we made it
        raise StoreCorrupted(f"{where}: {error}") from error
    raise StoreError(f"{where}: {error}") from error


def lock_directory(path: Path, *, readonly: bool) -> int | None:
    """Locks the data directory: one writer alone, or several readers. The lock ends with the process at the latest.
    Returns its file descriptor, None if there is no lock file."""
    lock = path / "lock"
    try:
        fd = os.open(lock, os.O_RDONLY if readonly else os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None  # a copy of a data directory, without its lock
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if readonly else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise StoreLocked(f"{path}: {_IN_USE}") from error
    return fd


def connect(database: Path, *, readonly: bool) -> sqlite3.Connection:
    """Opens the database; for reading, without changing a byte of it or beside it.

    A node that was killed leaves a WAL. Reading it needs a lock table, which SQLite keeps in the process when locking
    is exclusive. `unix-none` is SQLite's file system without locks: the lock of `lock_directory` replaces them.
    """
    with translated(str(database)):
        if readonly:
            wal = database.with_name(f"{database.name}-wal")
            has_wal = wal.is_file() and wal.stat().st_size > 0
            options = "mode=ro&vfs=unix-none" if has_wal else "mode=ro&immutable=1"
            connection = sqlite3.connect(
                f"{database.absolute().as_uri()}?{options}", uri=True, isolation_level=None, check_same_thread=False
            )
        else:
            connection = sqlite3.connect(database, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            connection.text_factory = bytes  # text is never ours, and damaged text must not fail to decode
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("PRAGMA cell_size_check=ON")
            connection.execute("PRAGMA trusted_schema=OFF")
            if readonly:
                connection.execute("PRAGMA query_only=ON")
            else:
                if connection.execute("PRAGMA journal_mode=WAL").fetchone() != (b"wal",):
                    raise StoreError(f"{database}: the file system cannot keep a write-ahead log")
                connection.execute("PRAGMA synchronous=FULL")
        except BaseException:
            connection.close()
            raise
    return connection


class Rows:
    """The reads and writes of one connection. Each row is checked as it is read, and errors name it."""

    def __init__(
        self, database: Path, connection: sqlite3.Connection, *, readonly: bool = False, faults: Faults | None = None
    ) -> None:
        self.database = database
        self.connection = connection
        self._readonly = readonly
        self._faults = faults

    def where(self, what: str) -> str:
        return f"{self.database}: {what}"

    def read(self, what: str, query: str, *parameters: Value) -> list[tuple[Any, ...]]:
        with translated(self.where(what)):
            return self.connection.execute(query, parameters).fetchall()

    def read_one(self, what: str, query: str, *parameters: Value) -> tuple[Any, ...] | None:
        rows = self.read(what, query, *parameters)
        return rows[0] if rows else None

    @contextmanager
    def transaction(self, name: str, what: str) -> Iterator[sqlite3.Connection]:
        """Runs a transaction, which is durable when it ends. `name` is one of `chain.store.interface.TRANSACTIONS`."""
        if self._readonly:
            raise StoreError(f"{self.where(what)}: opened read-only, nothing can be written")
        faults = self._faults
        if faults is not None:
            faults(f"{name}.begin")
        with translated(self.where(what)):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                if faults is not None:
                    faults(f"{name}.written")
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
        if faults is not None:
            faults(f"{name}.committed")

    def check(self, what: str, table: str, values: Sequence[object], digest: object) -> None:
        if not is_intact(table, values, digest):
            raise StoreCorrupted(self.where(f"{what}: stored bytes do not match their digest"))

    def get_meta(self, key: bytes) -> bytes | None:
        what = key.decode()
        row = self.read_one(what, "SELECT value, digest FROM meta WHERE key = ?", key)
        if row is None:
            return None
        self.check(what, "meta", (key, row[0]), row[1])
        value: bytes = row[0]
        return value

    def set_meta(self, key: bytes, value: bytes) -> None:
        self.connection.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, value, compute_row_digest("meta", key, value))
        )

    def is_empty(self) -> bool:
        """Says whether no table was made yet: a new file, or that of a node killed in its first moment."""
        (tables,) = self.read("schema", "SELECT count(*) FROM sqlite_master")[0]
        return bool(tables == 0)

    def get_identity(self) -> bytes:
        """Returns the canonical genesis that this database was made for. Raises StoreMismatch or StoreCorrupted."""
        with translated(str(self.database)):
            (application_id,) = self.connection.execute("PRAGMA application_id").fetchone()
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if application_id != APPLICATION_ID:
            raise StoreMismatch.differs(self.where("application id"), APPLICATION_ID, application_id)
        if version == 1:
            raise StoreMismatch(
                f"{self.database}: its chain is of protocol 1, that of releases up to 0.2: go on with such a release, "
                "or begin a new chain in an empty data directory"
            )
        if version not in (SCHEMA_VERSION, WITHOUT_BLOBS):
            raise StoreMismatch.differs(self.where("schema version"), SCHEMA_VERSION, version)
        genesis = self.get_meta(GENESIS)
        if genesis is None:
            raise StoreCorrupted(self.where("genesis: missing"))
        return genesis

    def has_blobs(self) -> bool:
        """Says whether there is a table of blobs. A database of an earlier release that was opened read-only has
        none."""
        (count,) = self.read("schema", "SELECT count(*) FROM sqlite_master WHERE name = 'blobs'")[0]
        return bool(count)

    def add_blobs(self) -> None:
        """Updates a database of the schema before. Runs inside a transaction."""
        self.connection.execute(BLOBS)
        self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def list_tables(self) -> list[str]:
        """Returns the names of the tables of the schema."""
        return [statement.split()[2] for statement in SCHEMA]

    def insert_block(self, block: Block, certificate: bytes) -> None:
        data = encode_block(block)
        self.connection.execute(
            "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)",
            (
                block.height,
                block.id,
                data,
                certificate,
                compute_row_digest("block", block.height, block.id, data),
                compute_row_digest("certificate", block.height, certificate),
            ),
        )

    def insert_state(self, height: int, state: State) -> None:
        data = state.canonical
        self.connection.execute(
            "INSERT INTO states VALUES (?, ?, ?)", (height, data, compute_row_digest("states", height, data))
        )

    def set_head(self, block: Block) -> None:
        self.set_meta(HEAD, block.height.to_bytes(8, "big") + block.id)

    def create(self, genesis: Genesis) -> None:
        """Writes every table, genesis and block 0. Runs inside a transaction."""
        for statement in SCHEMA:
            self.connection.execute(statement)
        self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self.set_meta(GENESIS, genesis.canonical)
        self.insert_block(genesis.block0, b"")
        self.insert_state(0, genesis.state)
        self.set_head(genesis.block0)


def decode_stored(where: str, decode: Callable[[bytes], _Decoded], data: bytes) -> _Decoded:
    try:
        return decode(data)
    except DecodeError as error:
        raise StoreCorrupted(f"{where}: {error}") from error
