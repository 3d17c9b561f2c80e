"""Block inputs: what the learner needs of final blocks, to apply them and to train on.

An aggregate is computed from blobs that are here, or fetched from any peer. What single peers offer (blobs on demand,
shared sets) is fetched, and a round goes on without the peers from which it does not come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chain.beacon import compute_beacon
from chain.block import Block, Id
from chain.calendar import Place
from chain.errors import StoreCorrupted
from chain.run import Run
from chain.state import State
from chain.store.blob_rows import BlobSource
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError, SpecError
from ml.payload import decode_arrays
from ml.specs.masked.aggregate import count_clipped, explain_lost
from node.boundary import Boundary
from node.consensus.governance.lending import find_lendable, lends_in
from node.consensus.height.current import CurrentRound
from node.consensus.learning.masks import is_opening
from node.consensus.learning.privacy_recount import Recount
from node.consensus.payload_wiring import Payloads
from node.consensus.record.record import Records
from node.offload import Offload
from node.payloads.on_demand import get_kinds
from node.payloads.pulled import Pulled
from node.runs.initial import combine, holds_whole_model
from node.runs.specs import RunSpecs
from node.training.exchange import Exchange
from node.training.target import RoundInput
from node.training.trainer import RunTask, TrainingFailed

RECALLED_ROUNDS = 64  # newest rounds in which an older aggregate is searched


class BlockInputs:
    """Makes the `RoundInputs` of one learner. `me` is this client; `disk` is the store's thread."""

    def __init__(
        self,
        current: CurrentRound,
        me: Id,
        runs: RunSpecs,
        store: SqliteStore,
        disk: Offload,
        payloads: Payloads,
        *,
        records: Records,
        recount: Recount,
        get_name: Callable[[Id], str],
        boundary: Boundary,
    ) -> None:
        self._current = current
        self._me = me
        self._runs = runs
        self._store = store
        self._disk = disk
        self._blobs = payloads.late_blobs
        self._aggregates = payloads.aggregates
        self._on_demand = payloads.on_demand
        self._shared_sets = payloads.shared_sets
        self._records = records
        self._recount = recount
        self._get_name = get_name
        self._boundary = boundary

    async def prepare(self, height: int, head: Block) -> Exchange:
        """Returns what the worker's local phase for `height` reads of an earlier block. Raises TrainingFailed if it is
        not certain what this site has revealed before."""
        if (failure := await self._recount.catch_up()) is not None:
            raise TrainingFailed(failure)
        pulled = Pulled(Exchange(compute_beacon(head), self._me))  # if it fails: of no peer
        with self._boundary.around("shared sets"):
            pulled = await self._shared_sets.gather(height, head)
        record, round_ = self._records.current, self._runs.find(height)
        reads = round_ is not None and round_.spec.get_shared_height(round_.number) is not None
        if reads and record is not None and record.height == height:
            record.on_taken(pulled.pulled_bytes, pulled.reasons)
        return pulled.exchange

    # ---- a run

    async def open_run(self, state: State) -> RunTask:
        """Returns what the worker needs to begin a run: its terms and its initial model, which is fetched if need
        be."""
        run, blobs = state.run, list[BlobSource]()
        for origin in self._runs.list_origins(run.number):
            if not self._store.has_blob(origin.initial_model):
                await self._blobs.fetch(origin.initial_model, self._runs.calendar.max_aggregate_bytes)
            blobs.append(await self._disk.run(self._store.locate_blob, origin.initial_model))
            if await self._disk.run(holds_whole_model, run, blobs[-1]):
                break
        initial = blobs[0] if len(blobs) == 1 else await self._disk.run(self._combine, run, blobs)
        goes_on_after = await self._disk.run(self._find_last_round, run)
        own = find_lendable(run.method)
        lends = own is not None and await self._disk.run(lends_in, self._store, self._runs, run)
        return RunTask(run, state.rules.limits, state.n, initial, goes_on_after, own, lends)

    @staticmethod
    def _combine(run: Run, blobs: Sequence[BlobSource]) -> BlobSource:
        """Combines the blobs to one model, on the disk's thread. If that fails it returns the newest, and the worker
        says why."""
        try:
            return combine(run, blobs)
        except (PayloadError, SpecError, OSError):
            return blobs[0]

    def _find_last_round(self, run: Run) -> int | None:
        """Returns the last round of the run before, if this one goes on from its aggregate with the same method and
        model, and shares no sets again; else None. Runs on the disk's thread."""
        calendar = self._runs.calendar
        before, start = calendar.get_run(run.number - 1), calendar.get_start(run.number)
        if before is None or start is None or start == 0:
            return None
        parent, first = self._store.get_block(start - 1), self._runs.find_round(run.number, 1)
        if parent is None or parent.block.header.aggregate != run.initial_model:
            return None
        is_same = (before.method["name"], before.model, before.classes) == (run.method["name"], run.model, run.classes)
        if not is_same or (first is not None and first.spec.sharing_heights):
            return None
        return calendar.count_rounds(before.number, start - 1)

    # ---- a round

    async def gather(self, height: int) -> RoundInput:
        """Returns what the worker needs of a round's block: its aggregate, and what the method needs of single
        peers."""
        await self._recount.catch_up()  # the worker is ready, so the number of samples is known
        block, parent = [await self._disk.run(self._read_block, each) for each in (height, height - 1)]
        beacon = compute_beacon(parent)
        aggregate = await self._aggregates.get(block)
        pulled = Pulled(Exchange(beacon, self._me))  # if it fails: of no peer
        with self._boundary.around("blobs on demand"):
            pulled = await self._on_demand.take(block, beacon, aggregate)
        record, round_ = self._records.get(block.height), self._runs.find(block.height)
        if record is not None and is_opening(round_) and round_ is not None and round_.number > 1 and aggregate:
            arrays = decode_arrays(aggregate, len(aggregate))
            record.spoiled, record.clipped = explain_lost(arrays, self._get_name), count_clipped(arrays)
        if record is not None and round_ is not None and get_kinds(round_):
            record.on_taken(pulled.pulled_bytes, pulled.reasons)
        return RoundInput(aggregate, pulled.exchange)

    def _read_block(self, height: int) -> Block:
        """Returns the block at a height. Runs on the disk's thread."""
        if height == self._current.tip.height:
            return self._current.tip.block
        stored = self._store.get_block(height)
        if stored is None:
            raise StoreCorrupted(f"{self._store.path}: block {height}: missing from the store")
        return stored.block

    async def recall(self, before: Place) -> tuple[int, bytes] | None:
        """Returns the number and the aggregate of the newest round before `before`, in its run, whose aggregate is held
        here; None if there is none."""
        made = self._runs.calendar.count_rounds(before.run, self._current.tip.height)
        for number in range(before.round - 1, max(0, made - RECALLED_ROUNDS), -1):
            height = self._runs.calendar.get_height(Place(before.run, number))
            stored = None if height is None else await self._disk.run(self._store.get_block, height)
            if stored is not None and (aggregate := await self._aggregates.find(stored.block)) is not None:
                return number, aggregate
        return None
