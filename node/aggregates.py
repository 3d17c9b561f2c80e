"""The aggregates of finalised blocks: the newest at hand, older ones in the store, missing ones pulled by digest."""

from __future__ import annotations

from chain.block import ZERO, Block
from chain.genesis import Genesis
from ml import payload
from node.blobs import BlobFetcher
from node.payloads import Aggregate


class Aggregates:
    """What a block's digest stands for. A certificate vouches for the digest, so any peer may serve the bytes."""

    def __init__(self, genesis: Genesis, blobs: BlobFetcher) -> None:
        self._max_bytes = genesis.limits.payload_bytes * genesis.n
        self._blobs = blobs
        self._newest: Aggregate | None = None

    def on_new(self, aggregate: Aggregate) -> None:
        """An aggregate was computed here: it stays at hand for the worker and the next round."""
        self._newest = aggregate

    async def get(self, block: Block) -> bytes | None:
        """Its bytes, however long it takes to find them; None where the method votes on nothing."""
        digest = block.header.aggregate
        if digest == ZERO:
            return None
        if self._newest is None or self._newest.digest != digest:
            self._newest = Aggregate(await self._blobs.fetch(digest, self._max_bytes), digest)
        return self._newest.data

    async def get_arrays(self, block: Block) -> payload.Arrays | None:
        """As named arrays, read-only."""
        data = await self.get(block)
        return None if data is None else payload.decode_arrays(data, len(data))
