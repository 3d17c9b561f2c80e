"""The finalised blocks of one database, and the states that follow from their changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial

from chain.block import Block, Id
from chain.codec import decode_block, decode_certificate
from chain.errors import GenesisError, StoreCorrupted
from chain.genesis import Genesis
from chain.layout import MAX_HEIGHT
from chain.run import stops
from chain.state import State
from chain.store.interface import BlockRow, StoredBlock
from chain.store.rows import Rows, decode_stored, is_intact

_BATCH_ROWS = 64
_STOPPED = b'"stopped":'  # in the bytes of a state whose run patience has ended
_CACHED_STATES = 8  # the last states read; a state may have hundreds of KiB


class ChainRows:
    """The blocks and states of one database, each row checked as it is read."""

    def __init__(self, genesis: Genesis, rows: Rows) -> None:
        self._genesis = genesis
        self._rows = rows
        self._states: OrderedDict[int, State] = OrderedDict()  # by the height that they hold from

    def get_state(self, height: int) -> State:
        """Returns the state after `height`, which judges the next. Raises StoreCorrupted if there is none."""
        what = f"state after block {height}"
        found = self._rows.read_one(what, "SELECT max(height) FROM states WHERE height <= ?", height)
        if found is None or found[0] is None:
            raise StoreCorrupted(self._rows.where(f"{what}: missing"))
        since = found[0]
        if since not in self._states:
            row = self._rows.read_one(what, "SELECT state, digest FROM states WHERE height = ?", since)
            if row is None:
                raise StoreCorrupted(self._rows.where(f"{what}: missing"))
            self._rows.check(what, "states", (since, row[0]), row[1])
            try:
                self._states[since] = State.decode(self._genesis.chain_id, row[0])
            except GenesisError as error:
                raise StoreCorrupted(self._rows.where(f"{what}: {error}")) from error
            if len(self._states) > _CACHED_STATES:
                self._states.popitem(last=False)
        return self._states[since]

    def get_change_heights(self, first: int, last: int) -> tuple[int, ...]:
        """Returns the heights first..last, above 0, whose block holds a change."""
        query = "SELECT height, instr(state, ?) FROM states WHERE height BETWEEN ? AND ? ORDER BY height"
        rows = self._rows.read("states", query, _STOPPED, max(first, 1), min(last, MAX_HEIGHT))
        return tuple(height for height, at in rows if not (at and self._is_round(height)))

    def _is_round(self, height: int) -> bool:
        """Says whether the block at this height is a round with which patience ended the run, and not a change."""
        return stops(self.get_state(height - 1).run, self.get_state(height).run)

    def read_states(self, first: int, last: int) -> Iterator[tuple[int, State]]:
        """Yields the state after `first` and each other state up to `last`, with the height that it holds from. Raises
        StoreCorrupted."""
        query = (
            "SELECT height FROM states WHERE height <= ? AND height >="
            " (SELECT coalesce(max(height), 0) FROM states WHERE height <= ?) ORDER BY height"
        )
        for (height,) in self._rows.read(f"states after block {first}", query, last, first):
            yield height, self.get_state(height)

    def read_rows(self, first: int, last: int) -> Iterator[BlockRow]:
        """Yields the stored bytes of the heights first..last in order, reading a batch at a time. StoreCorrupted names
        the first height that cannot be read. A missing height is skipped: only the caller knows which ones there should
        be."""
        first, last, batch = max(first, 0), min(last, MAX_HEIGHT), _BATCH_ROWS
        query = (
            "SELECT height, id, block, certificate, block_digest, certificate_digest"
            " FROM blocks WHERE height BETWEEN ? AND ? ORDER BY height"
        )
        while first <= last:
            end = min(last, first + batch - 1)
            try:
                rows = self._rows.read(f"block {first}", query, first, end)
            except StoreCorrupted:
                if batch == 1:
                    raise
                batch = 1  # find the height itself
                continue
            for height, block_id, block, certificate, block_digest, certificate_digest in rows:
                damage = None
                if not is_intact("block", (height, block_id, block), block_digest):
                    damage = "stored bytes do not match their digest"
                elif not is_intact("certificate", (height, certificate), certificate_digest):
                    damage = "certificate: stored bytes do not match their digest"
                yield BlockRow(height, block, certificate, damage)
            if not rows and not self._rows.read(f"block {first}", "SELECT 1 FROM blocks WHERE height > ? LIMIT 1", end):
                return
            first = end + 1

    def get_block_bytes(self, height: int) -> tuple[bytes, bytes] | None:
        """Returns the canonical bytes of a block and of its certificate (empty at height 0); None if there is no such
        block."""
        for row in self.read_rows(height, height):
            if row.damage is not None:
                raise StoreCorrupted(self._rows.where(f"block {height}: {row.damage}"))
            return row.block, row.certificate
        return None

    def get_block(self, height: int) -> StoredBlock | None:
        """Returns the finalised block of a height, None below 0 and above the head."""
        return next(self.blocks(height, height), None)

    def find_block(self, block_id: Id) -> StoredBlock | None:
        """Returns the finalised block with this id, None if there is none."""
        what = f"block {block_id.hex()}"
        row = self._rows.read_one(what, "SELECT height FROM blocks WHERE id = ?", block_id)
        if row is None:
            return None
        found = self.get_block(row[0])
        if found is None or found.block.id != block_id:
            raise StoreCorrupted(self._rows.where(f"{what}: the index of ids points elsewhere"))
        return found

    def read_blocks(self, first: int, last: int) -> Iterator[Block]:
        """Yields the finalised blocks of the heights first..last without their certificates."""
        return (stored.block for stored in self.blocks(first, last))

    def blocks(self, first: int, last: int) -> Iterator[StoredBlock]:
        """Yields the finalised blocks of the heights first..last in order, as many as there are."""
        for row in self.read_rows(first, last):
            where = self._rows.where(f"block {row.height}")
            if row.damage is not None:
                raise StoreCorrupted(f"{where}: {row.damage}")
            block = decode_stored(where, partial(decode_block, self._genesis.chain_id), row.block)
            certificate = decode_stored(where, decode_certificate, row.certificate) if row.certificate else None
            yield StoredBlock(block, certificate)
