"""Pulls blobs by digest from whoever has them, resuming where a peer broke off (PROTOCOL §7).

A blob whose author signed the digests of its chunks is never in memory: it goes to a file chunk by chunk, and each is
looked at when it comes. Any other is given out as bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from chain.block import Digest, Id
from chain.errors import BlobMissing, ValidationError
from chain.store.sqlite import SqliteStore
from node.boundary import UNFORESEEN, Boundary
from node.offload import Offload
from node.p2p.transport.base import BlobNotFound, BlobNotYet, BlobTooLong, PeerUnavailable, Transport, TransportError
from node.payloads.chunks import Chunks, ChunksMisfit
from node.payloads.partial_files import Partial, PartialFiles, PartialLost, WrongChunk
from node.payloads.patience import Patience
from node.payloads.sources import GetRelays, Sources
from node.payloads.transfers import Transfers

log = logging.getLogger(__name__)

RETRY_S = (0.02, 0.1, 0.25, 0.5, 1.0)  # pauses between rounds of asking everybody; the last repeats
SHARE = 0.75  # of the time left for such a blob, what one peer may take to begin with it
SMALL_BYTES = 1 << 20  # up to one chunk a blob is gathered in memory, above that in a partial file
PATIENCE_S = 10.0  # PROTOCOL §7
SLOWEST_BYTES = 128 * 1024

T = TypeVar("T")


class BlobMismatch(Exception):
    """A peer served a blob without the digest it was asked for."""


class BlobUnavailable(Exception):
    """Nobody who is connected came up with the blob; the text says how the one failed who was asked first."""


class _Arrived(Exception):
    """The blob is here meanwhile, by another way: nothing more is asked of this peer."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """A peer that has fallen `patience_s` behind `bytes_per_s` counts as gone."""

    patience_s: float = PATIENCE_S
    bytes_per_s: float = SLOWEST_BYTES


USUAL_SLOWNESS = Slowness()


@dataclass(slots=True)
class _Pull:
    """One digest being looked for. Sizes and sources are whatever anybody claimed for it: the largest, and all."""

    max_bytes: int = 0
    sources: dict[Id, None] = field(default_factory=dict)
    task: asyncio.Task[bytes] | None = None


@dataclass(slots=True)
class _FilePull:
    """One digest being looked for by what one author signed of its size and chunks."""

    sources: dict[Id, None] = field(default_factory=dict)
    task: asyncio.Task[Path] | None = None


class BlobFetcher:
    """Gets blobs into the store. Asking twice for one digest pulls it once.

    `disk` is where blobs are read and written, but for those that come in checked chunks: these are the `partials`',
    which all fetchers of one store have to share.
    """

    def __init__(
        self,
        transport: Transport,
        store: SqliteStore,
        disk: Offload,
        partials: PartialFiles,
        transfers: Transfers,
        slowness: Slowness = USUAL_SLOWNESS,
        boundary: Boundary | None = None,
        get_relays: GetRelays = lambda author: (),
    ) -> None:
        self._sources = Sources(transport, get_relays)
        self._transport = transport
        self._store = store
        self._disk = disk
        self._partials = partials
        self._transfers = transfers
        self._slowness = slowness
        self._boundary = boundary or Boundary()
        self._running: dict[Digest, _Pull] = {}
        self._files: dict[tuple[Digest, Chunks], _FilePull] = {}
        self._pulled: set[Digest] = set()
        self.pulled_bytes = 0  # of whole blobs that came from peers
        self.received_bytes = 0  # from peers, of whatever blob, good or not

    def __repr__(self) -> str:
        return (
            f"BlobFetcher(wanted={len(self.wanted)}, pulled_bytes={self.pulled_bytes}, "
            f"received_bytes={self.received_bytes})"
        )

    @property
    def wanted(self) -> frozenset[Digest]:
        """The digests being looked for now."""
        return frozenset(self._running) | {digest for digest, _ in self._files}

    async def fetch(self, digest: Digest, max_bytes: int, sources: Sequence[Id] = ()) -> bytes:
        """Returns the blob's bytes, once they are in the store and have their digest. `sources` are asked first.

        Goes on asking until it has them; the caller cancels, and `abandon` ends the pull itself. Not a byte more than
        `max_bytes` is taken, unless somebody else asked for more: what one member declares for a digest must not
        keep the blob from those for whom it is right.
        """
        if self._store.has_blob(digest):
            with suppress(BlobMissing):  # let go since
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

        Everyone connected is asked once, and again who was not there, broke off or is about to have it; where some are,
        no others are asked for a while (`Patience`). Who sends nothing is left for the next after SHARE of the time
        there is, and nobody is asked any more after `patience_s`; a transfer that goes on no slower than is allowed
        may take as long as that takes.
        """
        if self._store.has_blob(digest):
            with suppress(BlobMissing):  # let go since
                return await self._disk.run(self._store.get_blob, digest)
        patience = Patience.begin(patience_s, max_bytes, self._slowness.bytes_per_s)
        return await self._ask_all(
            sources, patience, lambda peer, left_s: self._pull_from(peer, digest, max_bytes, left_s)
        )

    async def _ask_all(
        self, sources: Sequence[Id], patience: Patience, pull_from: Callable[[Id, float], Awaitable[T]]
    ) -> T:
        loop = asyncio.get_running_loop()
        have_not: set[Id] = set()
        reasons: dict[Id, str] = {}
        while True:
            num_promises = 0
            for peer in self._sources.order(sources):
                left_s = patience.until_s - loop.time()
                if num_promises >= patience.max_promises:
                    break
                if peer in have_not or left_s <= 0 or (num_promises and self._sources.is_doubtful(peer, sources)):
                    continue
                patience_s = min(self._slowness.patience_s, SHARE * left_s)
                with self._boundary.around("transfer", peer, passing=(ChunksMisfit,)) as crossing:
                    try:
                        with self._sources.asking(peer, sources, patience_s) as limit_s:
                            return await pull_from(peer, limit_s)
                    except BlobNotYet:
                        num_promises += 1
                        reasons[peer] = "it does not have it yet"
                    except (BlobNotFound, BlobTooLong, BlobMismatch, WrongChunk) as error:
                        have_not.add(peer)
                        self._blame(peer, error, sources)
                        reasons[peer] = "it does not have it" if isinstance(error, BlobNotFound) else str(error)
                    except (PeerUnavailable, PartialLost, TimeoutError) as error:
                        reasons[peer] = str(error) or "too slow"
                if crossing.failure is not None:
                    have_not.add(peer)
                    reasons[peer] = UNFORESEEN
            patience.on_promises(num_promises)
            if not await patience.rest(is_coming=num_promises > 0):
                break
        raise BlobUnavailable(next((reasons.get(source, "not connected") for source in sources), "nobody has it"))

    # ---- into a file

    async def fetch_file(self, digest: Digest, size: int, chunk_digests: bytes, sources: Sequence[Id] = ()) -> Path:
        """The path of a blob, once it is in the store and is what its author signed of it: its digest, its size and the
        digests of its chunks.

        Goes on asking as `fetch` does, but never again one who served a wrong chunk. Raises ChunksMisfit where no blob
        can be all of that: nobody need be asked for it any more.
        """
        chunks = Chunks(size, chunk_digests)
        key = (digest, chunks)
        pull = self._files.setdefault(key, _FilePull())
        pull.sources.update(dict.fromkeys(sources))
        if pull.task is None:
            pull.task = asyncio.create_task(self._pull_file(digest, chunks, pull), name=f"file {digest.hex()[:8]}")
            pull.task.add_done_callback(lambda _: self._forget_file(key, pull))
        return await asyncio.shield(pull.task)

    async def try_fetch_file(
        self, digest: Digest, size: int, chunk_digests: bytes, sources: Sequence[Id] = (), *, patience_s: float
    ) -> Path:
        """As `fetch_file`, of a blob that one can do without: asks as `try_fetch` does. Raises BlobUnavailable."""
        patience = Patience.begin(patience_s, size, self._slowness.bytes_per_s)
        try:
            chunks = Chunks(size, chunk_digests)
            if (path := await self._find_file(digest, chunks)) is not None:
                return path
            return await self._ask_all(
                sources,
                patience,
                lambda peer, left_s: self._pull_file_from(peer, digest, chunks, left_s, patience.add),
            )
        except ChunksMisfit as error:
            raise BlobUnavailable(str(error)) from error

    def take_pulled(self) -> frozenset[Digest]:
        """The digests of blobs that have come from peers since the last call."""
        pulled, self._pulled = frozenset(self._pulled), set()
        return pulled

    # ---- the pulls

    def is_held(self, digest: Digest) -> bool:
        """Whether nothing need be pulled to have this blob."""
        return self._store.has_blob(digest)

    def abandon(self) -> None:
        """Ends every pull under way: the height they were for is over. Whoever asks from now on starts a new one."""
        tasks = [pull.task for pull in self._running.values()] + [pull.task for pull in self._files.values()]
        self._running, self._files = {}, {}
        for task in tasks:
            if task is not None:
                task.cancel()

    def _forget(self, digest: Digest, pull: _Pull) -> None:
        if self._running.get(digest) is pull:
            del self._running[digest]

    def _forget_file(self, key: tuple[Digest, Chunks], pull: _FilePull) -> None:
        if self._files.get(key) is pull:
            del self._files[key]

    async def _pull(self, digest: Digest, pull: _Pull) -> bytes:
        attempt = 0
        while True:
            for peer in self._sources.order(pull.sources):
                with self._boundary.around("transfer", peer):
                    try:
                        with self._sources.asking(peer, pull.sources, self._slowness.patience_s) as limit_s:
                            return await self._pull_from(peer, digest, pull.max_bytes, limit_s)
                    except BlobNotFound:
                        continue
                    except (PeerUnavailable, BlobTooLong, BlobMismatch, TimeoutError) as error:
                        self._blame(peer, error, pull.sources)
                        log.debug("blob %s from %s: %s", digest.hex()[:8], peer.hex()[:8], error or "too slow")
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1

    def _blame(self, peer: Id, error: Exception, authors: Collection[Id]) -> None:
        """Counts what `peer` served against it, where it cannot be the fault of somebody else, who signed its size or
        the digests of its chunks."""
        if isinstance(error, BlobTooLong | WrongChunk) and peer in authors:
            self._transfers.on_wrong(peer)

    async def _pull_from(self, peer: Id, digest: Digest, max_bytes: int, patience_s: float) -> bytes:
        pull = self._pull_small if max_bytes <= SMALL_BYTES else self._pull_large
        try:
            blob = await pull(peer, digest, max_bytes, patience_s)
        except BlobMismatch:
            self._transfers.on_wrong(peer)
            raise
        self.pulled_bytes += len(blob)
        self._pulled.add(digest)
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
        with self._transfers.follow(peer, digest, is_incoming=True, resumed=offset, total=max_bytes) as on_passed:

            async def append(chunk: bytes) -> None:
                await self._disk.run(_append, path, chunk)
                on_passed(len(chunk))

            await self._receive(peer, digest, offset, max_bytes, patience_s, append)
        try:
            await self._disk.run(self._store.commit_partial, digest)
        except ValidationError as error:
            if offset > 0:  # perhaps another peer's rubbish; it is gone, and this one gets its chance
                return await self._pull_large(peer, digest, max_bytes, patience_s)
            raise BlobMismatch(str(error)) from error
        return await self._disk.run(self._store.get_blob, digest)

    async def _find_file(self, digest: Digest, chunks: Chunks) -> Path | None:
        """Where a held blob lies, once it is found to be what is signed of it. Raises ChunksMisfit."""
        if not self._store.has_blob(digest):
            return None
        try:
            await self._partials.check_blob(digest, chunks)
        except BlobMissing:  # let go since
            return None
        return self._store.blob_path(digest)

    async def _pull_file(self, digest: Digest, chunks: Chunks, pull: _FilePull) -> Path:
        useless: set[Id] = set()
        attempt = 0
        while True:
            if (path := await self._find_file(digest, chunks)) is not None:
                return path
            for peer in self._sources.order(pull.sources):
                if peer in useless:
                    continue
                with self._boundary.around("transfer", peer, passing=(ChunksMisfit,)):
                    try:
                        with self._sources.asking(peer, pull.sources, self._slowness.patience_s) as limit_s:
                            return await self._pull_file_from(peer, digest, chunks, limit_s)
                    except BlobNotFound:
                        continue
                    except (BlobTooLong, BlobMismatch, WrongChunk) as error:
                        useless.add(peer)
                        self._blame(peer, error, pull.sources)
                        log.warning("%s: %s", self._transfers.describe(digest, peer, is_incoming=True), error)
                    except (PeerUnavailable, PartialLost, TimeoutError) as error:
                        log.debug("blob %s from %s: %s", digest.hex()[:8], peer.hex()[:8], error or "too slow")
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1

    async def _pull_file_from(
        self,
        peer: Id,
        digest: Digest,
        chunks: Chunks,
        patience_s: float,
        on_received: Callable[[int], None] = lambda _: None,
    ) -> Path:
        """Goes on where the partial file ends, whoever wrote it."""
        async with self._partials.hold(digest, chunks) as partial:
            if (path := await self._find_file(digest, chunks)) is not None:
                return path
            index = await partial.resume()
            if index < chunks.count:
                try:
                    await self._receive_chunks(peer, digest, chunks, partial, index, patience_s, on_received)
                except _Arrived as arrived:
                    if (path := await self._find_file(digest, chunks)) is not None:
                        return path
                    raise PartialLost(f"{arrived}, and has gone again") from arrived
            await partial.commit()
        self.pulled_bytes += chunks.size
        self._pulled.add(digest)
        return self._store.blob_path(digest)

    async def _receive_chunks(
        self,
        peer: Id,
        digest: Digest,
        chunks: Chunks,
        partial: Partial,
        index: int,
        patience_s: float,
        on_received: Callable[[int], None],
    ) -> None:
        """All chunks from `index` on, each to the file once it is whole and right. No more is in memory than what is
        there of one, and what the transport gives at once."""
        waiting = bytearray()
        resumed = chunks.get_offset(index)
        with self._transfers.follow(peer, digest, is_incoming=True, resumed=resumed, total=chunks.size) as on_passed:

            async def write(data: bytes) -> None:
                nonlocal index
                if self._store.has_blob(digest):
                    raise _Arrived("it came another way")
                waiting.extend(data)
                while index < chunks.count and len(waiting) >= (length := chunks.get_length(index)):
                    chunk = bytes(waiting[:length])
                    del waiting[:length]
                    await partial.append(index, chunk)
                    index += 1
                    on_passed(length)
                    on_received(length)
                if index == chunks.count and waiting:
                    raise BlobTooLong(f"more than the {chunks.size} bytes declared")

            try:
                await self._receive(peer, digest, resumed, chunks.size, patience_s, write)
            except (TransportError, TimeoutError):
                if index < chunks.count:
                    raise
            if index < chunks.count:
                raise BlobMismatch(f"expected {chunks.size} bytes, it ended before chunk {index} of {chunks.count} did")

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
        `patience_s` behind."""
        async with (
            asyncio.timeout(patience_s) as patience,
            aclosing(self._transport.fetch_blob(peer, digest, offset, max_bytes=max_bytes)) as chunks,
        ):
            async for chunk in chunks:
                self.received_bytes += len(chunk)
                await write(chunk)
                until_s = patience.when()
                if until_s is not None:
                    patience.reschedule(until_s + len(chunk) / self._slowness.bytes_per_s)


def _append(path: Path, chunk: bytes) -> None:
    with path.open("ab") as file:
        file.write(chunk)
