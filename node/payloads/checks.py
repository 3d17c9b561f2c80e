"""Turns a round's contributions into checked arrays, and those into the aggregate everyone must get (PROTOCOL §2)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chain import codec
from chain.block import ZERO, Body, Contribution, Digest, Id, PayloadRef
from chain.errors import BlobMissing
from chain.store.blob_files import reading_blob
from ml import payload, specs
from ml.aggregation import RULES, carry
from ml.errors import PayloadError
from node.offload import Offload, run_sized
from node.payloads.chunks import Chunks, ChunksMisfit
from node.payloads.fetcher import BlobFetcher
from node.payloads.pushed import PushedPayloads

Arrays = payload.Arrays


class PayloadRefused(Exception):
    """A contribution's payloads break the method's rules for them; the text says which and how."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The result of a round's rule: encoded bytes and their digest, or (b"", ZERO) if the method votes on nothing."""

    data: bytes
    digest: Digest


NOTHING = Aggregate(b"", ZERO)


class RoundPayloads:
    """The voted payloads of one round of a run. Every blob is decoded and checked once, every body aggregated once.

    A payload that is too large for memory is checked in its file. No arrays of it are kept, because such kinds are
    carried.

    `parent` returns the aggregate before this round as decoded arrays (None if the method has none); it is called only
    if a rule reads it. Blobs that were `pushed` need not be fetched.
    """

    def __init__(
        self,
        spec: specs.MethodSpec,
        *,
        round_number: int,
        parent: Callable[[], Awaitable[Arrays | None]],
        blobs: BlobFetcher,
        arithmetic: Offload,
        pushed: PushedPayloads | None = None,
    ) -> None:
        self._spec = spec
        self._round = round_number
        self._parent = parent
        self.blobs = blobs
        self._arithmetic = arithmetic
        self._pushed = pushed
        rules = spec.rules(round_number)
        self._streamed = spec.get_streamed(round_number)
        self._voted = rules.keys() | set(self._streamed.values())
        self._combined = frozenset(kind for kind, rule in rules.items() if RULES.get(rule) is not carry)
        self._checked: dict[PayloadRef, Arrays] = {}
        self._checked_files: dict[tuple[PayloadRef, PayloadRef], str | None] = {}  # what is wrong with it, if anything
        self._ensured: set[Contribution] = set()
        self._aggregates: dict[Digest, Aggregate] = {}
        self._working = asyncio.Lock()  # a second caller waits, and finds the blob decoded or the body aggregated

    def __repr__(self) -> str:
        return (
            f"RoundPayloads(round={self._round}, checked={len(self._checked)}, "
            f"files={len(self._checked_files)}, ensured={len(self._ensured)}, aggregates={len(self._aggregates)})"
        )

    @property
    def held_bytes(self) -> int:
        """The bytes of checked arrays held in memory now."""
        return sum(array.nbytes for known in self._checked.values() for array in known.values())

    def check_refs(self, contribution: Contribution) -> None:
        """Checks what a contribution states of its payloads, without the blobs. Raises PayloadRefused."""
        check_refs(self._spec, self._round, contribution)

    async def ensure_all(self, contributions: Sequence[Contribution]) -> None:
        """Calls `ensure` for each contribution that was not checked before. The others cost no task: with n candidates
        at a height, each names n of them."""
        await asyncio.gather(*(self.ensure(each) for each in contributions if each not in self._ensured))

    async def ensure(self, contribution: Contribution) -> None:
        """Pulls and checks every voted blob of `contribution`, for as long as it takes. Raises PayloadRefused."""
        self.check_refs(contribution)
        author, refs = contribution.author, {payload.kind_name(ref.kind): ref for ref in contribution.payloads}
        whole = self._voted - self._streamed.keys()
        await asyncio.gather(*(self._ensure_one(author, ref) for kind, ref in refs.items() if kind in whole))
        pairs = [(refs[kind], refs[digests]) for kind, digests in self._streamed.items()]
        await asyncio.gather(*(self._ensure_file(author, ref, digests) for ref, digests in pairs))
        if self._spec.is_judged_on_parent:
            await self._judge_on_parent(contribution)
        self._ensured.add(contribution)

    async def _judge_on_parent(self, contribution: Contribution) -> None:
        """Raises PayloadRefused for payloads that the aggregate before does not ask of this author."""
        parent = await self._parent()
        payloads = {payload.kind_name(ref.kind): self._checked[ref] for ref in contribution.payloads}
        try:
            self._spec.validate_on_parent(contribution.author, payloads, parent, self._round)
        except PayloadError as error:
            raise PayloadRefused(str(error)) from error

    async def _ensure_one(self, author: Id, ref: PayloadRef) -> None:
        if ref in self._checked:
            return
        data = None if self._pushed is None else self._pushed.take(ref.digest)
        if data is None:
            data = await self.blobs.fetch(ref.digest, ref.size, [author])
        if len(data) != ref.size:
            raise PayloadRefused(f"{payload.kind_name(ref.kind)}: declared {ref.size} bytes, has {len(data)}")
        async with self._working:
            if ref not in self._checked:
                self._checked[ref] = await run_sized(self._arithmetic, len(data), self._decode, ref.kind, data)

    def _decode(self, code: int, data: bytes) -> Arrays:
        kind = payload.kind_name(code)
        schema = self._spec.schemas(self._round)[kind]
        try:
            arrays = payload.decode_arrays(data, schema.max_bytes)
            self._spec.validate_payload(kind, arrays, self._round)
        except PayloadError as error:
            raise PayloadRefused(f"{kind}: {error}") from error
        return arrays

    async def _ensure_file(self, author: Id, ref: PayloadRef, digests: PayloadRef) -> None:
        """Checks a blob too large for memory by the digests of its chunks, which `_ensure_one` has checked. The result
        is kept: a wrong blob is not pulled or read again."""
        key = (ref, digests)
        if key not in self._checked_files:
            try:
                await self._pull_file(author, ref, digests)
            except PayloadRefused as error:
                self._checked_files[key] = str(error)
            else:
                self._checked_files[key] = None
        wrong = self._checked_files[key]
        if wrong is not None:
            raise PayloadRefused(wrong)

    async def _pull_file(self, author: Id, ref: PayloadRef, digests: PayloadRef) -> None:
        kind = payload.kind_name(ref.kind)
        while True:
            try:
                chunks = Chunks.from_payload(ref.size, self._checked[digests])
                path = await self.blobs.fetch_file(ref.digest, ref.size, chunks.digests, [author])
            except ChunksMisfit as error:
                raise PayloadRefused(f"{kind}: {error}") from error
            async with self._working:
                if (ref, digests) in self._checked_files:
                    return
                try:
                    await self._arithmetic.run(self._check_file, kind, path)
                except BlobMissing:  # deleted since
                    continue
            return

    def _check_file(self, kind: str, path: Path) -> None:
        """Checks a payload in its file. Raises PayloadRefused and BlobMissing."""
        try:
            check_file(self._spec, self._round, kind, path)
        except PayloadError as error:
            raise PayloadRefused(f"{kind}: {error}") from error

    async def aggregate(self, contributions: Sequence[Contribution]) -> Aggregate:
        """Returns the aggregate of these contributions, which `ensure` has checked."""
        body = codec.compute_body_digest(Body(tuple(contributions)))
        if body not in self._aggregates:
            parent = await self._parent() if self._spec.reads_parent(self._round) else None
            async with self._working:
                if body not in self._aggregates:
                    size = sum(ref.size for contribution in contributions for ref in contribution.payloads)
                    size += sum(array.nbytes for array in (parent or {}).values())
                    aggregate = await run_sized(self._arithmetic, size, self._compute, tuple(contributions), parent)
                    self._aggregates[body] = aggregate
        return self._aggregates[body]

    def get(self, digest: Digest) -> Aggregate | None:
        """Returns the aggregate with this digest, None if it was not computed here."""
        return next((known for known in self._aggregates.values() if known.digest == digest), None)

    def _compute(self, contributions: tuple[Contribution, ...], parent: Arrays | None) -> Aggregate:
        authors = [
            specs.AuthorPayloads(
                contribution.author,
                contribution.weight,
                {
                    payload.kind_name(ref.kind): self._checked[ref]
                    for ref in contribution.payloads
                    if payload.kind_name(ref.kind) in self._combined
                },
            )
            for contribution in contributions
        ]
        data = specs.compute_aggregate(self._spec, self._round, authors, parent)
        return NOTHING if data is None else Aggregate(data, hashlib.sha256(data).digest())


def check_refs(spec: specs.MethodSpec, round_number: int, contribution: Contribution) -> None:
    """Checks what a contribution states of its payloads: kinds, sizes and weight. Raises PayloadRefused."""
    schemas = spec.schemas(round_number)
    try:
        spec.validate_kinds([payload.kind_name(ref.kind) for ref in contribution.payloads], round_number)
        spec.validate_weight(contribution.weight)
    except PayloadError as error:
        raise PayloadRefused(str(error)) from error
    for ref in contribution.payloads:
        kind = payload.kind_name(ref.kind)
        if ref.size > schemas[kind].max_bytes:
            raise PayloadRefused(f"{kind}: expected at most {schemas[kind].max_bytes} bytes, got {ref.size}")


def check_file(spec: specs.MethodSpec, round_number: int, kind: str, path: Path) -> None:
    """Checks a payload in its file, a block at a time. Raises PayloadError and BlobMissing."""
    with reading_blob(path):
        arrays = payload.map_arrays(path, spec.schemas(round_number)[kind].max_bytes)
        spec.validate_payload(kind, arrays, round_number)
