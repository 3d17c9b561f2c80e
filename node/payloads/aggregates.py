"""The aggregates of finalised blocks: the newest at hand, older ones in the store, missing ones computed or pulled."""

from __future__ import annotations

import logging

from chain.block import ZERO, Block
from chain.errors import BlobMissing
from chain.store.sqlite import SqliteStore
from ml import payload
from node.boundary import Boundary
from node.offload import Offload
from node.payloads.checks import Aggregate, PayloadRefused, RoundPayloads
from node.payloads.fetcher import BlobFetcher
from node.runs.specs import RunRound, RunSpecs

log = logging.getLogger(__name__)


class Aggregates:
    """The aggregates that blocks name by their digests. A certificate vouches for the digest, so any peer may serve the
    bytes.

    An aggregate is computed here if the store holds all its inputs. Members that voted for a block have them all, and
    must not have to wait for the first member that saw it final.
    """

    def __init__(
        self,
        runs: RunSpecs,
        store: SqliteStore,
        blobs: BlobFetcher,
        *,
        disk: Offload,
        arithmetic: Offload,
        boundary: Boundary | None = None,
    ) -> None:
        self._runs = runs
        self._store = store
        self._blobs = blobs
        self._disk = disk
        self._arithmetic = arithmetic
        self._boundary = boundary or Boundary()
        self._newest: Aggregate | None = None

    def on_new(self, aggregate: Aggregate) -> None:
        """Keeps an aggregate that was computed here in memory for the worker and the next round."""
        self._newest = aggregate

    def peek(self, block: Block) -> bytes | None:
        """Returns the bytes of a block's aggregate if it is the newest one, else None."""
        newest = self._newest
        return None if newest is None or newest.digest != block.header.aggregate else newest.data

    async def get(self, block: Block) -> bytes | None:
        """Returns the bytes of a block's aggregate, however long it takes to pull them; None if the method votes on
        nothing."""
        digest = block.header.aggregate
        if digest == ZERO:
            return None
        if self._newest is None or self._newest.digest != digest:
            if not self._store.has_blob(digest):
                await self._try_compute(block)
            self._newest = Aggregate(await self._blobs.fetch(digest, self._runs.calendar.max_aggregate_bytes), digest)
        return self._newest.data

    async def find(self, block: Block) -> bytes | None:
        """Returns the bytes of a block's aggregate if they are held, or can be computed from held blobs; else None, and
        also if the method votes on nothing."""
        digest = block.header.aggregate
        if digest == ZERO:
            return None
        if not self._store.has_blob(digest):
            await self._try_compute(block)
        try:
            return await self._disk.run(self._store.get_blob, digest)
        except BlobMissing:
            return None

    async def _try_compute(self, block: Block) -> None:
        """Computes the aggregate as `compute` does; an error is logged and goes no further."""
        with self._boundary.around("aggregate"):
            await self.compute(block)

    async def compute(self, block: Block) -> None:
        """Computes the aggregate and puts it into the store, if that needs no peer."""
        maker = await self._disk.run(self._find_maker, block)
        if maker is None:
            return
        block, round_ = maker
        parent = await self._disk.run(self._store.get_block, block.height - 1)
        if parent is None or not self._is_all_held(block, round_, parent.block):
            return
        payloads = RoundPayloads(
            round_.spec,
            round_number=round_.number,
            parent=lambda: self.get_arrays(parent.block),
            blobs=self._blobs,
            arithmetic=self._arithmetic,
        )
        try:
            for contribution in block.contributions:
                await payloads.ensure(contribution)
        except PayloadRefused as error:  # the audit reports it
            log.warning("the aggregate of height %d was not computed here: %s", block.height, error)
            return
        aggregate = await payloads.aggregate(block.contributions)
        if aggregate.digest == block.header.aggregate:
            await self._disk.run(self._store.put_blob, aggregate.data)

    def _find_maker(self, block: Block) -> tuple[Block, RunRound] | None:
        """Returns the block of the round that made this block's aggregate: the block itself, or the last round before a
        change. None if no round did, or this release does not know its method. Runs on the disk's thread."""
        digest = block.header.aggregate
        while block.change is not None:
            stored = self._store.get_block(block.height - 1)
            if stored is None or stored.block.header.aggregate != digest:
                return None
            block = stored.block
        round_ = self._runs.find(block.height)
        return None if round_ is None else (block, round_)

    def _is_all_held(self, block: Block, round_: RunRound, parent: Block) -> bool:
        """Says whether every blob that the aggregate is computed from is in the store."""
        voted = {payload.kind_code(kind) for kind in round_.spec.rules(round_.number)}
        refs = [ref for contribution in block.contributions for ref in contribution.payloads]
        needed = {ref.digest for ref in refs if ref.kind in voted}
        if round_.spec.reads_parent(round_.number) and parent.header.aggregate != ZERO:
            needed.add(parent.header.aggregate)
        return all(self._store.has_blob(digest) for digest in needed)

    async def get_arrays(self, block: Block) -> payload.Arrays | None:
        """Returns the aggregate as named arrays, read-only; None if the method votes on nothing."""
        data = await self.get(block)
        return None if data is None else payload.decode_arrays(data, len(data))
