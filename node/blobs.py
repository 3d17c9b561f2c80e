"""Pulls blobs by digest from whoever has them, resuming where a peer broke off (PROTOCOL §7)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from chain.block import Digest, Id
from chain.errors import ValidationError
from chain.sqlite_store import SqliteStore
from node.offload import Offload
from node.transport.base import BlobNotFound, BlobTooLong, PeerUnavailable, Transport

log = logging.getLogger(__name__)

RETRY_S = (0.02, 0.1, 0.25, 0.5, 1.0)  # pauses between rounds of asking everybody; the last repeats
SMALL_BYTES = 1 << 20  # up to one chunk a blob is gathered in memory, above that in a partial file
PATIENCE_S = 10.0  # a peer may fall this far behind SLOWEST_BYTES a second before it counts as gone (PROTOCOL §7)
SLOWEST_BYTES = 128 * 1024


class BlobMismatch(Exception):
    """What a peer served does not have the digest it was asked for."""


@dataclass(slots=True)
class _Pull:
    """One digest being looked for. Sizes and sources are whatever anybody claimed for it: the largest, and all."""

    max_bytes: int = 0
    sources: dict[Id, None] = field(default_factory=dict)
    task: asyncio.Task[bytes] | None = None


class BlobFetcher:
    """Gets blobs into the store. Asking twice for one digest pulls it once."""

    def __init__(self, transport: Transport, store: SqliteStore, disk: Offload) -> None:
        self._transport = transport
        self._store = store
        self._disk = disk
        self._running: dict[Digest, _Pull] = {}

    @property
    def wanted(self) -> frozenset[Digest]:
        """What is being looked for now."""
        return frozenset(self._running)

    async def fetch(self, digest: Digest, max_bytes: int, sources: Sequence[Id] = ()) -> bytes:
        """Returns the blob's bytes, once they are in the store and have their digest. `sources` are asked first.

        Goes on asking until it has them; the caller cancels, and `abandon` ends the pull itself. Not a byte more than
        `max_bytes` is taken, unless somebody else asked for more: what one member declares for a digest must not
        keep the blob from those for whom it is right.
        """
        if self._store.has_blob(digest):
            return await self._disk.run(self._store.get_blob, digest)
        pull = self._running.setdefault(digest, _Pull())
        pull.max_bytes = max(pull.max_bytes, max_bytes)
        pull.sources.update(dict.fromkeys(sources))
        if pull.task is None:
            pull.task = asyncio.create_task(self._pull(digest, pull), name=f"blob {digest.hex()[:8]}")
            pull.task.add_done_callback(lambda _: self._forget(digest, pull))
        return await asyncio.shield(pull.task)

    def abandon(self) -> None:
        """Ends every pull under way: the height they were for is over. Whoever asks from now on starts a new one."""
        pulls, self._running = self._running, {}
        for pull in pulls.values():
            if pull.task is not None:
                pull.task.cancel()

    def _forget(self, digest: Digest, pull: _Pull) -> None:
        if self._running.get(digest) is pull:
            del self._running[digest]

    async def _pull(self, digest: Digest, pull: _Pull) -> bytes:
        attempt = 0
        while True:
            connected = self._transport.connected()
            others = sorted(connected - pull.sources.keys())
            for peer in [source for source in pull.sources if source in connected] + others:
                try:
                    return await self._pull_from(peer, digest, pull.max_bytes)
                except BlobNotFound:
                    continue
                except (PeerUnavailable, BlobTooLong, BlobMismatch, TimeoutError) as error:
                    log.debug("blob %s from %s: %s", digest.hex()[:8], peer.hex()[:8], error or "too slow")
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1

    async def _pull_from(self, peer: Id, digest: Digest, max_bytes: int) -> bytes:
        if max_bytes <= SMALL_BYTES:
            return await self._pull_small(peer, digest, max_bytes)
        return await self._pull_large(peer, digest, max_bytes)

    async def _pull_small(self, peer: Id, digest: Digest, max_bytes: int) -> bytes:
        data = bytearray()

        async def gather(chunk: bytes) -> None:
            data.extend(chunk)

        await self._receive(peer, digest, 0, max_bytes, gather)
        blob = bytes(data)
        if hashlib.sha256(blob).digest() != digest:
            raise BlobMismatch("the bytes served have another digest")
        await self._disk.run(self._store.put_blob, blob)
        return blob

    async def _pull_large(self, peer: Id, digest: Digest, max_bytes: int) -> bytes:
        path, offset = await self._disk.run(self._store.open_partial, digest)

        async def append(chunk: bytes) -> None:
            await self._disk.run(_append, path, chunk)

        await self._receive(peer, digest, offset, max_bytes, append)
        try:
            await self._disk.run(self._store.commit_partial, digest)
        except ValidationError as error:
            if offset > 0:  # perhaps another peer's rubbish; it is gone, and this one gets its chance
                return await self._pull_large(peer, digest, max_bytes)
            raise BlobMismatch(str(error)) from error
        return await self._disk.run(self._store.get_blob, digest)

    async def _receive(
        self, peer: Id, digest: Digest, offset: int, max_bytes: int, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Hands every chunk to `write`. Raises what the transport raises, and TimeoutError when `peer` is too slow."""
        async with (
            asyncio.timeout(PATIENCE_S) as patience,
            aclosing(self._transport.fetch_blob(peer, digest, offset, max_bytes=max_bytes)) as chunks,
        ):
            async for chunk in chunks:
                await write(chunk)
                until_s = patience.when()
                if until_s is not None:
                    patience.reschedule(until_s + len(chunk) / SLOWEST_BYTES)


def _append(path: Path, chunk: bytes) -> None:
    with path.open("ab") as file:
        file.write(chunk)
