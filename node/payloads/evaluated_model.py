"""The model that the end of a run will evaluate: the aggregate of its best round so far, which stays until then."""

from __future__ import annotations

from chain.block import Block, Digest
from chain.calendar import Place
from chain.selection import Selection, read_selection
from chain.store.sqlite import SqliteStore
from node.runs.specs import RunSpecs


class EvaluatedModel:
    """Follows the blocks of a chain, and names the model that stays. Runs on the store's thread."""

    def __init__(self, store: SqliteStore, runs: RunSpecs) -> None:
        self._store = store
        self._runs = runs
        head = store.head_height
        evaluates = self._is_evaluated_after(head)
        self._selection = read_selection(store.get_state, store.read_blocks, head) if evaluates else Selection()
        self.digests = self._find(head)

    def on_block(self, block: Block) -> None:
        """Updates the model after a block was appended."""
        height = block.height
        if block.change is None and self._is_evaluated_after(height - 1):
            state = self._store.get_state(height - 1)
            self._selection = self._selection.after(state, block.contributions, height)
        self.digests = self._find(height)

    def _is_evaluated_after(self, head: int) -> bool:
        """Says whether a height above `head` evaluates."""
        run = self._runs.calendar.get_span(head + 1).run
        return run.select is not None and run.select.evaluate and run.has_round(head + 1)

    def _find(self, head: int) -> frozenset[Digest]:
        """Returns the digest of the aggregate that stays, if there is one by now."""
        run = self._runs.calendar.get_span(head + 1).run
        if not self._is_evaluated_after(head) or self._selection.run != run.number:
            return frozenset()
        height = self._runs.calendar.get_height(Place(run.number, self._selection.best))
        stored = self._store.get_block(height) if height is not None and height <= head else None
        return frozenset() if stored is None else frozenset([stored.block.header.aggregate])

    def __repr__(self) -> str:
        return f"EvaluatedModel(best={self._selection.best}, held={len(self.digests)})"
