"""The audit of a whole data directory: every stored row, every rule of the chain, every held blob, and every aggregate
that can be recomputed (DESIGN §1, Audit). Numpy at most, never torch.

It runs on a thread of its own. What touches the database goes through `Call`, in small batches, so that a running
node's disk thread is never kept for long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from chain.audit import Fault, VerifyReport, verify_chain
from chain.block import ZERO, Block, Digest, PayloadRef
from chain.codec import decode_block
from chain.errors import BlobMissing, ChainError, InvalidAggregate, StoreCorrupted
from chain.genesis import Genesis
from chain.state import State
from chain.store.interface import BlockRow, Damage
from chain.store.sqlite import SqliteStore
from ml.aggregation import RULES, carry
from ml.errors import MlError, SpecError
from ml.payload import Arrays, decode_arrays, kind_name
from ml.specs import AuthorPayloads, MethodSpec, compute_aggregate
from node.config.genesis_file import make_spec
from node.errors import NodeError, NotFound
from node.payloads.checks import check_file
from node.payloads.chunks import Chunks, ChunksMisfit
from node.pb import admin_pb2 as pb
from node.runs.specs import RunRound

BATCH_ROWS = 16

T = TypeVar("T")


class Call(Protocol):
    """Runs a function on the thread that may use the store's connection, and waits for it."""

    def __call__(self, function: Callable[[], T]) -> T: ...


def call_directly(function: Callable[[], T]) -> T:
    return function()


class _Source:
    """Reads a store for an audit, a batch of rows at a time, and calls `on_height` for each height read."""

    def __init__(self, store: SqliteStore, call: Call, on_height: Callable[[int], None]) -> None:
        self._store = store
        self._call = call
        self._on_height = on_height
        self._checked: set[Digest] = set()

    @property
    def head_height(self) -> int:
        return self._call(lambda: self._store.head_height)

    def read_rows(self, first: int, last: int) -> Iterator[BlockRow]:
        for row in self._read(first, last):
            self._on_height(row.height)
            yield row

    def find_row(self, height: int) -> BlockRow | None:
        """Returns one row that another block's check needs, without a call of `on_height`."""
        return next(self._read(height, height), None)

    def _read(self, first: int, last: int) -> Iterator[BlockRow]:
        rows = self._store.read_rows(first, last)
        more = True
        while more:
            batch, error = self._call(partial(_take, rows, BATCH_ROWS))
            yield from batch
            if error is not None:
                raise error
            more = len(batch) == BATCH_ROWS

    def get_state(self, height: int) -> State:
        return self._call(partial(self._store.get_state, height))

    def find_damage(self) -> Iterator[Damage]:
        """Yields rows that are not blocks, then the damage to held blobs that no block of the audit has named."""
        damages = self._store.find_damage()
        while (damage := self._call(lambda: next(damages, None))) is not None:
            yield damage
        for digest in self._store.held_blobs():
            if digest not in self._checked:
                try:
                    self.check_blob(digest)
                except StoreCorrupted as error:
                    yield Damage(None, str(error))

    # Blobs are files: they may be read on any thread.

    def has_blob(self, digest: Digest) -> bool:
        return self._store.has_blob(digest)

    def check_blob(self, digest: Digest) -> None:
        with suppress(BlobMissing):  # pruned meanwhile
            self._store.check_blob(digest)
        self._checked.add(digest)

    def blob_path(self, digest: Digest) -> Path:
        return self._store.blob_path(digest)

    def get_size(self, digest: Digest) -> int | None:
        """Returns the bytes of a blob, None when it is not held."""
        return self._store.blob_size(digest)

    def get_blob(self, digest: Digest) -> bytes | None:
        """Returns a blob, None when it is not held. Raises StoreCorrupted."""
        try:
            return self._store.get_blob(digest)
        except BlobMissing:
            return None


def _take(rows: Iterator[BlockRow], count: int) -> tuple[list[BlockRow], ChainError | None]:
    """Returns the next rows, and the error of reading the one after them, if any."""
    taken: list[BlockRow] = []
    try:
        while len(taken) < count and (row := next(rows, None)) is not None:
            taken.append(row)
    except StoreCorrupted as error:
        return taken, error
    return taken, None


class Inputs(NamedTuple):
    """The inputs of an aggregate: the payloads, and the parent's aggregate where a rule reads it."""

    contributions: Sequence[AuthorPayloads]
    parent: Arrays | None


def read_inputs(
    genesis: Genesis, store: SqliteStore, round_: RunRound, block: Block, call: Call = call_directly
) -> Inputs | None:
    """Returns `Recomputation.read` of one block."""
    return Recomputation(genesis, _Source(store, call, lambda _: None)).read(block, round_)


