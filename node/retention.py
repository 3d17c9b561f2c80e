"""Which blobs a node lets go: large ones of old heights. Small ones are kept for ever (DESIGN §1)."""

from __future__ import annotations

from collections import deque

from chain.block import Block
from chain.genesis import Genesis
from chain.signed import get_block_digests
from chain.sqlite_store import SqliteStore

LARGE_BYTES = 1 << 20


class Retention:
    """Lets the large blobs of a height go once `keep_heights` newer ones are there.

    Runs on the store's thread. Block 0's initial model stays, and so does what a newer height names too.
    """

    def __init__(self, store: SqliteStore, genesis: Genesis) -> None:
        self._store = store
        self._genesis = genesis
        head = store.head_height
        newest = store.blocks(max(1, head - genesis.keep_heights + 1), head)
        self._newest = deque(stored.block for stored in newest)

    def on_block(self, block: Block) -> int:
        """A block was appended. Returns how many blobs went."""
        self._newest.append(block)
        if len(self._newest) <= self._genesis.keep_heights:
            return 0
        return self._prune(self._newest.popleft())

    def _prune(self, block: Block) -> int:
        sizes = [ref.size for contribution in block.contributions for ref in contribution.payloads]
        if sum(sizes) <= LARGE_BYTES:
            return 0
        large = {digest for digest in get_block_digests(block) if (self._store.blob_size(digest) or 0) > LARGE_BYTES}
        kept = self._store.referenced_blobs(block.height + 1) | {self._genesis.initial_model}
        return sum(self._store.delete_blob(digest) for digest in large - kept)
