"""Pulls blobs by digest from whoever has them, resuming where a peer broke off (PROTOCOL §7)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from chain.block import Digest, Id
from chain.errors import BlobMissing, ValidationError
from chain.sqlite_store import SqliteStore
from node.offload import Offload
from node.transport.base import BlobNotFound, BlobTooLong, PeerUnavailable, Transport

log = logging.getLogger(__name__)

RETRY_S = (0.02, 0.1, 0.25, 0.5, 1.0)  # pauses between rounds of asking everybody; the last repeats
AGAIN_S = (0.02, 0.1, None)  # the same for a blob that one can do without
SHARE = 0.75  # of the time left for such a blob, what one peer may take to begin with it
SMALL_BYTES = 1 << 20  # up to one chunk a blob is gathered in memory, above that in a partial file
PATIENCE_S = 10.0  # how far a peer may fall behind SLOWEST_BYTES a second before it counts as gone (PROTOCOL §7)
SLOWEST_BYTES = 128 * 1024


class BlobMismatch(Exception):
    """What a peer served does not have the digest it was asked for."""


class BlobUnavailable(Exception):
    """Nobody who is connected came up with the blob; the text says how the one failed who was asked first."""


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
        self.pulled_bytes = 0  # of whole blobs that came from peers

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

    async def try_fetch(
        self, digest: Digest, max_bytes: int, sources: Sequence[Id] = (), *, patience_s: float
    ) -> bytes:
        """As `fetch`, of a blob that one can do without. Raises BlobUnavailable.

        Everyone connected is asked once, and a little later again who was not there or broke off. Who sends nothing is
        left for the next after SHARE of the time there is, and nobody is asked any more after `patience_s`; a transfer
        that goes on at SLOWEST_BYTES a second may take as long as that takes.
        """
        if self._store.has_blob(digest):
            with suppress(BlobMissing):  # let go since
                return await self._disk.run(self._store.get_blob, digest)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + patience_s
        have_not: set[Id] = set()
        reasons: dict[Id, str] = {}
        for pause_s in AGAIN_S:
            for peer in self._order_sources(sources):
                left_s = until_s - loop.time()
                if peer in have_not or left_s <= 0:
                    continue
                try:
                    return await self._pull_from(peer, digest, max_bytes, min(PATIENCE_S, SHARE * left_s))
                except (BlobNotFound, BlobTooLong, BlobMismatch) as error:
                    have_not.add(peer)
                    reasons[peer] = "it does not have it" if isinstance(error, BlobNotFound) else str(error)
                except (PeerUnavailable, TimeoutError) as error:
                    reasons[peer] = str(error) or "too slow"
            if pause_s is None or loop.time() + pause_s >= until_s:
                break
            await asyncio.sleep(pause_s)
        raise BlobUnavailable(next((reasons.get(source, "not connected") for source in sources), "nobody has it"))

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
            for peer in self._order_sources(pull.sources):
                try:
                    return await self._pull_from(peer, digest, pull.max_bytes, PATIENCE_S)
                except BlobNotFound:
                    continue
                except (PeerUnavailable, BlobTooLong, BlobMismatch, TimeoutError) as error:
                    log.debug("blob %s from %s: %s", digest.hex()[:8], peer.hex()[:8], error or "too slow")
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1

    def _order_sources(self, sources: Collection[Id]) -> list[Id]:
        """Who is connected, `sources` first."""
        connected = self._transport.connected()
        return [source for source in sources if source in connected] + sorted(connected - {*sources})

    async def _pull_from(self, peer: Id, digest: Digest, max_bytes: int, patience_s: float) -> bytes:
        pull = self._pull_small if max_bytes <= SMALL_BYTES else self._pull_large
        blob = await pull(peer, digest, max_bytes, patience_s)
        self.pulled_bytes += len(blob)
        return blob

    async def _pull_small(self, peer: Id, digest: Digest, max_bytes: int, patience_s: float) -> bytes:
        data = bytearray()

        async def gather(chunk: bytes) -> None:
            data.extend(chunk)

        await self._receive(peer, digest, 0, max_bytes, patience_s, gather)
        blob = bytes(data)
        if hashlib.sha256(blob).digest() != digest:
            raise BlobMismatch("the bytes served have another digest")
        await self._disk.run(self._store.put_blob, blob)
        return blob

    async def _pull_large(self, peer: Id, digest: Digest, max_bytes: int, patience_s: float) -> bytes:
        path, offset = await self._disk.run(self._store.open_partial, digest)

        async def append(chunk: bytes) -> None:
            await self._disk.run(_append, path, chunk)

        await self._receive(peer, digest, offset, max_bytes, patience_s, append)
        try:
            await self._disk.run(self._store.commit_partial, digest)
        except ValidationError as error:
            if offset > 0:  # perhaps another peer's rubbish; it is gone, and this one gets its chance
                return await self._pull_large(peer, digest, max_bytes, patience_s)
            raise BlobMismatch(str(error)) from error
        return await self._disk.run(self._store.get_blob, digest)

    async def _receive(
        self,
        peer: Id,
        digest: Digest,
        offset: int,
        max_bytes: int,
        patience_s: float,
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Hands every chunk to `write`. Raises what the transport raises, and TimeoutError when `peer` has fallen
        `patience_s` behind SLOWEST_BYTES a second."""
        async with (
            asyncio.timeout(patience_s) as patience,
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
