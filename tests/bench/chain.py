"""`make bench-chain`: what the store of a chain costs over the least that could keep the same bytes as safely.

The blocks are real (`support.data.synthetic`): contributions with their blobs, work, aggregates, certificates.
Baselines:

  append       a table of height, block and certificate in SQLite, as durable, in turn with ours; as many blocks to a
               transaction
  read         the same bytes out of that table, by CPU time
  verify       the library's verification of as many signatures, by CPU time
  export       a copy of the file, as durable
  import       that verification, and all rows into the table in one transaction

`fsync_s` is what the disk takes for one block's bytes at the end of a file: nothing durable takes less.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from bench.crypto import list_candidate, list_certificate, make_bare_check
from bench.paired import Call, compare_calls
from bench.tails import describe_tail
from bench.usage import measure_directory
from chain import codec
from chain.audit import write_export
from chain.block import Block, Certificate
from chain.genesis import Genesis
from chain.store.rows import DATABASE
from chain.store.sqlite import SqliteStore
from node.admin.offline import OfflineNode, verify_data_dir
from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_directory
from node.consensus.gossip.sync import SLICE
from node.errors import NodeError, VerificationFailed
from node.host.machine import get_machine
from node.host.procfs import MB
from node.ledger.importing import import_chain
from support.data.synthetic import INITIAL_MODEL, extend_chain, make_prototype_genesis

VARIETY = 8  # different payloads of each member: what is measured is the chain, not so many blobs
FSYNCS = 100
READ_S = 0.05  # of each call, in each of READ_REPEATS
READ_REPEATS = 5


def run_chain_bench(
    *, blocks: int, members: int, one_by_one: int, parent: Path | None, seed: int, report: Report
) -> dict[str, Any]:
    """Figures by name. Of the chain's `blocks`, `one_by_one` are appended each for itself; all is kept below `parent`.
    Raises VerificationFailed where the store does not verify, NodeError where it has not kept them all."""
    genesis, keys = make_prototype_genesis(members, seed=seed, difficulty=DIFFICULTY)
    with temporary_directory(parent) as directory:
        report(f"making a chain of {blocks} blocks")
        made = directory / "made"
        with SqliteStore.open(made, genesis) as store:
            store.put_blob(INITIAL_MODEL)
            began_s = time.perf_counter()
            extend_chain(store, genesis, keys, blocks, variety=VARIETY)
            made_s = time.perf_counter() - began_s
            chain = _Chain.read(genesis, store)
        report("appending")
        append = {
            "one_by_one": _measure_append(chain.cut(one_by_one), directory / "one", 1),
            "batched": _measure_append(chain, directory / "batched", SLICE),
        }
        report("reading")
        read = _measure_read(chain, made, directory / "batched.bare", seed)
        report("verifying")
        check = chain.make_bare_check()
        verify = _measure_verify(chain, made, check)
        report("exporting and importing")
        exported, imported = _measure_export(chain, made, directory, check)
        return {
            "machine": get_machine(),
            "job": {"blocks": blocks, "members": members, "one_by_one": one_by_one, "batch": SLICE, "seed": seed},
            "made": {"seconds": made_s, "blocks_per_s": blocks / made_s},
            "fsync_s": _measure_fsync(chain, directory / "synced"),
            "append": append,
            "read": read,
            "verify": verify,
            "export": exported,
            "import": imported,
            "disk": _measure_disk(chain, made, directory / "batched.bare"),
        }


@dataclass(frozen=True, slots=True)
class _Chain:
    """All blocks above genesis, with the bytes that stand for them."""

    genesis: Genesis
    blocks: Sequence[tuple[Block, Certificate]]
    rows: Sequence[tuple[int, bytes, bytes]]

    @classmethod
    def read(cls, genesis: Genesis, store: SqliteStore) -> _Chain:
        stored = store.blocks(1, store.head_height)
        blocks = [(one.block, one.certificate) for one in stored if one.certificate is not None]
        rows = [(block.height, codec.encode_block(block), codec.encode_certificate(final)) for block, final in blocks]
        return cls(genesis, blocks, rows)

    def cut(self, count: int) -> _Chain:
        return _Chain(self.genesis, self.blocks[:count], self.rows[:count])

    def validate_height(self, height: int) -> None:
        """Raises NodeError unless all of it is there."""
        if height != len(self.rows):
            raise NodeError(f"expected {len(self.rows)} blocks to be kept, got {height}")

    def make_bare_check(self) -> Call:
        """Of every signature there is in it."""
        signed = []
        for block, certificate in self.blocks:
            signed += list_candidate(self.genesis, block) + list_certificate(self.genesis, block, certificate)
        return make_bare_check(signed)

    @property
    def num_bytes(self) -> int:
        return sum(len(block) + len(certificate) for _, block, certificate in self.rows)

    def describe(self, seconds: float, bare_s: float) -> dict[str, float]:
        """Of what was done with all of it."""
        count = len(self.rows)
        return {
            "blocks": count,
            "seconds": seconds,
            "blocks_per_s": count / seconds,
            "mb_per_s": self.num_bytes / MB / seconds,
            "bare_blocks_per_s": count / bare_s,
            "ratio": seconds / bare_s,
        }


class _BareTable:
    """What the store is measured against: the bytes and their height, as durable, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS blocks (height INTEGER PRIMARY KEY, block BLOB, certificate BLOB)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def append(self, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO blocks VALUES (?, ?, ?)", rows)
        self._connection.execute("COMMIT")

    def read(self, first: int, last: int) -> list[tuple[bytes, bytes]]:
        query = "SELECT block, certificate FROM blocks WHERE height BETWEEN ? AND ? ORDER BY height"
        return self._connection.execute(query, (first, last)).fetchall()

    def read_height(self) -> int:
        height: int = self._connection.execute("SELECT max(height) FROM blocks").fetchone()[0]
        return height


def _time(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    began_s = clock()
    call()
    return clock() - began_s


# ---- what is measured


def _measure_append(chain: _Chain, path: Path, batch: int) -> dict[str, float]:
    """So many blocks to a transaction, in a store at `path` and a table beside it."""
    took_s = bare_s = 0.0
    with SqliteStore.open(path, chain.genesis) as store, _BareTable(path.with_suffix(".bare")) as table:
        for start in range(0, len(chain.rows), batch):
            blocks = chain.blocks[start : start + batch]
            append = partial(store.append, *blocks[0]) if batch == 1 else partial(store.append_all, blocks)
            took_s += _time(append)
            bare_s += _time(partial(table.append, chain.rows[start : start + batch]))
        chain.validate_height(store.head_height)
        chain.validate_height(table.read_height())
    return chain.describe(took_s, bare_s)


def _measure_read(chain: _Chain, made: Path, bare: Path, seed: int) -> dict[str, Any]:
    """A block is one of a random height, decoded; so are those of the whole range. Bare bytes stay bytes."""
    last = len(chain.rows)
    random = Random(seed)
    with SqliteStore.open(made, chain.genesis) as store, _BareTable(bare) as table:

        def read_block() -> None:
            store.get_block(random.randint(1, last))

        def read_bare() -> None:
            height = random.randint(1, last)
            table.read(height, height)

        calls: dict[str, tuple[Call, Call]] = {
            "height": (lambda: store.head_height, table.read_height),
            "block": (read_block, read_bare),
            "range": (lambda: list(store.blocks(1, last)), partial(table.read, 1, last)),
        }
        figures = {
            name: compare_calls(ours, bare_call, seconds=READ_S, repeats=READ_REPEATS)
            for name, (ours, bare_call) in calls.items()
        }
    figures["range"]["blocks_per_s"] = last * figures["range"]["per_s"]["median"]
    opened = [_time(lambda: SqliteStore.open(made, chain.genesis).close()) for _ in range(READ_REPEATS)]
    return {**figures, "open_s": describe_tail(opened)}


def _measure_verify(chain: _Chain, made: Path, check: Call) -> dict[str, Any]:
    figures = {}
    for name, is_deep in (("shallow", False), ("deep", True)):
        bare_s = _time(check, time.thread_time)
        began_s = time.thread_time()
        verdict = verify_data_dir(made, deep=is_deep, require_all=is_deep)
        took_s = time.thread_time() - began_s
        if not verdict.ok:
            raise VerificationFailed(f"the chain that was made does not verify: {verdict.fault.what}")
        figures[name] = {
            **chain.describe(took_s, bare_s),
            "signatures": verdict.signatures,
            "recomputed": verdict.recomputed,
        }
    return figures


def _measure_export(chain: _Chain, made: Path, directory: Path, check: Call) -> tuple[dict[str, Any], dict[str, Any]]:
    file, copy = directory / "chain.bin", directory / "copy.bin"

    def export() -> None:
        with OfflineNode(made) as node, file.open("wb") as stream:
            write_export(stream, chain.genesis.chain_id, node.export(0, None))
            os.fsync(stream.fileno())

    def copy_file() -> None:
        with file.open("rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
            os.fsync(target.fileno())

    exported = chain.describe(_time(export), _time(copy_file))
    with (
        file.open("rb") as stream,
        SqliteStore.open(directory / "imported", chain.genesis) as store,
        _BareTable(directory / "imported.bare") as table,
    ):
        took_s = _time(partial(import_chain, chain.genesis, store, stream))
        bare_s = _time(check) + _time(partial(table.append, chain.rows))
        imported = chain.describe(took_s, bare_s)
        chain.validate_height(store.head_height)
    return {**exported, "bytes": file.stat().st_size}, imported


def _measure_fsync(chain: _Chain, path: Path) -> dict[str, float]:
    _, block, certificate = chain.rows[-1]
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(FSYNCS):
            began_s = time.perf_counter()
            file.write(block + certificate)
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began_s)
    return describe_tail(took)


def _measure_disk(chain: _Chain, made: Path, bare: Path) -> dict[str, float]:
    """Bytes, of one block where that is said: as it is signed, in the closed database, in a bare table, in blobs."""
    count = len(chain.rows)
    num_blobs, blob_bytes = measure_directory(made / "blobs")
    return {
        "block_bytes": sum(len(block) for _, block, _ in chain.rows) / count,
        "certificate_bytes": sum(len(certificate) for _, _, certificate in chain.rows) / count,
        "database_bytes_per_block": (made / DATABASE).stat().st_size / count,
        "bare_bytes_per_block": bare.stat().st_size / count,
        "blobs": num_blobs,
        "blob_bytes": blob_bytes,
    }
