"""Imports an exported chain into a stopped node's store: judges the whole file first, then appends the blocks that
extend the store.

It trusts nothing in the file: links, difficulty, proof of work, every signature and every certificate are checked. A
file may overlap with the store, and must then hold the same blocks; it must not leave a gap. The file has no
aggregates: the node fetches the newest by its digest when it runs again, as after any sync, and audits the imported
blocks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from chain.audit import EXPORT_MAGIC, ExportedBlock, read_export
from chain.block import Block, Certificate, Id
from chain.codec import MAX_BLOCK_BYTES, MAX_CERTIFICATE_BYTES, decode_block, decode_certificate
from chain.errors import ChainError, DecodeError, ValidationError
from chain.genesis import Genesis
from chain.store.interface import IMPORTED
from chain.store.sqlite import SqliteStore
from chain.tip import Tip, get_first_read
from chain.validation import validate_candidate, validate_certificate
from node.errors import VerificationFailed

MAX_LINE_BYTES = 2 * (MAX_BLOCK_BYTES + MAX_CERTIFICATE_BYTES) + (1 << 16)  # both in hex, and further fields


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of an import. `known` blocks were there already; `head` is the store's, afterwards."""

    first: int
    last: int
    known: int
    appended: int
    height: int
    head: Id


def import_chain(genesis: Genesis, store: SqliteStore | None, stream: IO[bytes], *, dry_run: bool = False) -> Imported:
    """Appends the blocks in `stream`, which can be rewound, that extend `store`. Without a store it only checks them,
    as for a new store.

    Raises VerificationFailed, and then nothing has changed: for a file that is damaged or of another chain, for blocks
    that break a rule, leave a gap, or differ from finalised ones.
    """
    tip = _get_tip(genesis, store)
    judged = _Judge(genesis, store, tip)
    try:
        for exported in read_blocks(stream, genesis):
            judged.take(*exported)
    except ChainError as error:
        raise VerificationFailed(f"{error}; nothing was imported") from error
    if judged.first is None:
        raise VerificationFailed("expected blocks, got a file without any; nothing was imported")
    if not dry_run and store is not None:
        stream.seek(0)
        if judged.digests:
            _note_unaudited(store, judged.tip.height)
        _append(genesis, store, read_blocks(stream, genesis), judged.digests)
    last = judged.first + judged.count - 1
    known = judged.count - len(judged.digests)
    return Imported(judged.first, last, known, len(judged.digests), judged.tip.height, judged.tip.id)


def _get_tip(genesis: Genesis, store: SqliteStore | None) -> Tip:
    if store is None:
        return Tip.at(genesis.state, (genesis.block0,))
    head = store.head_height
    newest = (stored.block for stored in store.blocks(get_first_read(head), head))
    return Tip.at(store.get_state(head), newest, store.get_state(max(0, head - 1)))


def _note_unaudited(store: SqliteStore, last: int) -> None:
    """Notes which blocks still need an audit, before the first is appended: so an import that stops half way leaves no
    block without one."""
    noted = store.get_meta(IMPORTED)
    first = store.head_height + 1 if noted is None else noted["first"]
    store.put_meta(IMPORTED, {"first": first, "last": last})