class Recomputation:
    """Recomputes aggregates from the blobs of blocks, each by its own run. It is called for one block after the other;
    see `chain.audit.Recompute`."""

    def __init__(self, genesis: Genesis, source: _Source) -> None:
        self._genesis = genesis
        self._source = source
        self._newest: tuple[State, MethodSpec] | None = None

    def __call__(self, block: Block, state: State) -> Digest | None:
        """Returns the digest of the aggregate; None when a blob that it needs is not held.

        Raises InvalidAggregate when the blobs break the method's rules for them, StoreCorrupted when one is damaged,
        and NodeError where this release does not know the method.
        """
        round_ = self._get_round(block, state)
        try:
            return self._compute(block, round_)
        except MlError as error:
            raise InvalidAggregate(f"block {block.height}: cannot be recomputed: {error}") from error

    def _get_round(self, block: Block, state: State) -> RunRound:
        if self._newest is None or self._newest[0] is not state:
            try:
                self._newest = state, make_spec(state.run, state.rules, state.n)
            except SpecError as error:
                raise NodeError(
                    f"block {block.height}: this version cannot recompute its aggregate: {error}"
                ) from error
        return RunRound.at(block.height, state.run, self._newest[1], state.rules)

    def _compute(self, block: Block, round_: RunRound) -> Digest | None:
        inputs = self.read(block, round_)
        if inputs is None:
            return None
        aggregate = compute_aggregate(round_.spec, round_.number, *inputs)
        return ZERO if aggregate is None else hashlib.sha256(aggregate).digest()

    def read(self, block: Block, round_: RunRound) -> Inputs | None:
        """Returns the payloads from which the aggregate is computed, in author order; None when one of them is not
        held.

        Raises MlError and InvalidAggregate for blobs that break the method's rules, StoreCorrupted for a damaged one.
        """
        spec, number = round_.spec, round_.number
        rules, streamed = spec.rules(number), spec.get_streamed(number)
        authors = []
        for contribution in block.contributions:
            refs = {kind_name(ref.kind): ref for ref in contribution.payloads}
            spec.validate_kinds(refs, number)
            spec.validate_weight(contribution.weight)
            payloads: dict[str, Arrays] = {}
            for kind, rule in rules.items():
                if kind in streamed:
                    continue
                data = self._source.get_blob(refs[kind].digest)
                if data is not None:
                    payloads[kind] = self._decode(kind, data, refs[kind].size, round_)
                elif RULES.get(rule) is not carry:  # which does not read the payload
                    return None
            for kind, digests in streamed.items():
                self._check_file(kind, refs[kind], payloads.get(digests), round_)
            authors.append(AuthorPayloads(contribution.author, contribution.weight, payloads))
        parent = None
        if spec.reads_parent(number):
            parent = self._get_parent(block.height - 1)
            if parent is None:
                return None
        return Inputs(authors, parent)

    def _decode(self, kind: str, data: bytes, size: int, round_: RunRound) -> Arrays:
        if len(data) != size:
            raise InvalidAggregate.differs(f"block {round_.height}: bytes of a payload {kind!r}", size, len(data))
        arrays = decode_arrays(data, round_.spec.schemas(round_.number)[kind].max_bytes)
        round_.spec.validate_payload(kind, arrays, round_.number)
        return arrays

    def _check_file(self, kind: str, ref: PayloadRef, digests: Arrays | None, round_: RunRound) -> None:
        """Checks a blob too large for memory, if it is held, also against the digests of its chunks, if they are
        held."""
        size = self._source.get_size(ref.digest)
        if size is None:
            return
        if size != ref.size:
            raise InvalidAggregate.differs(f"block {round_.height}: bytes of a payload {kind!r}", ref.size, size)
        path = self._source.blob_path(ref.digest)
        with suppress(BlobMissing):  # pruned meanwhile
            if digests is not None:
                try:
                    Chunks.from_payload(ref.size, digests).check_blob(path, ref.digest)
                except ChunksMisfit as error:
                    raise InvalidAggregate(f"block {round_.height}: a payload {kind!r}: {error}") from error
            check_file(round_.spec, round_.number, kind, path)

    def _get_parent(self, height: int) -> Arrays | None:
        row = self._source.find_row(height)
        if row is None:
            return None
        digest = decode_block(self._genesis.chain_id, row.block).header.aggregate
        data = self._source.get_blob(digest) if digest != ZERO else None
        return None if data is None else decode_arrays(data, len(data))


def run_audit(
    genesis: Genesis,
    store: SqliteStore,
    *,
    deep: bool,
    first: int = 0,
    require_all: bool = False,
    call: Call = call_directly,
    on_height: Callable[[int], None] = lambda _: None,
) -> pb.VerifyReport:
    """Returns the verdict on the heights from `first` to the head and on everything beside them in the directory.

    With `deep` every aggregate whose blobs are held is recomputed, each by its run; with `require_all` one that cannot
    be is a fault. `on_height` is called for each height read and may raise to end the audit. Raises NotFound when
    `first` is above the head.
    """
    source = _Source(store, call, on_height)
    try:
        head = source.head_height
    except StoreCorrupted:
        pass  # the audit below reports it
    else:
        if not 0 <= first <= head:
            raise NotFound(f"block {first}: the chain ends at height {head}")
    recompute = Recomputation(genesis, source) if deep else None
    return show_report(verify_chain(genesis, source, first=first, recompute=recompute), require_all=require_all)


def show_report(report: VerifyReport, *, require_all: bool = False) -> pb.VerifyReport:
    fault = report.fault
    if fault is None and require_all and report.not_held:
        height = report.not_held[0]
        fault = Fault(height, f"block {height}: its aggregate cannot be recomputed, as a blob it takes is not held")
    shown = pb.VerifyReport(
        ok=fault is None,
        first=report.first,
        last=report.last,
        blocks=report.blocks,
        signatures=report.signatures,
        recomputed=report.recomputed,
        not_held=report.not_held,
        head=report.head.hex(),
        seconds=report.seconds,
    )
    if fault is not None:
        shown.fault.CopyFrom(show_fault(fault.height, fault.what, fault.expected, fault.got))
    return shown


def show_fault(height: int | None, what: str, expected: str = "", got: str = "") -> pb.Fault:
    return pb.Fault(height=height, what=what, expected=expected, got=got)
