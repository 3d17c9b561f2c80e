"""Small blobs as rows: durable with what names them, read as files are, and no news where they were here before."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from chain.block import PayloadRef
from chain.errors import BlobCorrupted, BlobMissing, StoreError
from chain.store.rows import DATABASE, SCHEMA_VERSION
from chain.store.sqlite import SqliteStore
from support.data.blobs import put_rows
from support.data.chains import make_contribution, make_genesis, make_keys

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
ROW, FILE, OTHER = b"a row", b"a file, and longer", b"another"


def get_digest(data: bytes) -> bytes:
    return sha256(data).digest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "alice"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore.open(path, GENESIS) as opened:
        yield opened


def damage(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path / DATABASE)) as connection:
        connection.execute(statement, values)
        connection.commit()


def test_rows_and_files_are_held_alike(store: SqliteStore) -> None:
    put_rows(store, [ROW])
    store.put_blob(FILE)
    assert [store.get_blob(get_digest(data)) for data in (ROW, FILE)] == [ROW, FILE]
    assert [store.blob_size(get_digest(data)) for data in (ROW, FILE, OTHER)] == [len(ROW), len(FILE), None]
    assert [store.has_blob(get_digest(data)) for data in (ROW, FILE, OTHER)] == [True, True, False]
    assert {*store.held_blobs()} == {get_digest(ROW), get_digest(FILE)}
    assert [*store.held_blobs(len(FILE))] == [*store.held_files()] == [get_digest(FILE)]
    assert store.locate_blob(get_digest(ROW)) == ROW
    assert store.locate_blob(get_digest(FILE)) == store.blob_path(get_digest(FILE))
    for data in (ROW, FILE):
        store.check_blob(get_digest(data))
        assert store.delete_blob(get_digest(data))
        assert not store.delete_blob(get_digest(data))
        with pytest.raises(BlobMissing):
            store.get_blob(get_digest(data))


def test_what_was_here_already_is_no_news_and_neither_is_ones_own(store: SqliteStore) -> None:
    """Else an old blob that others need for an audit would go with a contribution that is left out."""
    store.put_blob(FILE)
    own = make_contribution(GENESIS, KEYS[0], payloads=[PayloadRef(1, get_digest(OTHER), len(OTHER))])
    store.put_contribution(own, [OTHER])
    put_rows(store, [ROW, FILE, OTHER])
    assert store.take_new_rows() == {get_digest(ROW)}
    put_rows(store, [ROW])
    assert store.take_new_rows() == set()
    assert [*store.held_files()] == [get_digest(FILE)]
    assert sum(1 for _ in store.held_blobs()) == 3  # and each of them once


def test_they_outlive_the_process_and_are_pruned_like_files(store: SqliteStore, path: Path) -> None:
    put_rows(store, [ROW, OTHER])
    assert store.prune_blobs({get_digest(ROW)}) == 1
    store.close()
    with SqliteStore.open(path, GENESIS, readonly=True) as reader:
        assert reader.get_blob(get_digest(ROW)) == ROW
        assert not reader.has_blob(get_digest(OTHER))
        with pytest.raises(StoreError, match="opened read-only"):
            put_rows(reader, [OTHER])
        with pytest.raises(StoreError, match="opened read-only"):
            reader.delete_blob(get_digest(ROW))


@pytest.mark.parametrize("value", [b"a raw", 7, "a raw"])
def test_a_row_that_is_not_what_was_written_is_named(path: Path, value: object) -> None:
    with SqliteStore.open(path, GENESIS) as store:
        put_rows(store, [ROW])
    damage(path, "UPDATE blobs SET data = ?", value)
    with SqliteStore.open(path, GENESIS) as store:
        for look in (store.get_blob, store.check_blob, store.locate_blob):
            with pytest.raises(BlobCorrupted, match=f"blob {get_digest(ROW).hex()}: sha256"):
                look(get_digest(ROW))


def test_a_directory_of_the_release_before_is_read_as_it_is_and_gets_its_rows_when_it_is_opened(path: Path) -> None:
    with SqliteStore.open(path, GENESIS) as store:
        store.put_blob(FILE)
    damage(path, "DROP TABLE blobs")
    damage(path, "PRAGMA user_version = 2")
    with SqliteStore.open(path, GENESIS, readonly=True) as reader:
        assert [*reader.held_blobs()] == [get_digest(FILE)]
        assert not reader.has_blob(get_digest(ROW))
        assert reader.get_blob(get_digest(FILE)) == FILE
    for _ in range(2):
        with SqliteStore.open(path, GENESIS) as store:
            put_rows(store, [ROW])
            assert {*store.held_blobs()} == {get_digest(ROW), get_digest(FILE)}
            assert store.rows.read("version", "PRAGMA user_version") == [(SCHEMA_VERSION,)]


def test_a_reset_keeps_those_of_the_newest_contribution_and_is_stopped_by_no_damage(path: Path) -> None:
    refs = [PayloadRef(kind, get_digest(data), len(data)) for kind, data in enumerate((ROW, OTHER), start=1)]
    with SqliteStore.open(path, GENESIS) as store:
        store.put_contribution(make_contribution(GENESIS, KEYS[0], payloads=refs), [ROW, OTHER])
        put_rows(store, [FILE])
    damage(path, "UPDATE blobs SET data = ? WHERE digest = ?", b"else", get_digest(OTHER))
    SqliteStore.reset(path)
    with SqliteStore.open(path, GENESIS) as store:
        assert [*store.held_blobs()] == [get_digest(ROW)]
