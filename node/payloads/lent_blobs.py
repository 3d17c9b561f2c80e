"""Blobs that members have lent for an evaluation: deleted as soon as it is over, however small, and also where a node
went down in between. Nobody can see what other nodes do with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from chain.block import Block, Contribution, Digest
from chain.calendar import Place
from chain.store.sqlite import SqliteStore
from ml.payload import kind_code
from node.runs.specs import RunSpecs


class LentBlobs:
    """Follows the blocks of a chain, and deletes lent blobs. Runs on the store's thread."""

    def __init__(self, store: SqliteStore, runs: RunSpecs) -> None:
        self._store = store
        self._runs = runs
        self._held = dict[int, frozenset[Digest]]()  # by height
        for number in (runs.calendar.newest.run.number - 1, runs.calendar.newest.run.number):
            height = runs.calendar.get_height(Place(number, 1))
            stored = None if height is None or height > store.head_height else store.get_block(height)
            if stored is not None:
                self._note(stored.block)
        self._drop(store.head_height)

    def on_block(self, block: Block, seen: Iterable[Contribution] = (), pulled: Collection[Digest] = ()) -> int:
        """Notes the lent blobs of a block that was appended, of the contributions `seen` for its height, and of the
        blobs new here that were `pulled` for the vote. Returns how many blobs it deleted."""
        self._note(block, seen, pulled)
        return self._drop(block.height) if self._held else 0

    def _note(self, block: Block, seen: Iterable[Contribution] = (), pulled: Collection[Digest] = ()) -> None:
        round_ = self._runs.find(block.height)
        codes = {kind_code(kind) for kind in round_.spec.get_lent(round_.number)} if round_ is not None else set()
        named = {ref.digest for one in block.contributions for ref in one.payloads if ref.kind in codes}
        late = {ref.digest for one in seen for ref in one.payloads if ref.kind in codes}
        if digests := frozenset(named | late.intersection(pulled)):  # outside a block a contribution may name any blob
            self._held[block.height] = digests

    def _drop(self, head: int) -> int:
        over = [height for height in self._held if not self._is_needed(height, head)]
        gone = frozenset[Digest]().union(*(self._held.pop(height) for height in over))
        still = frozenset[Digest]().union(*self._held.values())  # the same model, lent again
        return sum(self._store.delete_blob(digest) for digest in gone - still)

    def _is_needed(self, height: int, head: int) -> bool:
        round_ = self._runs.find(height)
        return round_ is not None and self._runs.is_needed(round_, head)

    def __repr__(self) -> str:
        return f"LentBlobs(held={sum(map(len, self._held.values()))})"
