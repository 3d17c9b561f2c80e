"""The finalised chain as a whole: its audit, trusting nothing but genesis, and its exported form."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

from chain.block import ZERO, Block, Digest, Id
from chain.codec import MAX_BLOCK_BYTES, MAX_CERTIFICATE_BYTES, decode_block, decode_certificate
from chain.errors import ChainError, DecodeError, StoreCorrupted, ValidationError
from chain.genesis import Genesis
from chain.selection import read_selection
from chain.state import State
from chain.store.interface import BlockRow, BlockSource
from chain.store.signed_slots import get_block_digests
from chain.tip import Tip, get_first_read
from chain.validation import validate_aggregate, validate_candidate, validate_certificate

Recompute = Callable[[Block, State], Digest | None]  # of a round's block, and the state that judges it


# The audit


@dataclass(frozen=True, slots=True)
class Fault:
    """The first fault of a chain, at `height` where that is known. `expected` and `got` are empty where nothing was
    compared."""

    height: int | None
    what: str
    expected: str = ""
    got: str = ""

    def __str__(self) -> str:
        return self.what + (f": expected {self.expected}, got {self.got}" if self.expected or self.got else "")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The findings of an audit, which stops at the first fault: `blocks`, `signatures` and `head` are what was right
    until then.

    `not_held` are the heights whose aggregate could not be recomputed because a blob is not held.
    """

    ok: bool
    first: int
    last: int
    blocks: int
    signatures: int
    recomputed: int
    not_held: list[int]
    fault: Fault | None
    head: Id
    seconds: float


class _Broken(ChainError):
    """Ends an audit; `verify_chain` catches it."""


@dataclass(slots=True)
class _Audit:
    """A walk up the chain that trusts genesis alone. `height` is the height it has reached."""

    genesis: Genesis
    source: BlockSource
    recompute: Recompute | None
    height: int = 0
    blocks: int = 0
    signatures: int = 0
    recomputed: int = 0
    not_held: list[int] = field(default_factory=list)
    head: Id = ZERO

    def walk(self, first: int, last: int) -> None:
        """Checks the heights first..last. Those just below `first` are read for its parent and its difficulty."""
        self.height = get_first_read(max(0, first - 1))
        tip: Tip | None = None
        for row in self.source.read_rows(self.height, last):
            if row.height != self.height:
                break
            block = self._read(row)
            if tip is not None and row.height >= first:
                self._check(tip, block, row)
            tip = self._begin(block) if tip is None else tip.extend(block)
            if row.height >= first:
                if row.height in (0, last) or tip.state is not tip.judged_by:
                    self._read_state(block)
                if self.recompute is not None:
                    self._check_blobs(block, tip.judged_by, self.recompute)
                self.blocks += 1
                self.head = block.id
            self.height += 1
        if self.height <= last:
            raise _Broken("missing from the store")

    def _begin(self, block: Block) -> Tip:
        state, selection = self._get_first_state(block), None
        if state.run.select is not None:
            selection = read_selection(self.source.get_state, self._read_blocks, block.height)
        return Tip.at(state, (block,), selection=selection)

    def _read_blocks(self, first: int, last: int) -> Iterator[Block]:
        return (self._read(row) for row in self.source.read_rows(first, last))

    def _get_first_state(self, block: Block) -> State:
        """Returns the state that the walk begins with: from genesis at height 0, else the stored one."""
        return self.genesis.state if block.height == 0 else self._read_state(block)

    def _read_state(self, block: Block) -> State:
        """Returns the stored state after `block`. Raises if `block` does not commit to it."""
        state = self.source.get_state(block.height)
        if state.digest != block.header.state_next:
            raise _Broken.differs("stored state", block.header.state_next, state.digest)
        return state

    def _read(self, row: BlockRow) -> Block:
        if row.damage is not None:
            raise _Broken(row.damage)
        block = decode_block(self.genesis.chain_id, row.block)
        if row.height == 0:
            if block != self.genesis.block0:
                raise _Broken.differs("not this genesis' block 0", self.genesis.block0.id, block.id)
            if row.certificate:
                raise _Broken.differs("certificate", "none", f"{len(row.certificate)} bytes")
        return block

    def _check(self, tip: Tip, block: Block, row: BlockRow) -> None:
        validate_candidate(tip, block)
        certificate = decode_certificate(row.certificate)
        validate_certificate(tip.state, block.id, block.height, certificate)
        self.signatures += 1 + len(block.contributions) + len(certificate.signatures)
        if block.change is not None:
            self.signatures += len(block.change.answers) + len(block.change.readiness)

    def _check_blobs(self, block: Block, state: State, recompute: Recompute) -> None:
        """Hashes every held blob that the block names, also those sent only on demand, and recomputes the block's
        aggregate."""
        for digest in sorted(get_block_digests(block)):
            if self.source.has_blob(digest):
                self.source.check_blob(digest)
        if block.height == 0 or block.change is not None:  # only a round is recomputed
            return
        try:
            aggregate = recompute(block, state)
        except ValueError as error:
            raise _Broken(f"aggregate cannot be recomputed: {error}") from error
        if aggregate is None:
            self.not_held.append(block.height)
            return
        validate_aggregate(block, aggregate)
        self.recomputed += 1


