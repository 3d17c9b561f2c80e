"""The record of everything a node signed: one row per slot, written before it leaves (PROTOCOL §4, I4), and the
justifications that its precommits rest on.

A slot is (height) for a contribution and a candidate, (height, view, phase) for a vote. Recording the same bytes again
is harmless; other bytes raise SlotTaken with the stored row, which is what may be sent. No row is ever deleted: they
are why the node cannot contradict itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from chain.block import ZERO, Block, Contribution, Digest, Phase, Vote
from chain.codec import (
    decode_block,
    decode_contribution,
    decode_vote,
    encode_block,
    encode_contribution,
    encode_vote,
)
from chain.errors import SlotTaken
from chain.genesis import Genesis
from chain.store.blob_rows import WriteBlobs
from chain.store.rows import Rows, compute_row_digest, decode_stored
from chain.store.watermark import Watermark

CONTRIBUTION, CANDIDATE, VOTE = 1, 2, 3  # the kinds of signed rows
_NAMES = {CONTRIBUTION: "contribution", CANDIDATE: "candidate", VOTE: "vote"}

SignedRow = tuple[int, int, int, int, bytes]  # height, kind, view, phase, bytes


def describe_signed(height: object, kind: object, view: object, phase: object) -> str:
    name = _NAMES.get(kind, "signed row") if isinstance(kind, int) else "signed row"
    return f"own {name} of height {height}" + (f", view {view}, phase {phase}" if kind == VOTE else "")


def check_signed(rows: Rows, found: Iterable[tuple[Any, ...]]) -> Iterator[SignedRow]:
    for row in found:
        rows.check(describe_signed(*row[:4]), "signed", row[:5], row[5])
        yield row[:5]


def read_signed(rows: Rows, first: int) -> Iterator[SignedRow]:
    """Returns every signed row from a height on, in order, each checked."""
    found = rows.read("signed rows", "SELECT * FROM signed WHERE height >= ? ORDER BY 1, 2, 3, 4", first)
    return check_signed(rows, found)


def read_justifications(rows: Rows) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Returns the rows of `locked` and of `prevotes`, each checked."""
    locked, prevotes = (
        rows.read(f"justifications: {table}", f"SELECT * FROM {table}")  # noqa: S608 (ours)
        for table in ("locked", "prevotes")
    )
    for table, found in (("locked", locked), ("prevotes", prevotes)):
        for row in found:
            rows.check(f"justification of height {row[0]}", table, row[:-1], row[-1])
    return locked, prevotes


def write_signed(rows: Rows, height: int, kind: int, view: int, phase: int, data: bytes) -> None:
    """Inserts a row into a slot known to be free. Runs inside a transaction."""
    digest = compute_row_digest("signed", height, kind, view, phase, data)
    rows.connection.execute("INSERT INTO signed VALUES (?, ?, ?, ?, ?, ?)", (height, kind, view, phase, data, digest))


def get_block_digests(block: Block) -> set[Digest]:
    """Returns the digests of the blobs that a block names: its contributions' payloads and its aggregate, if it has
    one."""
    digests = {payload.digest for contribution in block.contributions for payload in contribution.payloads}
    return digests | ({block.header.aggregate} - {ZERO})


def get_signed_digests(genesis: Genesis, signed: Iterable[SignedRow]) -> set[Digest]:
    """Returns the digests of the blobs that contributions and candidates among the rows name."""
    digests: set[Digest] = set()
    for height, kind, view, phase, data in signed:
        what = describe_signed(height, kind, view, phase)
        if kind == CONTRIBUTION:
            digests |= {payload.digest for payload in decode_stored(what, decode_contribution, data).payloads}
        elif kind == CANDIDATE:
            digests |= get_block_digests(decode_stored(what, partial(decode_block, genesis.chain_id), data))
    return digests


def _check_justification(height: int, block: Block, votes: Sequence[Vote]) -> None:
    views = {(vote.phase, vote.height, vote.view, vote.block_id) for vote in votes}
    wanted = {(Phase.PREVOTE, height, vote.view, block.id) for vote in votes[:1]}
    if block.height != height or not votes or views != wanted:
        raise ValueError(f"justification of height {height}: expected prevotes of one view for {block.id.hex()}")


