"""Block inputs: what the learner gets of final blocks, to apply them and to train on.

An aggregate is computed from what is here, or had from any peer. What single peers offer (blobs on demand, shared sets)
is pulled, and a round goes on without those of whom it cannot be had.
"""

from __future__ import annotations

from chain.block import Block, Id
from chain.store.sqlite import SqliteStore
from ml.specs import MethodSpec
from node.boundary import Boundary
from node.consensus.current import CurrentRound
from node.consensus.record import Records
from node.offload import Offload
from node.payloads.aggregates import Aggregates
from node.payloads.on_demand import OnDemand, get_kinds
from node.payloads.pulled import Pulled
from node.payloads.shared_sets import SharedSets
from node.training.exchange import Exchange
from node.training.learner import RoundInput

RECALLED_HEIGHTS = 64  # below the head, in which an older aggregate is looked for


class BlockInputs:
    """One learner's `RoundInputs`. `me` is this client; `disk` is the store's thread."""

    def __init__(
        self,
        current: CurrentRound,
        me: Id,
        spec: MethodSpec,
        store: SqliteStore,
        disk: Offload,
        *,
        aggregates: Aggregates,
        on_demand: OnDemand,
        shared_sets: SharedSets,
        records: Records,
        boundary: Boundary,
    ) -> None:
        self._current = current
        self._me = me
        self._spec = spec
        self._store = store
        self._disk = disk
        self._aggregates = aggregates
        self._on_demand = on_demand
        self._shared_sets = shared_sets
        self._records = records
        self._boundary = boundary

    async def prepare(self, height: int, head: Block) -> Exchange:
        """What the worker's local phase for `height` reads of an earlier block."""
        pulled = Pulled(Exchange(head.id, self._me))  # where it fails, nobody's
        with self._boundary.around("shared sets"):
            pulled = await self._shared_sets.gather(height, head)
        record = self._records.current
        if self._spec.get_shared_height(height) and record is not None and record.height == height:
            record.on_taken(pulled.pulled_bytes, pulled.reasons)
        return pulled.exchange

    async def gather(self, block: Block) -> RoundInput:
        """What the worker needs of a final block: its aggregate, and what the method wants of single peers."""
        aggregate = await self._aggregates.get(block)
        pulled = Pulled(Exchange(block.header.prev, self._me))  # where it fails, of nobody
        with self._boundary.around("blobs on demand"):
            pulled = await self._on_demand.take(block, aggregate)
        record = self._records.get(block.height)
        if record is not None and get_kinds(self._spec, block.height):
            record.on_taken(pulled.pulled_bytes, pulled.reasons)
        return RoundInput(aggregate, pulled.exchange)

    async def recall(self, below: int) -> tuple[int, bytes] | None:
        """The newest aggregate below a height that is held here, with its own."""
        for height in range(below - 1, max(0, self._current.tip.height - RECALLED_HEIGHTS), -1):
            stored = await self._disk.run(self._store.get_block, height)
            if stored is not None and (aggregate := await self._aggregates.find(stored.block)) is not None:
                return height, aggregate
        return None
