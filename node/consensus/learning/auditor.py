"""Recomputes later what this node followed by certificate alone; a wrong aggregate halts it (PROTOCOL §9).

A node that was away accepts final blocks on the word of a quorum. Their blobs come later, from any peer that still has
them; then the aggregate is recomputed like any other, and `chain verify --deep` finds the height covered. Large blobs
are requested only while peers still keep them: for the newest heights, and for those that later rounds read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import pairwise

from chain import validation
from chain.block import Block, Digest
from chain.errors import InvalidAggregate
from chain.store.interface import IMPORTED
from chain.store.sqlite import SqliteStore
from ml.payload import kind_code
from node.boundary import UNFORESEEN, Boundary
from node.consensus.height.halted import Halted
from node.offload import Offload
from node.payloads.aggregates import Aggregates
from node.payloads.checks import PayloadRefused, RoundPayloads
from node.payloads.fetcher import BlobFetcher
from node.payloads.retention import LARGE_BYTES
from node.runs.specs import RunRound, RunSpecs

log = logging.getLogger(__name__)

IMPORT_BATCH = 64  # imported heights that are read at once
MAX_WAITING = 4096  # heights; of a longer catch-up the oldest stay unaudited, and `chain verify --deep` lists them


class Auditor:
    """Audits followed heights one at a time, after everything else this node does. `disk` is the store's thread,
    `arithmetic` the one for arrays."""

    def __init__(
        self,
        runs: RunSpecs,
        blobs: BlobFetcher,
        aggregates: Aggregates,
        store: SqliteStore,
        *,
        disk: Offload,
        arithmetic: Offload,
        boundary: Boundary,
    ) -> None:
        self._runs = runs
        self._store = store
        self._disk = disk
        self._blobs = blobs
        self._aggregates = aggregates
        self._arithmetic = arithmetic
        self._boundary = boundary
        self._waiting: deque[tuple[Block, Block]] = deque(maxlen=MAX_WAITING)
        self._added = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, block: Block, parent: Block) -> None:
        """Adds a `block` on `parent` that was followed without being recomputed. A change has nothing to recompute."""
        if block.change is not None:
            return
        self._waiting.append((block, parent))
        self._added.set()
        self._idle.clear()

    async def audit_imported(self, head: int) -> None:
        """Audits what was imported while this node was stopped, up to height `head`."""
        noted = await self._disk.run(self._store.get_meta, IMPORTED)
        if noted is None:
            return
        last = min(noted["last"], head)
        for first in range(max(noted["first"], last - MAX_WAITING + 1), last + 1, IMPORT_BATCH):
            blocks = await self._disk.run(self._read_blocks, first - 1, min(first + IMPORT_BATCH - 1, last))
            for parent, block in pairwise(blocks):
                self.add(block, parent)
        await self.wait_until_idle()
        await self._disk.run(self._store.put_meta, IMPORTED, None)

    def _read_blocks(self, first: int, last: int) -> list[Block]:
        """Reads blocks, on the disk's thread."""
        return [stored.block for stored in self._store.blocks(first, last)]

    async def wait_until_idle(self) -> None:
        """Waits until all added blocks have been audited."""
        await self._idle.wait()

    async def run(self) -> None:
        """Audits added blocks until cancelled. Raises Halted for a certified block with a wrong aggregate."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._waiting:
                block, parent = self._waiting.popleft()
                with self._boundary.around("audit") as crossing:
                    round_ = self._runs.find(block.height)
                    if round_ is not None and self._is_worth_asking_for(block, round_):
                        await self._audit(block, parent, round_)
                if crossing.failure is not None:  # the block itself may be right
                    log.warning("height %d stays unaudited: %s", block.height, UNFORESEEN)
            self._idle.set()

    def _is_worth_asking_for(self, block: Block, round_: RunRound) -> bool:
        spec, number = round_.spec, round_.number
        newest = self._waiting[-1][0].height if self._waiting else block.height
        is_recent = len(self._waiting) < self._runs.calendar.get_span(newest + 1).rules.keep_heights
        is_needed = self._runs.is_needed(round_, newest) or self._runs.is_kept(round_)
        if spec.get_lent(number):
            return is_needed  # no other node has the lent blobs any more
        voted = {kind_code(kind) for kind in spec.rules(number)}
        refs = [ref for contribution in block.contributions for ref in contribution.payloads]
        is_small = all(ref.size <= LARGE_BYTES for ref in refs if ref.kind in voted)
        return is_recent or is_needed or (is_small and not spec.get_streamed(number))

    async def _audit(self, block: Block, parent: Block, round_: RunRound) -> None:
        payloads = RoundPayloads(
            round_.spec,
            round_number=round_.number,
            parent=lambda: self._aggregates.get_arrays(parent),
            blobs=self._blobs,
            arithmetic=self._arithmetic,
        )
        try:
            validation.validate_aggregate(block, await self._recompute(payloads, block, round_))
        except TimeoutError:
            log.info("height %d stays unaudited: nobody has its blobs any more", block.height)
            self._blobs.abandon()
        except (PayloadRefused, InvalidAggregate) as error:
            raise Halted(f"height {block.height}: certified, but {error}") from error

    async def _recompute(self, payloads: RoundPayloads, block: Block, round_: RunRound) -> Digest:
        """Returns the digest of the recomputed aggregate. Raises TimeoutError if nothing has come in for
        `waits.collect_s`, or not all in the time that its round had."""
        quiet_s = round_.rules.waits.collect_s
        work = asyncio.create_task(self._compute(payloads, block))
        try:
            async with asyncio.timeout(round_.collect_s):
                before = -1
                while not work.done():
                    if before == self._blobs.received_bytes:
                        raise TimeoutError
                    before = self._blobs.received_bytes
                    await asyncio.wait({work}, timeout=quiet_s)
                return await work
        finally:
            work.cancel()

    async def _compute(self, payloads: RoundPayloads, block: Block) -> Digest:
        await asyncio.gather(*(payloads.ensure(contribution) for contribution in block.contributions))
        return (await payloads.aggregate(block.contributions)).digest