def _write_justification(connection: sqlite3.Connection, block: Block, votes: Sequence[Vote]) -> None:
    """Writes a block and the prevotes for it. Runs inside a transaction."""
    height, data = block.height, encode_block(block)
    connection.execute(
        "INSERT OR REPLACE INTO locked VALUES (?, ?, ?, ?)",
        (height, block.id, data, compute_row_digest("locked", height, block.id, data)),
    )
    for vote in votes:
        raw = encode_vote(vote)
        digest = compute_row_digest("prevotes", height, vote.view, vote.voter, raw)
        connection.execute(
            "INSERT OR REPLACE INTO prevotes VALUES (?, ?, ?, ?, ?)", (height, vote.view, vote.voter, raw, digest)
        )


class SignedSlots:
    """The signed rows and justifications of one database. `write_blobs` writes small blobs in the same transaction."""

    def __init__(self, genesis: Genesis, rows: Rows, write_blobs: WriteBlobs) -> None:
        self._genesis = genesis
        self._rows = rows
        self._write_blobs = write_blobs
        self._watermark: Watermark | None = None  # of a store that is open for writing

    @property
    def rows(self) -> Rows:
        """The rows of this database, for whoever copies it."""
        return self._rows

    def put_contribution(self, contribution: Contribution, blobs: Sequence[bytes] = ()) -> bytes:
        """Records the one contribution of a height, and small blobs that it names, before it is sent. Raises SlotTaken
        if another one is recorded."""
        return self._put_signed(contribution.height, CONTRIBUTION, 0, 0, encode_contribution(contribution), blobs)

    def get_contribution(self, height: int) -> Contribution | None:
        data = self._get_signed(height, CONTRIBUTION, 0, 0)
        if data is None:
            return None
        return decode_stored(f"own contribution of height {height}", decode_contribution, data)

    def find_contribution(self, after: int) -> int | None:
        """Returns the lowest height above `after` that this node signed a contribution for, None if there is none."""
        query = "SELECT height FROM signed WHERE height > ? AND kind = ? ORDER BY height LIMIT 1"
        row = self._rows.read_one("own contributions", query, after, CONTRIBUTION)
        return None if row is None else int(row[0])

    def put_candidate(self, block: Block) -> bytes:
        """Records the one block that this node mined at a height before it is sent. Raises SlotTaken."""
        return self._put_signed(block.height, CANDIDATE, 0, 0, encode_block(block))

    def get_candidate(self, height: int) -> Block | None:
        data = self._get_signed(height, CANDIDATE, 0, 0)
        if data is None:
            return None
        return self._decode_block(f"own candidate of height {height}", data)

    def put_vote(self, vote: Vote) -> bytes:
        """Records the one vote of a (height, view, phase) before it is sent. Raises SlotTaken.

        A precommit for a block needs `put_justification` first; without it this raises ValueError. Otherwise q members
        that lose power together could hold a lock on a block whose bytes nobody has.
        """
        slot = (vote.height, VOTE, vote.view, int(vote.phase))
        if vote.phase is Phase.PRECOMMIT and vote.block_id != ZERO and self._get_signed(*slot) is None:
            what = f"justification of height {vote.height}"
            query = "SELECT 1 FROM locked JOIN prevotes USING (height) WHERE height = ? AND block_id = ? AND view = ?"
            if not self._rows.read(what, query, vote.height, vote.block_id, vote.view):
                raise ValueError(f"{describe_signed(*slot)}: expected its block and prevotes to be stored, got none")
        return self._put_signed(*slot, encode_vote(vote))

    def put_precommit(self, vote: Vote, block: Block, prevotes: Sequence[Vote], blobs: Sequence[bytes] = ()) -> bytes:
        """Records the precommit of a block with the block, the prevotes of that view and small `blobs`, in one
        transaction, before it is sent. Raises SlotTaken if another vote is recorded; block, prevotes and blobs are
        recorded all the same."""
        _check_justification(vote.height, block, prevotes)
        if (vote.phase, vote.block_id, vote.view) != (Phase.PRECOMMIT, block.id, prevotes[0].view):
            raise ValueError(f"expected a precommit for block {block.id.hex()} in the view of its prevotes, got {vote}")
        if self._get_signed(vote.height, VOTE, vote.view, int(vote.phase)) is not None:
            self.put_justification(vote.height, block, prevotes, blobs)
            return self.put_vote(vote)
        what, data = f"precommit of height {vote.height}", encode_vote(vote)
        if self._watermark is not None:
            self._watermark.check(vote.height, what)
        with self._rows.transaction("justification", what) as connection:
            self._write_blobs(blobs)
            _write_justification(connection, block, prevotes)
            write_signed(self._rows, vote.height, VOTE, vote.view, int(vote.phase), data)
        if self._watermark is not None:
            self._watermark.on_signed(vote.height)
        return data

    def get_votes(self, height: int) -> tuple[Vote, ...]:
        """Returns this node's own votes of a height, by view and phase."""
        what = f"own votes of height {height}"
        rows = self._rows.read(
            what, "SELECT * FROM signed WHERE height = ? AND kind = ? ORDER BY view, phase", height, VOTE
        )
        return tuple(decode_stored(what, decode_vote, row[4]) for row in check_signed(self._rows, rows))

    def _get_signed(self, height: int, kind: int, view: int, phase: int) -> bytes | None:
        what = describe_signed(height, kind, view, phase)
        query = "SELECT data, digest FROM signed WHERE height = ? AND kind = ? AND view = ? AND phase = ?"
        row = self._rows.read_one(what, query, height, kind, view, phase)
        if row is None:
            return None
        self._rows.check(what, "signed", (height, kind, view, phase, row[0]), row[1])
        data: bytes = row[0]
        return data

    def _put_signed(
        self, height: int, kind: int, view: int, phase: int, data: bytes, blobs: Sequence[bytes] = ()
    ) -> bytes:
        what = describe_signed(height, kind, view, phase)
        stored = self._get_signed(height, kind, view, phase)
        if stored is None:
            if self._watermark is not None:
                self._watermark.check(height, what)
            with self._rows.transaction(_NAMES[kind], what):
                self._write_blobs(blobs, are_own=True)
                write_signed(self._rows, height, kind, view, phase, data)
            if self._watermark is not None:
                self._watermark.on_signed(height)
            return data
        if stored != data:
            raise SlotTaken(f"{what}: signed before, with other bytes", stored)
        return stored

    def _decode_block(self, what: str, data: bytes) -> Block:
        return decode_stored(self._rows.where(what), partial(decode_block, self._genesis.chain_id), data)

    # Justifications of precommits

    def get_signed_height(self) -> int:
        """Returns the highest height that this node ever signed anything for, 0 if nothing."""
        row = self._rows.read_one("signed rows", "SELECT max(height) FROM signed")
        return int(row[0] or 0) if row is not None else 0

    def put_justification(self, height: int, block: Block, votes: Sequence[Vote], blobs: Sequence[bytes] = ()) -> None:
        """Makes a block, the prevotes of one view for it and small `blobs` durable, before the precommit of that view
        is signed."""
        _check_justification(height, block, votes)
        with self._rows.transaction("justification", f"justification of height {height}") as connection:
            self._write_blobs(blobs)
            _write_justification(connection, block, votes)

    def get_justification(self, height: int) -> tuple[tuple[Block, ...], tuple[Vote, ...]]:
        """Returns the blocks that this node precommitted at a height and the prevotes that justified it, by view and
        voter."""
        what = f"justification of height {height}"
        blocks = self._rows.read(
            what, "SELECT height, block_id, block, digest FROM locked WHERE height = ? ORDER BY block_id", height
        )
        votes = self._rows.read(
            what, "SELECT height, view, voter, vote, digest FROM prevotes WHERE height = ? ORDER BY view, voter", height
        )
        for table, rows in (("locked", blocks), ("prevotes", votes)):
            for row in rows:
                self._rows.check(what, table, row[:-1], row[-1])
        return (
            tuple(self._decode_block(what, row[2]) for row in blocks),
            tuple(decode_stored(what, decode_vote, row[3]) for row in votes),
        )
