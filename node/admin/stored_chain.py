"""The chain as a running node keeps it: its rules, its store, and the only thread that may read the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from chain.block import Block, Digest
from chain.errors import StoreCorrupted
from chain.genesis import Genesis
from chain.run import Run
from chain.state import State
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from node.ledger.audit import Call
from node.offload import Offload
from node.runs.chosen_round import ChosenRound, choose_round
from node.runs.specs import RunSpecs
from node.training.checkpoint import CHECKPOINTS, get_run_dir
from node.training.own_best import OwnBest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class StoredChain:
    """The chain of one node. `disk` is the store's thread."""

    genesis: Genesis
    runs: RunSpecs
    store: SqliteStore
    disk: Offload
    get_state: Callable[[], State]  # returns the state after the head
    get_tip: Callable[[], Tip]

    def choose_round(self, asked: str, run: Run) -> ChosenRound:
        """Returns the round of a run whose model is asked for. Raises InvalidRequest and NotFound."""
        tip = self.get_tip()
        is_over = run.number != tip.state.run.number or not tip.state.has_round(tip.height + 1)
        return choose_round(asked, run, tip.selection, is_over=is_over, read_own_best=partial(self.read_own_best, run))

    def read_own_best(self, run: Run) -> OwnBest | None:
        """Returns the round of a run that is best on this site's own samples, or None."""
        return OwnBest.read(get_run_dir(self.store.path / CHECKPOINTS, run.number))

    async def get_block(self, height: int) -> Block:
        """Returns a block up to the head. Raises StoreCorrupted."""
        stored = await self.disk.run(self.store.get_block, height)
        if stored is None:
            raise self.describe_missing(height)
        return stored.block

    async def find_blob(self, digest: Digest) -> bytes | None:
        """Returns a blob; None where it is not stored, or not any more."""

        def find() -> bytes | None:
            return self.store.get_blob(digest) if self.store.has_blob(digest) else None

        return await self.disk.run(find)

    async def get_judge(self, height: int) -> State:
        """Returns the state by which the block at `height` is judged. Raises StoreCorrupted."""
        return await self.disk.run(self.store.get_state, max(0, height - 1))

    def describe_missing(self, height: int) -> StoreCorrupted:
        """Returns the error to raise for a block that must be there."""
        return StoreCorrupted(f"{self.store.path}: block {height}: missing from the store")

    def make_call(self) -> Call:
        """Returns a function by which another thread reads the store during a long computation: each call waits for its
        turn on the store's thread."""
        loop = asyncio.get_running_loop()

        def call(function: Callable[[], T]) -> T:
            return asyncio.run_coroutine_threadsafe(self._run(function), loop).result()

        return call

    async def _run(self, function: Callable[[], T]) -> T:
        return await self.disk.run(function)