def verify_chain(
    genesis: Genesis,
    source: BlockSource,
    *,
    first: int = 0,
    last: int | None = None,
    recompute: Recompute | None = None,
) -> VerifyReport:
    """Checks a stored chain against genesis, in one sequential read, up to the first fault.

    For each height it checks stored bytes, encoding, link, height, difficulty, proof of work, members, every signature,
    the certificate, and the stored state where it changes; with `recompute` also the held blobs and the aggregate.
    `recompute(block, state)` returns the aggregate's digest, None when a blob is not held, and raises ChainError or
    ValueError when the blobs do not fit. Without `last` the walk ends at the head, and every other stored row is then
    checked for damage. A walk that starts above 0 does not check the parent of its first block: that parent's
    certificate vouches for it and for the stored state that it commits to.
    """
    began = time.perf_counter()
    audit = _Audit(genesis, source, recompute)
    fault = None
    end = first if last is None else last
    try:
        if last is None:
            end = source.head_height
        audit.walk(first, end)
    except ChainError as error:
        what = error.what or str(error)
        here = f"block {audit.height}: "
        fault = Fault(audit.height, what if here in what else here + what, error.expected, error.got)
    if fault is None and last is None:
        fault = next((Fault(damage.height, damage.what) for damage in source.find_damage()), None)
    return VerifyReport(
        ok=fault is None,
        first=first,
        last=end,
        blocks=audit.blocks,
        signatures=audit.signatures,
        recomputed=audit.recomputed,
        not_held=audit.not_held,
        fault=fault,
        head=audit.head,
        seconds=time.perf_counter() - began,
    )


# The exported form
#
#     magic 8 | version u16 | chain id 32 | first height u64
#     per height: length u32 | block | length u32 | certificate (empty at height 0)
#     length 0 | number of heights u64 | SHA-256 of everything before it

EXPORT_MAGIC = b"fnexport"
EXPORT_VERSION = 1
_EXPORT_HEAD = struct.Struct(">8sH32sQ")
_LENGTH = struct.Struct(">I")
_EXPORT_END = struct.Struct(">IQ")

ExportedBlock = tuple[int, bytes, bytes]  # height, block, certificate


def export_blocks(source: BlockSource, first: int, last: int) -> Iterator[ExportedBlock]:
    """Yields height and stored bytes of the heights first..last. Raises StoreCorrupted at one that is missing or
    damaged."""
    height = first
    for row in source.read_rows(first, last):
        if row.height != height or row.damage is not None:
            break
        yield height, row.block, row.certificate
        height += 1
    if height <= last:
        raise StoreCorrupted(f"block {height}: {row.damage if row.height == height else 'missing from the store'}")


class ExportFrames:
    """The bytes of an export of consecutive heights, piece by piece: the head, each block, and the end."""

    def __init__(self, chain_id: Digest, first: int) -> None:
        self.count = 0
        self._hasher = hashlib.sha256()
        self._head = _EXPORT_HEAD.pack(EXPORT_MAGIC, EXPORT_VERSION, chain_id, first)

    def write_head(self) -> bytes:
        return self._take(self._head)

    def write_block(self, block: bytes, certificate: bytes) -> bytes:
        self.count += 1
        return self._take(_LENGTH.pack(len(block)) + block + _LENGTH.pack(len(certificate)) + certificate)

    def write_end(self) -> bytes:
        return self._take(_EXPORT_END.pack(0, self.count)) + self._hasher.digest()

    def _take(self, data: bytes) -> bytes:
        self._hasher.update(data)
        return data


def write_export(stream: IO[bytes], chain_id: Digest, blocks: Iterable[ExportedBlock]) -> int:
    """Writes consecutive heights to `stream` and returns how many. Raises ValueError when they are not consecutive."""
    frames: ExportFrames | None = None
    first = 0
    for height, block, certificate in blocks:
        if frames is None:
            first, frames = height, ExportFrames(chain_id, height)
            stream.write(frames.write_head())
        if height != first + frames.count:
            raise ValueError(f"export: expected height {first + frames.count}, got {height}")
        stream.write(frames.write_block(block, certificate))
    if frames is None:
        frames = ExportFrames(chain_id, first)
        stream.write(frames.write_head())
    stream.write(frames.write_end())
    return frames.count


def read_export(stream: IO[bytes], chain_id: Digest) -> Iterator[ExportedBlock]:
    """Yields the heights of an export in order, without validating the blocks.

    Raises DecodeError when the file is not an export, is cut short or was changed, and ValidationError when it belongs
    to another chain. A frame larger than a block may be is not read.
    """
    hasher = hashlib.sha256()

    def read(count: int) -> bytes:
        data = stream.read(count)
        if len(data) != count:
            raise DecodeError(f"export: expected {count} more bytes, got {len(data)}")
        hasher.update(data)
        return data

    def read_frame(what: str, max_bytes: int) -> bytes:
        (length,) = _LENGTH.unpack(read(_LENGTH.size))
        if length > max_bytes:
            raise DecodeError(f"export: {what}: expected at most {max_bytes} bytes, got {length}")
        return read(length)

    magic, version, stored_chain_id, height = _EXPORT_HEAD.unpack(read(_EXPORT_HEAD.size))
    if (magic, version) != (EXPORT_MAGIC, EXPORT_VERSION):
        raise DecodeError(
            f"export: expected {EXPORT_MAGIC!r} version {EXPORT_VERSION}, got {magic!r} version {version}"
        )
    if stored_chain_id != chain_id:
        raise ValidationError.differs("chain id of the export", chain_id, stored_chain_id)
    count = 0
    while block := read_frame(f"block {height}", MAX_BLOCK_BYTES):
        certificate = read_frame(f"certificate of block {height}", MAX_CERTIFICATE_BYTES)
        yield height, block, certificate
        height, count = height + 1, count + 1
    (stored_count,) = struct.unpack(">Q", read(8))
    if stored_count != count:
        raise DecodeError(f"export: expected {stored_count} blocks, got {count}")
    digest = hasher.digest()
    if read(hashlib.sha256().digest_size) != digest:
        raise DecodeError("export: expected the digest of what was read, got another: the file was changed")
    if stream.read(1):
        raise DecodeError("export: expected the end of the file, got more bytes")
