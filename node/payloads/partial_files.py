"""Partial files: large blobs as far as they have come, each in a file that holds nothing but verified chunks (PROTOCOL
§7).

All pulls of one blob, from whichever peer, append to the same file. A file that is left from before a restart is read
once, and cut at the first chunk that is no longer right.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chain.block import Digest
from chain.errors import ValidationError
from chain.store.blob_files import translated_os_errors
from chain.store.sqlite import SqliteStore
from ml.payload import CHUNK_BYTES
from node.offload import Offload
from node.payloads.chunks import Chunks, ChunksMisfit


class WrongChunk(Exception):
    """A chunk that a peer served has another digest than its author signed."""


class PartialLost(Exception):
    """The chunks of a partial blob were deleted meanwhile."""


class Partial:
    """One partial blob. Only the offload's thread touches its file, where calls keep their order: also a call whose
    caller was cancelled ends before the next begins."""

    def __init__(self, store: SqliteStore, offload: Offload, digest: Digest, chunks: Chunks) -> None:
        self.lock = asyncio.Lock()
        self._store = store
        self._offload = offload
        self._digest = digest
        self._chunks = chunks
        self._good: int | None = None  # how many verified chunks the file begins with; None: not read yet

    def __repr__(self) -> str:
        return f"Partial({self._digest.hex()[:8]}, good={self._good}, chunks={self._chunks.count})"

    async def resume(self) -> int:
        """Returns how many verified chunks are here. Cuts off the bytes behind them."""
        return await self._offload.run(self._resume)

    async def append(self, index: int, data: bytes) -> None:
        """Appends the next chunk. Raises WrongChunk, and keeps those before it; PartialLost if they are gone."""
        await self._offload.run(self._append, index, data)

    async def commit(self) -> None:
        """Makes the blob out of its chunks, all of which are here. Raises ChunksMisfit if they make another one."""
        await self._offload.run(self._commit)

    def _resume(self) -> int:
        chunks = self._chunks
        path, size = self._store.open_partial(self._digest, chunks.tag)
        with translated_os_errors(path):
            most = chunks.count if size >= chunks.size else size // CHUNK_BYTES
            self._good = chunks.count_right(path, most) if self._good is None else min(self._good, most)
            if size != chunks.get_offset(self._good):
                os.truncate(path, chunks.get_offset(self._good))
        return self._good

    def _append(self, index: int, data: bytes) -> None:
        if not self._chunks.is_right(index, data):
            raise WrongChunk(f"chunk {index} of {self._chunks.count} has another digest than its author signed")
        path, size = self._store.open_partial(self._digest, self._chunks.tag)
        if size != self._chunks.get_offset(index):
            raise PartialLost(f"{path}: expected {self._chunks.get_offset(index)} bytes, got {size}")
        with translated_os_errors(path), path.open("ab") as file:
            file.write(data)
        self._good = index + 1

    def _commit(self) -> None:
        self._good = None
        try:
            self._store.commit_partial(self._digest, self._chunks.tag)
        except ValidationError as error:
            raise ChunksMisfit(f"the chunks its author signed make another blob: {error}") from error


class PartialFiles:
    """The partial blobs of one node. `offload` reads and writes their files."""

    def __init__(self, store: SqliteStore, offload: Offload) -> None:
        self._store = store
        self._offload = offload
        self._partials: dict[tuple[Digest, str], Partial] = {}

    def __repr__(self) -> str:
        return f"PartialFiles({[*self._partials.values()]})"

    @asynccontextmanager
    async def hold(self, digest: Digest, chunks: Chunks) -> AsyncIterator[Partial]:
        """Holds the partial file of a blob for one pull. The next pull waits, and continues where this one ends."""
        key = (digest, chunks.tag)
        partial = self._partials.setdefault(key, Partial(self._store, self._offload, digest, chunks))
        async with partial.lock:
            yield partial
        if self._store.has_blob(digest):
            self._partials.pop(key, None)

    async def check_blob(self, digest: Digest, chunks: Chunks) -> None:
        """Checks a held blob as `Chunks.check_blob` does."""
        await self._offload.run(chunks.check_blob, self._store.blob_path(digest), digest)
