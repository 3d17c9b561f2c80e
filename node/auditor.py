"""Recomputes, afterwards, what this node followed by certificate alone; what does not fit halts it (PROTOCOL §9).

A node that was away takes finalised blocks on the word of a quorum. Their blobs come later, from whoever still has
them: then the aggregate is recomputed like any other, and `chain verify --deep` finds the height covered. Large blobs
are only asked for while peers still keep them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from chain import validation
from chain.block import Block
from chain.errors import InvalidAggregate
from chain.genesis import Genesis
from ml import specs
from ml.payload import kind_name
from node.aggregates import Aggregates
from node.blobs import BlobFetcher
from node.errors import NodeError
from node.offload import Offload
from node.payloads import PayloadRefused, Payloads
from node.retention import LARGE_BYTES

log = logging.getLogger(__name__)

MAX_WAITING = 4096  # heights; of a longer catch-up the oldest stay unaudited, and `chain verify --deep` lists them


class Halted(NodeError):
    """The chain cannot be trusted any more; the text says why. The node stops and stays readable."""


class Auditor:
    """Works through followed heights one at a time, behind everything else this node does."""

    def __init__(
        self,
        genesis: Genesis,
        spec: specs.MethodSpec,
        blobs: BlobFetcher,
        aggregates: Aggregates,
        arithmetic: Offload,
    ) -> None:
        self._genesis = genesis
        self._spec = spec
        self._blobs = blobs
        self._aggregates = aggregates
        self._arithmetic = arithmetic
        self._waiting: deque[tuple[Block, Block]] = deque(maxlen=MAX_WAITING)
        self._added = asyncio.Event()

    def add(self, block: Block, parent: Block) -> None:
        """`block`, on `parent`, was followed without being recomputed."""
        self._waiting.append((block, parent))
        self._added.set()

    async def run(self) -> None:
        """Until cancelled. Raises Halted for a certified block whose aggregate is another one."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._waiting:
                block, parent = self._waiting.popleft()
                if self._is_worth_asking_for(block):
                    await self._audit(block, parent)

    def _is_worth_asking_for(self, block: Block) -> bool:
        is_recent = len(self._waiting) < self._genesis.keep_heights
        voted = self._spec.rules(block.height)
        refs = [ref for contribution in block.contributions for ref in contribution.payloads]
        return is_recent or all(ref.size <= LARGE_BYTES for ref in refs if kind_name(ref.kind) in voted)

    async def _audit(self, block: Block, parent: Block) -> None:
        payloads = Payloads(
            self._spec,
            height=block.height,
            parent=lambda: self._aggregates.get_arrays(parent),
            blobs=self._blobs,
            arithmetic=self._arithmetic,
        )
        try:
            async with asyncio.timeout(self._genesis.waits.collect_s):
                await asyncio.gather(*(payloads.ensure(contribution) for contribution in block.contributions))
                aggregate = await payloads.aggregate(block.contributions)
            validation.validate_aggregate(block, aggregate.digest)
        except TimeoutError:
            log.info("height %d stays unaudited: nobody has its blobs any more", block.height)
            self._blobs.abandon()
        except (PayloadRefused, InvalidAggregate) as error:
            raise Halted(f"height {block.height}: certified, but {error}") from error
