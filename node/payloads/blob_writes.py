"""Writes of small blobs that are under way on a thread of their own, so that nothing waits for a disk that need not.

A blob that is here and has its digest may be worked with. Durable it has to be where a word is given on it: whoever
signs a precommit, or commits a block, first settles every write (PROTOCOL §10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chain.block import Digest
from chain.store.sqlite import SqliteStore
from node.offload import Offload

OnFailure = Callable[[BaseException], None]


class BlobWrites:
    """One node's. `offload` runs the writes, in their order, and all that wait at once; `on_failure` hears at once of
    one that fails, and nothing is written from then on."""

    def __init__(self, store: SqliteStore, offload: Offload, on_failure: OnFailure = lambda error: None) -> None:
        self._store = store
        self._offload = offload
        self._on_failure = on_failure
        self._waiting: dict[Digest, bytes] = {}
        self._running: frozenset[Digest] = frozenset()
        self._writing: asyncio.Task[None] | None = None
        self._written: set[Digest] = set()

    def __repr__(self) -> str:
        return f"BlobWrites(waiting={len(self._waiting)}, running={len(self._running)})"

    def begin(self, digest: Digest, data: bytes) -> None:
        """Has a blob written, unless it is held or being written. What was held before counts as nothing that came:
        nobody can have it let go of by offering it anew."""
        if digest in self._waiting or digest in self._running or self._store.has_blob(digest):
            return
        self._written.add(digest)
        self._waiting[digest] = data
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="write blobs")
            self._writing.add_done_callback(self._on_done)

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, {}
            self._running = frozenset(batch)
            await self._offload.run(self._store.put_blobs, tuple(batch.values()))
            self._running = frozenset()
        self._writing = None  # not after a failure

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def settle(self) -> None:
        """Returns once everything begun is durable. Raises what the store raises, at every call from then on."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    def take_written(self) -> frozenset[Digest]:
        """The digests of blobs that were not held before, since the last call."""
        written, self._written = frozenset(self._written), set()
        return written
