"""Partial files: large blobs as far as they have come, each in a file that holds nothing but verified chunks (PROTOCOL
§7).

All pulls of one blob, from whichever peer, append to the same file. A file left by an earlier life of this node is
read once, and cut at the first chunk that is no longer right.
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
    """A chunk that a peer served has not the digest its author signed."""


class PartialLost(Exception):
    """Somebody has let go of what was here of a blob."""


class Partial:
    """One blob under way. Its file is touched on the offload's thread alone, where calls keep their order: also one
    whose caller has given up is through before the next begins."""

    def __init__(self, store: SqliteStore, offload: Offload, digest: Digest, chunks: Chunks) -> None:
        self.lock = asyncio.Lock()
        self._store = store
        self._offload = offload
        self._digest = digest
        self._chunks = chunks
        self._good: int | None = None  # how many chunks the file begins with; None: nobody has looked yet

    def __repr__(self) -> str:
        return f"Partial({self._digest.hex()[:8]}, good={self._good}, chunks={self._chunks.count})"

    async def resume(self) -> int:
        """Counts the verified chunks that are here. What is behind them is cut off."""
        return await self._offload.run(self._resume)

    async def append(self, index: int, data: bytes) -> None:
        """The next chunk. Raises WrongChunk, and keeps those before it; PartialLost where they are gone."""
        await self._offload.run(self._append, index, data)

    async def commit(self) -> None:
        """All chunks are here: they become the blob, if that is what they are. Raises ChunksMisfit."""
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
    """All of one node's. `offload` is where their files are read and written."""

    def __init__(self, store: SqliteStore, offload: Offload) -> None:
        self._store = store
        self._offload = offload
        self._partials: dict[tuple[Digest, str], Partial] = {}

    def __repr__(self) -> str:
        return f"PartialFiles({[*self._partials.values()]})"

    @asynccontextmanager
    async def hold(self, digest: Digest, chunks: Chunks) -> AsyncIterator[Partial]:
        """One pull at a time: whoever comes while another is at it goes on where that one ends."""
        key = (digest, chunks.tag)
        partial = self._partials.setdefault(key, Partial(self._store, self._offload, digest, chunks))
        async with partial.lock:
            yield partial
        if self._store.has_blob(digest):
            self._partials.pop(key, None)

    async def check_blob(self, digest: Digest, chunks: Chunks) -> None:
        """Of a blob that is held: see `Chunks.check_blob`."""
        await self._offload.run(chunks.check_blob, self._store.blob_path(digest), digest)
