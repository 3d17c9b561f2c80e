"""A node's store: one SQLite database for what was finalised or signed, and files for blobs (DESIGN §5, PROTOCOL §10).

WAL with synchronous=FULL: when a method that writes returns, its rows survive `kill -9` and power loss. One process at
a time: `DATA/lock` is held with flock and the database with `locking_mode=EXCLUSIVE`. One connection, used from one
thread at a time.

What this node signed is never deleted, by `append` or by `reset`: its rows are why it cannot contradict itself (I4).
Where rows are lost all the same, `chain.store.watermark` shows it, and nothing is signed that may have been signed
before.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from chain.block import Approval, Block, Certificate, Digest, Id
from chain.changes.execution import compute_next_state
from chain.codec import decode_block, encode_certificate
from chain.errors import (
    InvalidState,
    StoreCorrupted,
    StoreError,
    StoreMismatch,
    UnknownParent,
    ValidationError,
    WrongHeight,
)
from chain.genesis import Genesis
from chain.store.blob_files import BlobFiles, sync_directory, translated_os_errors
from chain.store.blob_rows import BlobRows
from chain.store.chain_rows import ChainRows
from chain.store.consent_rows import ConsentRows, read_own_answers, write_own_answer
from chain.store.damage import describe_pages, find_damaged_rows
from chain.store.interface import Damage, Faults, StoredBlock
from chain.store.records import RecordRows
from chain.store.rows import (
    DATABASE,
    HEAD,
    Rows,
    connect,
    decode_stored,
    lock_directory,
    translated,
)
from chain.store.signed_slots import (
    SignedSlots,
    get_block_digests,
    get_signed_digests,
    read_justifications,
    read_signed,
    write_signed,
)
from chain.store.watermark import Mark, Watermark, describe_loss, read_mark, write_mark
from chain.validation import validate_certificate


class ResetOutcome(NamedTuple):
    """The highest height that the node had signed, and whether the reset could keep its operator's answers to
    changes."""

    signed_height: int
    kept_answers: bool


class SqliteStore(SignedSlots, ChainRows, RecordRows, ConsentRows, BlobRows):
    """The store of a node. Use `open` to build it; `close` it, or use it as a context manager.

    Methods that write are durable when they return. A write that fails changes nothing: it raises StoreFull when the
    disk is full, and StoreCorrupted naming the place when stored bytes are not what was written.
    """

    def __init__(
        self, path: Path, genesis: Genesis, rows: Rows, lock: int | None, *, readonly: bool, faults: Faults | None
    ) -> None:
        BlobRows.__init__(self, path, rows, readonly=readonly, faults=faults)
        SignedSlots.__init__(self, genesis, rows, self.write_blobs)
        ChainRows.__init__(self, genesis, rows)
        RecordRows.__init__(self, rows)
        ConsentRows.__init__(self, rows)
        self.path = path
        self._lock = lock
        self._head: StoredBlock | None = None

    def __repr__(self) -> str:
        head = "unread" if self._head is None else str(self._head.block.height)
        return f"SqliteStore({str(self.path)!r}, head={head}, readonly={self._readonly})"

    @classmethod
    def open(cls, path: Path, genesis: Genesis, *, readonly: bool = False, faults: Faults | None = None) -> Self:
        """Opens a data directory, or makes it. Raises StoreLocked, StoreMismatch or StoreCorrupted.

        For writing, the head and every signed row are checked first. For reading, only the identity is: a reader checks
        each row that it reads, and `verify_chain` must be able to say where a fault is.
        """
        database = path / DATABASE
        if readonly:
            _refuse_if_absent(database)
        else:
            with translated_os_errors(path):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with translated_os_errors(path):
            lock = lock_directory(path, readonly=readonly)
        connection = None
        try:
            connection = connect(database, readonly=readonly)
            rows = Rows(database, connection, readonly=readonly, faults=faults)
            store = cls(path, genesis, rows, lock, readonly=readonly, faults=faults)
            if not readonly:
                store._create_if_new()
            store._check_identity()
            if not readonly:
                store._bring_up_to_date()
                num_signed = store._check_head()
                store._open_watermark(num_signed)
                store._prepare_blobs()
        except BaseException:
            if connection is not None:
                connection.close()
            if lock is not None:
                os.close(lock)
            raise
        return store

    @staticmethod
    def stored_genesis(path: Path) -> Mapping[str, Any] | None:
        """Returns the genesis that a stopped node's directory was made for, as a mapping for `Genesis.from_mapping`;
        None if the directory is unused."""
        database = path / DATABASE
        if not database.is_file():
            return None
        lock = lock_directory(path, readonly=True)
        try:
            with closing(connect(database, readonly=True)) as connection:
                rows = Rows(database, connection)
                if rows.is_empty():
                    return None
                genesis: dict[str, Any] = json.loads(rows.get_identity())
                return genesis
        finally:
            if lock is not None:
                os.close(lock)

    @classmethod
    def reset(cls, path: Path, faults: Faults | None = None) -> ResetOutcome:
        """Deletes chain, rounds, evidence and blobs. Keeps genesis, what this node signed, its operator's answers to
        changes if they can be read, what its lock rests on, and the blobs that the last of these name. The votes that
        it signed bind it also after the reset.

        Only the kept rows are read, so a damaged chain can be reset. One rename replaces the old database by the new
        one: a crash leaves one or the other.
        """
        database = path / DATABASE
        _refuse_if_absent(database)
        lock = lock_directory(path, readonly=False)
        try:
            with closing(connect(database, readonly=False)) as connection:
                rows = Rows(database, connection)
                genesis = Genesis.from_mapping(json.loads(rows.get_identity()))
                signed, answers = list(read_signed(rows, 0)), _read_answers(rows)
                locked, prevotes = read_justifications(rows)
                newest = max((row[0] for row in signed), default=0)  # peers may still ask for what it offered there
                keep = get_signed_digests(genesis, [row for row in signed if row[0] == newest])
                for _, _, data, _ in locked:
                    keep |= get_block_digests(
                        decode_stored("locked block", partial(decode_block, genesis.chain_id), data)
                    )
                blobs = BlobRows(path, rows, readonly=False, faults=None).read_rows_of(keep)
            if database.with_name(f"{DATABASE}-wal").exists():
                raise StoreCorrupted(f"{database}: its write-ahead log could not be written back, nothing was reset")
            fresh = path / f"{DATABASE}.new"
            with translated_os_errors(fresh):
                for left_over in (fresh, fresh.with_name(f"{fresh.name}-journal")):
                    left_over.unlink(missing_ok=True)
            with translated(str(fresh)), closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("BEGIN")
                rows = Rows(fresh, connection)
                rows.create(genesis)
                BlobRows(path, rows, readonly=False, faults=None).write_blobs(blobs)
                for row in signed:
                    write_signed(rows, *row)
                for answer in answers or ():
                    write_own_answer(rows, answer)
                connection.executemany("INSERT INTO locked VALUES (?, ?, ?, ?)", locked)
                connection.executemany("INSERT INTO prevotes VALUES (?, ?, ?, ?, ?)", prevotes)
                connection.execute("COMMIT")
            if faults is not None:
                faults("reset.written")
            with translated_os_errors(database):
                fresh.replace(database)
                sync_directory(path)
            if faults is not None:
                faults("reset.renamed")
            found = Mark(0, max((row[0] for row in signed), default=0), len(signed))
            kept = read_mark(path)
            if kept is None or kept.num_signed <= found.num_signed:  # a mark that shows a loss stays
                write_mark(path, found)
            BlobFiles(path, readonly=False, faults=faults).prune_blobs(keep)
            return ResetOutcome(newest, answers is not None)
        finally:
            if lock is not None:
                os.close(lock)

    def close(self) -> None:
        """Writes the log back into the database and releases the lock of the directory."""
        with translated(str(self._rows.database)):
            self._rows.connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Opening

    def _create_if_new(self) -> None:
        database = self._rows.database
        if not self._rows.is_empty():
            return
        if self._blobs.is_dir():
            raise StoreCorrupted(
                f"{database}: expected the chain this directory was used for, got an empty database; "
                f"what this node signed is lost with it: restore it, or remove {self.path} and its key"
            )
        with self._rows.transaction("create", "a new database"):
            self._rows.create(self._genesis)
        with translated_os_errors(self.path):
            sync_directory(self.path)

    def _bring_up_to_date(self) -> None:
        """Adds the table of small blobs to a database of an earlier release, whose blobs are all in files and stay
        there."""
        if not self._rows.has_blobs():
            with self._rows.transaction("create", "the table of blobs"):
                self._rows.add_blobs()

    def _check_identity(self) -> None:
        canonical = self._rows.get_identity()
        if canonical != self._genesis.canonical:
            stored = Genesis.from_mapping(json.loads(canonical)).chain_id
            raise StoreMismatch.differs(self._rows.where("chain id of its genesis"), self._genesis.chain_id, stored)

    def _check_head(self) -> int:
        """Checks the pages, that no height is missing, that the head is final, and every signed row. Returns the number
        of signed rows."""
        for table in self._rows.list_tables():
            if table == "blobs":  # each is checked as it is read, as with files; checking all would take long
                continue
            (report,) = self._rows.read("pages", f"PRAGMA quick_check({table})")[0]
            if report != b"ok":
                raise StoreCorrupted(self._rows.where(describe_pages(report)))
        height = self.head_height
        (count, top) = self._rows.read("blocks", "SELECT count(*), max(height) FROM blocks")[0]
        if (count, top) != (height + 1, height):
            got = f"{count} blocks up to height {top}"
            raise StoreCorrupted.differs(self._rows.where("blocks"), f"{height + 1} up to height {height}", got)
        head = self.head()
        if height == 0 and head.block != self._genesis.block0:
            raise StoreCorrupted.differs(self._rows.where("block 0"), self._genesis.block0.id, head.block.id)
        if height > 0:
            if head.certificate is None:
                raise StoreCorrupted(self._rows.where(f"block {height}: expected a certificate, got none"))
            try:
                validate_certificate(self.get_state(height - 1), head.block.id, height, head.certificate)
            except ValidationError as error:
                raise StoreCorrupted(self._rows.where(f"block {height}: {error}")) from error
        state = self.get_state(height)
        if head.block.header.state_next != state.digest:
            where = self._rows.where(f"state after block {height}")
            raise StoreCorrupted.differs(where, head.block.header.state_next, state.digest)
        # All of them are read, as damage to its key may have moved a row away from the slot it guards.
        num_signed = sum(1 for _ in read_signed(self._rows, 0))
        self.get_justification(height + 1)
        return num_signed

    def _open_watermark(self, num_signed: int) -> None:
        self._watermark = Watermark(self.path, Mark(self.head_height, self.get_signed_height(), num_signed))

    @property
    def silent_until(self) -> int:
        """The height up to which this node signs nothing, because it may have signed something else in rows that were
        lost; 0 if none were."""
        return 0 if self._watermark is None else self._watermark.silent_until

    def describe_loss(self) -> str | None:
        """Describes the rows that were missing when this database was opened for writing and that the node has not
        replaced since; None for nothing."""
        watermark = self._watermark
        if watermark is None or watermark.lost is None:
            return None
        return describe_loss(self._rows.database, watermark.lost, watermark.found)

    # Blocks

    @property
    def head_height(self) -> int:
        return self._read_head()[0]

    def _read_head(self) -> tuple[int, Id]:
        value = self._rows.get_meta(HEAD)
        if value is None or len(value) != 40:
            raise StoreCorrupted(self._rows.where("head: missing"))
        return int.from_bytes(value[:8], "big"), value[8:]

    def head(self) -> StoredBlock:
        """Returns the newest finalised block."""
        if self._head is None:
            height, block_id = self._read_head()
            head = self.get_block(height)
            if head is None:
                raise StoreCorrupted(self._rows.where(f"block {height}: missing, though it is the head"))
            if head.block.id != block_id:
                raise StoreCorrupted.differs(self._rows.where(f"block {height}: id"), block_id, head.block.id)
            self._head = head
        return self._head

    def append(self, block: Block, certificate: Certificate, *, round_record: Mapping[str, Any] | None = None) -> None:
        """Writes block, certificate, the state where it changes, head and round metrics in one transaction.

        The caller has validated the block. Locked blocks and prevotes of this height are deleted: the block is final.
        Raises WrongHeight, UnknownParent, InvalidState or InvalidChange.
        """
        self._append([(block, certificate)], round_record)

    def append_all(self, blocks: Sequence[tuple[Block, Certificate]], blobs: Sequence[bytes] = ()) -> None:
        """Appends one or more consecutive blocks, and small blobs that they name, in one transaction. Raises as
        `append` does."""
        self._append(blocks, blobs=blobs)

    def _append(
        self,
        blocks: Sequence[tuple[Block, Certificate]],
        round_record: Mapping[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
    ) -> None:
        """Appends blocks and blobs in one transaction. `round_record` belongs to the last block."""
        head = self.head().block
        states = [(head.height, self.get_state(head.height))]
        for block, _ in blocks:
            if block.height != head.height + 1:
                raise WrongHeight.differs("height of the next block", head.height + 1, block.height)
            if block.header.prev != head.id:
                raise UnknownParent.differs(f"block {block.height}: prev", head.id, block.header.prev)
            state = compute_next_state(states[-1][1], block, head.header.aggregate)
            if block.header.state_next != state.digest:
                raise InvalidState.differs(f"block {block.height}: state_next", state.digest, block.header.state_next)
            if state is not states[-1][1]:
                states.append((block.height, state))
            head = block
        with self._rows.transaction("append", f"block {head.height}") as connection:
            self.write_blobs(blobs)
            for block, certificate in blocks:
                self._rows.insert_block(block, encode_certificate(certificate))
            for height, state in states[1:]:
                self._rows.insert_state(height, state)
            self._rows.set_head(head)
            if round_record is not None:
                self._write_round(head.height, round_record)
            connection.execute("DELETE FROM locked WHERE height <= ?", (head.height,))
            connection.execute("DELETE FROM prevotes WHERE height <= ?", (head.height,))
        self._head = StoredBlock(*blocks[-1])
        if self._watermark is not None:
            self._watermark.on_block(head.height)

    # Damage, and the blobs that must not be pruned

    def find_damage(self) -> Iterator[Damage]:
        """Yields every damaged row other than blocks, and rows that are missing without a trace in the database."""
        yield from find_damaged_rows(self._rows)
        loss = self._find_loss()
        if loss is not None:
            yield Damage(None, loss)

    def _find_loss(self) -> str | None:
        """Describes the rows of a stopped node's database that are missing without a trace in it; None for nothing."""
        if self._watermark is not None:
            return self.describe_loss()
        kept = read_mark(self.path)
        try:
            (num_signed,) = self._rows.read("signed rows", "SELECT count(*) FROM signed")[0]
            found = Mark(self.head_height, self.get_signed_height(), num_signed)
        except StoreCorrupted:
            return None  # find_damaged_rows reports it
        if kept is None or not kept.is_ahead_of(found):
            return None
        return describe_loss(self._rows.database, kept, found)

    def referenced_blobs(self, first: int) -> set[Digest]:
        """Returns the digests named by the blocks from a height on and by what this node signed or locked above the
        head.

        With block 0's aggregate and what peers offered for the current height, this is what `prune_blobs` must keep.
        """
        above = self.head_height + 1
        digests = get_signed_digests(self._genesis, read_signed(self._rows, above))
        for stored in self.blocks(first, above):
            digests |= get_block_digests(stored.block)
        for block in self.get_justification(above)[0]:
            digests |= get_block_digests(block)
        return digests


def _read_answers(rows: Rows) -> list[Approval] | None:
    """Returns the operator's answers, None if they are damaged: a site may answer a change twice, but never sign a slot
    twice."""
    try:
        return read_own_answers(rows)
    except StoreCorrupted:
        return None


def _refuse_if_absent(database: Path) -> None:
    if not database.is_file():
        raise StoreError(f"{database}: no such file; a node has not run here")
