"""One bit of one column of a database that is all in its main file, as of a disk that rots: `chain verify` finds it."""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
from pathlib import Path
from random import Random

import pytest

from support.federation.real_nodes import run_command

pytestmark = pytest.mark.outer

VECTOR = Path(__file__).parents[1] / "vectors" / "protocol2.tar.xz"
TABLES = ("blobs", "meta", "blocks", "states", "signed", "consent", "rounds")  # those with rows in it
FLIPS = 8  # of each table


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chain")
    with tarfile.open(VECTOR) as archive:
        archive.extractall(path, filter="data")
    return path


def flip(value: object, rng: Random) -> object:
    """With one bit that is another."""
    match value:
        case int():
            return value ^ 1 << rng.randrange(8)
        case bytes():
            place = rng.randrange(len(value))
            return value[:place] + bytes([value[place] ^ 1 << rng.randrange(8)]) + value[place + 1 :]
        case str():
            place = rng.randrange(len(value))
            return value[:place] + chr(ord(value[place]) ^ 1 << rng.randrange(5)) + value[place + 1 :]
    raise AssertionError(f"expected a number, bytes or text, got {value!r}")


def spoil(database: Path, table: str, rng: Random) -> str:
    """Flips a bit of a row, and says where. One that would give two rows one key cannot be: another is flipped."""
    with sqlite3.connect(database) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        same = " AND ".join(f"{column} IS ?" for column in columns)
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
        while True:
            row, place = rng.choice(rows), rng.randrange(len(columns))
            if row[place] in (None, b"", ""):
                continue
            try:
                changed = flip(row[place], rng)
                connection.execute(f"UPDATE {table} SET {columns[place]} = ? WHERE {same}", (changed, *row))
            except sqlite3.IntegrityError:
                continue
            return f"{columns[place]} was {row[place]!r}, is {changed!r}"


@pytest.mark.parametrize("table", TABLES)
def test_any_flipped_bit_is_found(chain: Path, tmp_path: Path, table: str) -> None:
    rng, missed = Random(table), []
    for number in range(FLIPS):
        copy = Path(shutil.copytree(chain, tmp_path / str(number)))
        where = spoil(copy / "chain.db", table, rng)
        with sqlite3.connect(copy / "chain.db") as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if run_command("chain", "verify", "--deep", "--data-dir", copy).code == 0:
            missed.append(where)
    assert not missed
