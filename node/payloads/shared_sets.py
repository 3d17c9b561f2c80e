"""Shared sets: sets that members share once and later rounds train on. Fetches those that a local phase reads from an
earlier block.

Members that voted on that block have pulled and checked the sets already. The sets stay in the store for as long as a
round needs them (`node.payloads.retention`). A set may still be missing, because this node joined later or its disk
lost the set; then it is fetched from any peer that has it. If no peer has it, its authors are left out of the draw, and
nothing else changes: the spec is asked again, without them, and training continues.

Sets are too large to keep in memory: they are files of the store, each checked in blocks, once per start of a node.
Blobs that members lend for an evaluation are shared likewise, and may be so small that they are rows of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chain.beacon import compute_beacon
from chain.block import Block, Digest, Id
from chain.errors import BlobMissing, StoreCorrupted, StoreFull
from chain.store.blob_rows import BlobSource
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError
from ml.payload import decode_arrays, kind_name, read_arrays
from node.boundary import UNFORESEEN, Boundary
from node.offload import Offload
from node.payloads.chunks import Chunks, ChunksMisfit
from node.payloads.fetcher import BlobFetcher, BlobUnavailable
from node.payloads.pulled import MissingAuthor, Pulled, wait_for_company
from node.runs.specs import RunRound, RunSpecs
from node.training.exchange import Exchange, get_offers

log = logging.getLogger(__name__)


class _Lost(Exception):
    """A set cannot be used; the text says why. `is_fault`: the blob is here, but is not what its author signed."""

    def __init__(self, why: str, *, is_fault: bool = False) -> None:
        super().__init__(why)
        self.is_fault = is_fault


@dataclass(slots=True)
class _Set:
    """A blob that a block's contributions name. `chunks` names the blob with the digests of its chunks, and that one's
    size."""

    digest: Digest
    kind: str
    size: int
    chunks: tuple[Digest, int] | None
    authors: list[Id] = field(default_factory=list)


class SharedSets:
    """Fetches and checks the sets that local phases read.

    `disk` is the store's thread; `offload` hashes and checks each set at its first use. `is_alone` says whether so few
    peers are connected that none may be taken for gone. `on_loss` is called for every author that a local phase
    continues without.
    """

    def __init__(
        self,
        runs: RunSpecs,
        me: Id,
        store: SqliteStore,
        blobs: BlobFetcher,
        disk: Offload,
        offload: Offload,
        *,
        is_alone: Callable[[], bool],
        on_loss: Callable[[MissingAuthor], None],
        boundary: Boundary | None = None,
    ) -> None:
        self._runs = runs
        self._me = me
        self._store = store
        self._blobs = blobs
        self._disk = disk
        self._offload = offload
        self._is_alone = is_alone
        self._on_loss = on_loss
        self._boundary = boundary or Boundary()
        self._checked: set[Digest] = set()

    def __repr__(self) -> str:
        return f"SharedSets(checked={len(self._checked)})"

    async def gather(self, height: int, head: Block) -> Pulled:
        """Returns the sets that the local phase for `height`, on `head`, reads, as far as a peer or the store has
        them."""
        round_, beacon = self._runs.find(height), compute_beacon(head)
        at = None if round_ is None else self._runs.find_shared(round_)
        if round_ is None or at is None:
            return Pulled(Exchange(beacon, self._me))
        block = await self._disk.run(self._read_block, at.height)
        offers, sets = get_offers(block), _list_sets(at, block)
        held: dict[Digest, BlobSource] = {}
        gone: dict[Id, str] = {}
        pulled_bytes = 0
        while True:
            wanted = round_.spec.wanted_in_training(round_.number, beacon, self._me, offers, frozenset(gone))
            missing = [sets[digest] for digest in dict.fromkeys(wanted) if digest not in held]
            if not missing:
                break
            async with asyncio.TaskGroup() as group:
                getting = {one.digest: group.create_task(self._try_get(at, one)) for one in missing}
            for digest, task in getting.items():
                got, num_bytes = task.result()
                pulled_bytes += num_bytes
                if not isinstance(got, _Lost):
                    held[digest] = got
                    continue
                for author in sets[digest].authors:
                    gone[author] = str(got)
                    self._on_loss(MissingAuthor(height, author, str(got), got.is_fault))
        blobs = {digest: data for digest in wanted if isinstance(data := held[digest], bytes)}
        files = {digest: path for digest in wanted if isinstance(path := held[digest], Path)}
        exchange = Exchange(beacon, self._me, offers, frozenset(gone), blobs, files)
        return Pulled(exchange, gone, pulled_bytes)

    def _read_block(self, height: int) -> Block:
        """Returns a stored block. Runs on the store's thread."""
        stored = self._store.get_block(height)
        if stored is None:
            raise StoreCorrupted(f"{self._store.path}: block {height}: missing from the store")
        return stored.block

    async def _try_get(self, at: RunRound, one: _Set) -> tuple[BlobSource | _Lost, int]:
        """Returns the place of a set, or why it is lost, and the number of bytes that were pulled for it."""
        with self._boundary.around("shared set", one.authors[0]):
            return await self._get(at, one)
        return _Lost(f"{one.kind}: {UNFORESEEN}"), 0

    async def _get(self, at: RunRound, one: _Set) -> tuple[BlobSource | _Lost, int]:
        try:
            if await self._is_held(at, one):
                return await self._disk.run(self._store.locate_blob, one.digest), 0
            await wait_for_company(self._is_alone, at.rules.waits.collect_s)
            await self._pull(at, one)
            await self._check(at, one)
            return await self._disk.run(self._store.locate_blob, one.digest), one.size
        except _Lost as lost:
            return lost, 0
        except (BlobMissing, StoreCorrupted) as error:  # right after it was pulled
            return _Lost(f"{one.kind}: {error}"), 0

    async def _is_held(self, at: RunRound, one: _Set) -> bool:
        """Says whether the set is here as it was signed. A damaged one is deleted."""
        if not self._store.has_blob(one.digest):
            return False
        try:
            await self._check(at, one)
        except (BlobMissing, StoreCorrupted) as error:
            log.warning("a set shared at height %d was deleted, to be fetched again: %s", at.height, error)
            await self._disk.run(self._store.delete_blob, one.digest)
            return False
        return True

    async def _check(self, at: RunRound, one: _Set) -> None:
        if one.digest not in self._checked:
            await self._offload.run(self._check_file, at, one)
            self._checked.add(one.digest)

    def _check_file(self, at: RunRound, one: _Set) -> None:
        self._store.check_blob(one.digest)
        try:
            arrays = read_arrays(self._store.locate_blob(one.digest))
            at.spec.validate_payload(one.kind, arrays, at.number)
        except PayloadError as error:
            raise _Lost(f"{one.kind}: {error}", is_fault=True) from error

    async def _pull(self, at: RunRound, one: _Set) -> None:
        """Pulls a set into the store. Raises _Lost."""
        patience_s = at.rules.waits.collect_s
        try:
            if one.chunks is None:
                await self._blobs.try_fetch(one.digest, one.size, one.authors, patience_s=patience_s)
                return
            digest, size = one.chunks
            listed = await self._blobs.try_fetch(digest, size, one.authors, patience_s=patience_s)
            chunks = Chunks.from_payload(one.size, decode_arrays(listed, size))
            await self._blobs.try_fetch_file(one.digest, one.size, chunks.digests, one.authors, patience_s=patience_s)
        except BlobUnavailable as error:
            raise _Lost(f"{one.kind}: cannot be had ({error})") from error
        except (PayloadError, ChunksMisfit, ValueError) as error:
            raise _Lost(f"{one.kind}: the digests of its chunks are not such ({error})", is_fault=True) from error
        except StoreFull as error:
            raise _Lost(f"{one.kind}: cannot be kept, the disk is full ({error})") from error


def _list_sets(at: RunRound, block: Block) -> dict[Digest, _Set]:
    """Returns every blob that the block's authors have committed to, by digest."""
    streamed = at.spec.get_streamed(at.number)
    sets: dict[Digest, _Set] = {}
    for contribution in block.contributions:
        refs = {kind_name(ref.kind): ref for ref in contribution.payloads}
        for kind, ref in refs.items():
            chunks = refs[streamed[kind]] if kind in streamed else None
            named = None if chunks is None else (chunks.digest, chunks.size)
            one = sets.setdefault(ref.digest, _Set(ref.digest, kind, ref.size, named))
            one.authors.append(contribution.author)
    return sets