class _Judge:
    """Checks a file in a first pass. `digests` are those of the blocks to append, by which the second pass recognises
    them."""

    def __init__(self, genesis: Genesis, store: SqliteStore | None, tip: Tip) -> None:
        self.tip = tip
        self.first: int | None = None
        self.count = 0
        self.digests: list[bytes] = []
        self._genesis = genesis
        self._store = store
        self._head = tip.height

    def take(self, height: int, data: bytes, certified: bytes) -> None:
        if self.first is None:
            self.first = height
            if height > self._head + 1:
                raise ValidationError(
                    f"expected a file that begins at height {self._head + 1} or below, as that is where the store "
                    f"goes on (got one that begins at {height})"
                )
        if height != self.first + self.count:
            raise DecodeError(f"expected block {self.first + self.count}, got block {height}")
        self.count += 1
        block = decode_block(self._genesis.chain_id, data)
        if block.height != height:
            raise DecodeError(f"expected block {height}, got one of height {block.height}")
        if height == 0:
            if block != self._genesis.block0:
                raise ValidationError.differs("block 0, which names the chain", self._genesis.block0.id, block.id)
            return
        certificate = decode_certificate(certified)
        if height <= self._head:
            self._compare(block, certificate)
            return
        validate_candidate(self.tip, block)
        validate_certificate(self.tip.state, block.id, height, certificate)
        self.tip = self.tip.extend(block)
        self.digests.append(_hash(data, certified))

    def _compare(self, block: Block, certificate: Certificate) -> None:
        """Checks that a block at a height that is finalised here is the same one. If it differs and is certified too,
        members have lied."""
        stored = self._store.get_block(block.height) if self._store is not None else None
        state = self._genesis.state if self._store is None else self._store.get_state(block.height - 1)
        if stored is None or stored.block.id != block.id:
            ours = "none" if stored is None else stored.block.id.hex()
            try:
                validate_certificate(state, block.id, block.height, certificate)
            except ValidationError as error:
                raise ValidationError(
                    f"block {block.height}: expected {ours}, got {block.id.hex()}: {error}"
                ) from error
            raise ValidationError(
                f"block {block.height}: {ours} and {block.id.hex()} are both certified: at least "
                f"{2 * state.q - state.n} members have lied"
            )
        validate_certificate(state, block.id, block.height, certificate)


def _append(genesis: Genesis, store: SqliteStore, blocks: Iterator[ExportedBlock], digests: list[bytes]) -> None:
    """Appends in a second pass the blocks that were judged, and nothing else."""
    start = store.head_height + 1
    for height, data, certified in blocks:
        if height < start:
            continue
        if height - start >= len(digests) or _hash(data, certified) != digests[height - start]:
            raise VerificationFailed(f"block {height}: the file was changed while it was read; imported up to there")
        store.append(decode_block(genesis.chain_id, data), decode_certificate(certified))


def _hash(data: bytes, certified: bytes) -> bytes:
    return hashlib.sha256(len(data).to_bytes(8, "big") + data + certified).digest()


# ---- the two formats of an export


def read_blocks(stream: IO[bytes], genesis: Genesis) -> Iterator[ExportedBlock]:
    """Yields the blocks of a file that `fednode chain export` wrote, in either format. Raises ChainError."""
    start = stream.read(len(EXPORT_MAGIC))
    stream.seek(0)
    if start == EXPORT_MAGIC:
        return read_export(stream, genesis.chain_id)
    if start.startswith(b"{"):
        return _read_lines(stream)
    raise DecodeError(f"expected a file that fednode chain export wrote, got one that begins with {start!r}")


def _read_lines(stream: IO[bytes]) -> Iterator[ExportedBlock]:
    """Yields the blocks in JSON lines. Only the exported bytes count; the other fields are for other tools. The last
    line has the number of blocks, so that a file cut between two lines is not taken for a whole one."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES or not line.endswith(b"\n"):
            raise DecodeError(f"line {number}: expected a whole line of at most {MAX_LINE_BYTES} bytes")
        try:
            row = json.loads(line)
            if "end" in row:
                _validate_end(stream, row["end"]["blocks"], number - 1)
                return
            height, data, certified = row["height"], bytes.fromhex(row["block"]), bytes.fromhex(row["certificate"])
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise DecodeError(f"line {number}: expected a block as JSON ({error})") from error
        if type(height) is not int or len(data) > MAX_BLOCK_BYTES or len(certified) > MAX_CERTIFICATE_BYTES:
            raise DecodeError(f"line {number}: expected a height, a block and a certificate within their limits")
        yield height, data, certified
    raise DecodeError(f"line {number + 1}: expected a line that ends the file, got none: the file has been cut")


def _validate_end(stream: IO[bytes], stored_count: int, count: int) -> None:
    if stored_count != count:
        raise DecodeError(f"export: expected {stored_count} blocks, got {count}")
    if stream.read(1):
        raise DecodeError("export: expected the end of the file, got more lines")
