"""Pulls blobs by digest from whoever has them, resuming where a peer broke off (PROTOCOL §7).

A blob whose author signed the digests of its chunks is never in memory as a whole: each chunk is checked when it
arrives and appended to a file. Any other blob is returned as bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

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

SHARE = 0.75  # of the time left for a blob: one peer may take this much before it sends anything
SMALL_BYTES = 1 << 20  # a blob of up to one chunk is collected in memory, a larger one in a partial file
PATIENCE_S = 10.0  # PROTOCOL §7
SLOWEST_BYTES = 128 * 1024

K = TypeVar("K")
T = TypeVar("T")


class BlobMismatch(Exception):
    """A peer served a blob without the digest it was asked for."""


class BlobUnavailable(Exception):
    """No connected peer served the blob; the text says how the first one asked failed."""


class _Arrived(Exception):
    """The blob arrived another way during the transfer, so that the transfer can stop."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """The limits of a slow peer: one that is `patience_s` behind `bytes_per_s` counts as gone."""

    patience_s: float = PATIENCE_S
    bytes_per_s: float = SLOWEST_BYTES


USUAL_SLOWNESS = Slowness()


_WRONG = (BlobTooLong, BlobMismatch, WrongChunk)


@dataclass(slots=True)
class _Pull(Generic[T]):
    """One blob being pulled for all who wait for it: the largest size that any of them declared, and all their
    sources."""

    max_bytes: int = 0
    sources: dict[Id, None] = field(default_factory=dict)
    task: asyncio.Task[T] | None = None


class BlobFetcher:
    """Fetches blobs into the store. Two calls for one digest share one pull.

    `disk` reads and writes all blobs but those that come in checked chunks: `partials` writes these, and all fetchers
    of one store must share it.
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
        self._blobs: dict[Digest, _Pull[bytes]] = {}
        self._files: dict[tuple[Digest, Chunks], _Pull[Path]] = {}
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
        """The digests of the blobs being pulled now."""
        return frozenset(self._blobs) | {digest for digest, _ in self._files}

    async def fetch(self, digest: Digest, max_bytes: int, sources: Sequence[Id] = ()) -> bytes:
        """Returns the blob's bytes, once they are in the store and have their digest. `sources` are asked first.

        It asks peers until one serves the blob. Cancelling the call does not end the pull; `abandon` does. Peers may
        send `max_bytes`, or the most that any caller for this digest allows: a wrong size declared by one member must
        not keep the blob from callers with the right size.
        """
        if (blob := await self._find_blob(digest)) is not None:
            return blob
        ask = partial(self._ask_for_blob, digest, Patience(leaves_liars_out=False))
        return await self._join(self._blobs, digest, max_bytes, sources, ask)

    async def try_fetch(
        self, digest: Digest, max_bytes: int, sources: Sequence[Id] = (), *, patience_s: float
    ) -> bytes:
        """Returns the blob's bytes as `fetch` does, if a peer serves them in time. Raises BlobUnavailable.

        Each connected peer is asked once. It is asked again if it was unreachable, broke off, or will have the blob
        soon; in that last case few others are asked for a while (`Patience`). A peer that sends nothing may take SHARE
        of the time left, then the next is asked. After `patience_s` no peer is asked any more, but a transfer that is
        fast enough may end.
        """
        patience = Patience.begin(patience_s, max_bytes, self._slowness.bytes_per_s)
        return await self._ask_for_blob(digest, patience, _Pull(max_bytes, dict.fromkeys(sources)))

    # ---- into a file

    async def fetch_file(self, digest: Digest, size: int, chunk_digests: bytes, sources: Sequence[Id] = ()) -> Path:
        """Returns the path of a blob, once it is in the store with the digest, the size and the digests of chunks that
        its author signed.

        It asks peers as `fetch` does, but no peer again that served a wrong chunk. Raises ChunksMisfit if no blob can
        match all that was signed: it can stop asking then.
        """
        chunks = Chunks(size, chunk_digests)
        ask = partial(self._ask_for_file, digest, chunks, Patience())
        return await self._join(self._files, (digest, chunks), size, sources, ask)

    async def try_fetch_file(
        self, digest: Digest, size: int, chunk_digests: bytes, sources: Sequence[Id] = (), *, patience_s: float
    ) -> Path:
        """Returns the path as `fetch_file` does, if a peer serves the blob in time, as with `try_fetch`. Raises
        BlobUnavailable."""
        patience = Patience.begin(patience_s, size, self._slowness.bytes_per_s)
        try:
            pull = _Pull[Path](size, dict.fromkeys(sources))
            return await self._ask_for_file(digest, Chunks(size, chunk_digests), patience, pull)
        except ChunksMisfit as error:
            raise BlobUnavailable(str(error)) from error

    def take_pulled(self) -> frozenset[Digest]:
        """Returns the digests of blobs that were pulled from peers since the last call."""
        pulled, self._pulled = frozenset(self._pulled), set()
        return pulled

    # ---- the pulls

    def is_held(self, digest: Digest) -> bool:
        """Says whether the store has this blob, so that it need not be pulled."""
        return self._store.has_blob(digest)

    def abandon(self) -> None:
        """Cancels every pull under way, when the height that they were for is over. A later call starts a new one."""
        tasks = [pull.task for pull in self._blobs.values()] + [pull.task for pull in self._files.values()]
        self._blobs, self._files = {}, {}
        for task in tasks:
            if task is not None:
                task.cancel()

    async def _join(
        self,
        pulls: dict[K, _Pull[T]],
        key: K,
        max_bytes: int,
        sources: Sequence[Id],
        ask: Callable[[_Pull[T]], Coroutine[Any, Any, T]],
    ) -> T:
        """Returns the result of the pull for this key; `ask` begins it unless it is under way."""
        pull = pulls.setdefault(key, _Pull())
        pull.max_bytes = max(pull.max_bytes, max_bytes)
        pull.sources.update(dict.fromkeys(sources))
        if pull.task is None:
            pull.task = asyncio.create_task(ask(pull))
            pull.task.add_done_callback(lambda _: pulls.pop(key, None))
        return await asyncio.shield(pull.task)

    async def _ask_for_blob(self, digest: Digest, patience: Patience, pull: _Pull[bytes]) -> bytes:
        return await self._ask(
            digest,
            pull.sources,
            patience,
            lambda: self._find_blob(digest),
            lambda peer, limit_s: self._pull_from(peer, digest, pull.max_bytes, limit_s),
        )

    async def _ask_for_file(self, digest: Digest, chunks: Chunks, patience: Patience, pull: _Pull[Path]) -> Path:
        return await self._ask(
            digest,
            pull.sources,
            patience,
            lambda: self._find_file(digest, chunks),
            lambda peer, limit_s: self._pull_file_from(peer, digest, chunks, limit_s, patience.add),
        )

    async def _ask(
        self,
        digest: Digest,
        sources: Collection[Id],
        patience: Patience,
        find: Callable[[], Awaitable[T | None]],
        pull_from: Callable[[Id, float], Awaitable[T]],
    ) -> T:
        """Returns the blob that `find` finds here, or that a connected peer serves. Asks peers again and again until
        `patience` ends; then raises BlobUnavailable."""
        loop = asyncio.get_running_loop()
        left_out: set[Id] = set()
        reasons: dict[Id, str] = {}
        while True:
            if (found := await find()) is not None:
                return found
            num_promises = 0
            for peer in self._sources.order(sources):
                left_s = patience.until_s - loop.time()
                if num_promises >= patience.max_promises:
                    break
                if peer in left_out or left_s <= 0 or (num_promises and self._sources.is_doubtful(peer, sources)):
                    continue
                patience_s = min(self._slowness.patience_s, SHARE * left_s)
                with self._boundary.around("transfer", peer, passing=(ChunksMisfit,)) as crossing:
                    try:
                        with self._sources.asking(peer, sources, patience_s) as limit_s:
                            return await pull_from(peer, limit_s)
                    except BlobNotFound as error:
                        is_coming = isinstance(error, BlobNotYet)
                        reasons[peer] = "it does not have it yet" if is_coming else "it does not have it"
                        if patience.is_bounded and is_coming:
                            num_promises += 1
                        elif patience.is_bounded:
                            left_out.add(peer)
                    except _WRONG as error:
                        if peer in sources and not isinstance(error, BlobMismatch):  # it signed the size and the chunks
                            self._transfers.on_wrong(peer)
                        reasons[peer] = str(error)
                        if patience.leaves_liars_out:
                            left_out.add(peer)
                        level = logging.WARNING if patience.leaves_liars_out else logging.DEBUG
                        log.log(level, "%s: %s", self._transfers.describe(digest, peer, is_incoming=True), error)
                    except (PeerUnavailable, PartialLost, TimeoutError) as error:
                        reasons[peer] = str(error) or "too slow"
                        log.debug("blob %s from %s: %s", digest.hex()[:8], peer.hex()[:8], reasons[peer])
                if crossing.failure is not None:
                    reasons[peer] = UNFORESEEN
                    if patience.is_bounded:
                        left_out.add(peer)
            patience.on_promises(num_promises)
            if not await patience.rest(is_coming=num_promises > 0):
                break
        raise BlobUnavailable(next((reasons.get(source, "not connected") for source in sources), "nobody has it"))

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
            if offset > 0:  # another peer may have sent the wrong bytes; they are deleted, and this peer starts afresh
                return await self._pull_large(peer, digest, max_bytes, patience_s)
            raise BlobMismatch(str(error)) from error
        return await self._disk.run(self._store.get_blob, digest)

    async def _find_blob(self, digest: Digest) -> bytes | None:
        """Returns a held blob, None if it is not held."""
        if self._store.has_blob(digest):
            with suppress(BlobMissing):  # deleted since
                return await self._disk.run(self._store.get_blob, digest)
        return None

    async def _find_file(self, digest: Digest, chunks: Chunks) -> Path | None:
        """Returns the path of a held blob after checking all that was signed of it, None if it is not held. Raises
        ChunksMisfit."""
        if not self._store.has_blob(digest):
            return None
        try:
            await self._partials.check_blob(digest, chunks)
        except BlobMissing:  # deleted since
            return None
        return self._store.blob_path(digest)

    async def _pull_file_from(
        self, peer: Id, digest: Digest, chunks: Chunks, patience_s: float, on_received: Callable[[int], None]
    ) -> Path:
        """Pulls a blob from a peer, continuing at the end of its partial file, whichever peer that came from. Returns
        its path."""
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
        """Receives all chunks from `index` on and appends each to the file once it is whole and checked. Memory holds
        at most one chunk in part and what the transport delivers at once."""
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
        """Passes all bytes that arrive to `write`. Raises what the transport raises, and TimeoutError when `peer` has
        fallen `patience_s` behind."""
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
