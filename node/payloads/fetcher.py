"""Pulls blobs by digest from whoever has them, resuming where a peer broke off (PROTOCOL §7).

A blob whose author signed the digests of its chunks is never in memory: it goes to a file chunk by chunk, and each is
looked at when it comes. Any other is given out as bytes.
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

SHARE = 0.75  # of the time left for such a blob, what one peer may take to begin with it
SMALL_BYTES = 1 << 20  # up to one chunk a blob is gathered in memory, above that in a partial file
PATIENCE_S = 10.0  # PROTOCOL §7
SLOWEST_BYTES = 128 * 1024

K = TypeVar("K")
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


_WRONG = (BlobTooLong, BlobMismatch, WrongChunk)


@dataclass(slots=True)
class _Pull(Generic[T]):
    """A blob being looked for. Sizes and sources are whatever anybody claimed for it: the largest, and all."""

    max_bytes: int = 0
    sources: dict[Id, None] = field(default_factory=dict)
    task: asyncio.Task[T] | None = None


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
        """The digests being looked for now."""
        return frozenset(self._blobs) | {digest for digest, _ in self._files}

    async def fetch(self, digest: Digest, max_bytes: int, sources: Sequence[Id] = ()) -> bytes:
        """Returns the blob's bytes, once they are in the store and have their digest. `sources` are asked first.

        Goes on asking until it has them; the caller cancels, and `abandon` ends the pull itself. Not a byte more than
        `max_bytes` is taken, unless somebody else asked for more: what one member declares for a digest must not
        keep the blob from those for whom it is right.
        """
        if (blob := await self._find_blob(digest)) is not None:
            return blob
        ask = partial(self._ask_for_blob, digest, Patience(leaves_liars_out=False))
        return await self._join(self._blobs, digest, max_bytes, sources, ask)

    async def try_fetch(
        self, digest: Digest, max_bytes: int, sources: Sequence[Id] = (), *, patience_s: float
    ) -> bytes:
        """As `fetch`, of a blob that one can do without. Raises BlobUnavailable.

        Everyone connected is asked once, and again who was not there, broke off or is about to have it; where some are,
        no others are asked for a while (`Patience`). Who sends nothing is left for the next after SHARE of the time
        there is, and nobody is asked any more after `patience_s`; a transfer that goes on no slower than is allowed
        may take as long as that takes.
        """
        patience = Patience.begin(patience_s, max_bytes, self._slowness.bytes_per_s)
        return await self._ask_for_blob(digest, patience, _Pull(max_bytes, dict.fromkeys(sources)))

    # ---- into a file

    async def fetch_file(self, digest: Digest, size: int, chunk_digests: bytes, sources: Sequence[Id] = ()) -> Path:
        """The path of a blob, once it is in the store and is what its author signed of it: its digest, its size and the
        digests of its chunks.

        Goes on asking as `fetch` does, but never again one who served a wrong chunk. Raises ChunksMisfit where no blob
        can be all of that: nobody need be asked for it any more.
        """
        chunks = Chunks(size, chunk_digests)
        ask = partial(self._ask_for_file, digest, chunks, Patience())
        return await self._join(self._files, (digest, chunks), size, sources, ask)

    async def try_fetch_file(
        self, digest: Digest, size: int, chunk_digests: bytes, sources: Sequence[Id] = (), *, patience_s: float
    ) -> Path:
        """As `fetch_file`, of a blob that one can do without: asks as `try_fetch` does. Raises BlobUnavailable."""
        patience = Patience.begin(patience_s, size, self._slowness.bytes_per_s)
        try:
            pull = _Pull[Path](size, dict.fromkeys(sources))
            return await self._ask_for_file(digest, Chunks(size, chunk_digests), patience, pull)
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
        """Returns what the pull of this key gives, which is begun by `ask` unless it is under way."""
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
        """Returns what is found here, or pulled from one of those who are connected, who are asked again and again for
        as long as `patience` lasts. Raises BlobUnavailable then."""
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
                        if peer in sources and not isinstance(error, BlobMismatch):  # who signed its size and chunks
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
            if offset > 0:  # perhaps another peer's rubbish; it is gone, and this one gets its chance
                return await self._pull_large(peer, digest, max_bytes, patience_s)
            raise BlobMismatch(str(error)) from error
        return await self._disk.run(self._store.get_blob, digest)

    async def _find_blob(self, digest: Digest) -> bytes | None:
        """Returns a held blob."""
        if self._store.has_blob(digest):
            with suppress(BlobMissing):  # let go since
                return await self._disk.run(self._store.get_blob, digest)
        return None

    async def _find_file(self, digest: Digest, chunks: Chunks) -> Path | None:
        """Where a held blob lies, once it is found to be what is signed of it. Raises ChunksMisfit."""
        if not self._store.has_blob(digest):
            return None
        try:
            await self._partials.check_blob(digest, chunks)
        except BlobMissing:  # let go since
            return None
        return self._store.blob_path(digest)

    async def _pull_file_from(
        self, peer: Id, digest: Digest, chunks: Chunks, patience_s: float, on_received: Callable[[int], None]
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
