"""Relayed blobs: pulls on behalf of peers that are not connected with a blob's author (PROTOCOL §7).

Who asks for a blob that is not here is told *not yet*, and comes again, if this node is going to have it: it is pulling
it anyway, or pulls it now for whoever asked. That is done for payloads on demand alone, of final blocks whose blobs are
still kept, as every voter pulls the others for itself. So what is pulled here goes with its height, as all of those do
(`node.payloads.retention`), and a peer can make this node pull no more than its members have signed. No handler calls
out: the pulls have workers of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from chain.block import Block, Contribution, Digest, Id
from chain.errors import StoreFull
from ml.payload import kind_code
from node.boundary import Boundary
from node.p2p.peers import Peers
from node.payloads.fetcher import BlobFetcher, BlobUnavailable
from node.payloads.on_demand import get_kinds
from node.runs.specs import RunRound, RunSpecs

log = logging.getLogger(__name__)

NUM_WORKERS = 4
NEWEST = 4  # heights of which blobs are pulled for others, at most
MAX_PULLS = 64  # for one peer at one height
MAX_PULL_BYTES = 1 << 30  # the same


@dataclass(slots=True)
class _Offered:
    """What authors have signed of a blob on demand: the largest size, and who they are."""

    size: int = 0
    authors: list[Id] = field(default_factory=list)


@dataclass(slots=True)
class _Budget:
    """What is left of a peer's share at this height."""

    num_pulls: int = MAX_PULLS
    num_bytes: int = MAX_PULL_BYTES


class RelayedBlobs:
    """One node's. `blobs` pulls for others; `own` are the fetchers that pull for this node itself. `get_open` gives the
    contributions to the height in hand. `run` goes on until cancelled."""

    def __init__(
        self,
        runs: RunSpecs,
        peers: Peers,
        blobs: BlobFetcher,
        own: Collection[BlobFetcher],
        *,
        get_open: Callable[[], Iterable[Contribution]],
        boundary: Boundary,
    ) -> None:
        self._runs = runs
        self._peers = peers
        self._blobs = blobs
        self._own = tuple(own)
        self._get_open = get_open
        self._boundary = boundary
        self._offered: dict[int, dict[Digest, _Offered]] = {}  # by height
        self._budgets: dict[Id, _Budget] = {}
        self._queue: asyncio.Queue[tuple[int, Digest]] = asyncio.Queue()
        self._pulling: set[Digest] = set()  # or waiting for a worker

    def __repr__(self) -> str:
        return f"RelayedBlobs(heights={len(self._offered)}, pulling={len(self._pulling)})"

    def on_block(self, block: Block) -> None:
        """A block is final: what is on demand in it may be asked for, and of old ones nothing any more."""
        round_ = self._runs.find(block.height)
        self._budgets.clear()
        if round_ is not None and (offered := _list_offered(round_, block.contributions)):
            self._offered[block.height] = offered
        kept = NEWEST if round_ is None else min(NEWEST, round_.rules.keep_heights)
        self._offered = {height: offered for height, offered in self._offered.items() if height > block.height - kept}

    def is_coming(self, asker: Id, digest: Digest) -> bool:
        """Whether `asker`, a member who cannot ask the author itself, is to ask again for a blob that is not here."""
        peer = self._peers.get(asker)
        if peer is None or not peer.is_member:
            return False
        height, offered = self._find(digest)
        if offered is None or any(self._has_connection(asker, author) for author in offered.authors):
            return False
        if digest in self._pulling or any(digest in blobs.wanted for blobs in self._own):
            return True
        is_near = any(self._peers.is_connected(author) for author in offered.authors)
        if self._peers.is_meshed and not is_near:
            return False
        if height is None:  # it will be final here in a moment, or never
            return True
        budget = self._budgets.setdefault(asker, _Budget())
        if budget.num_pulls < 1 or budget.num_bytes < offered.size:
            return False
        budget.num_pulls -= 1
        budget.num_bytes -= offered.size
        self._pulling.add(digest)
        self._queue.put_nowait((height, digest))
        return True

    def _find(self, digest: Digest) -> tuple[int | None, _Offered | None]:
        """What is signed of a blob: at a final height, or (None) at that in hand."""
        for height, offered in self._offered.items():
            if digest in offered:
                return height, offered[digest]
        found = _Offered()
        for contribution in self._get_open():
            found.authors += [contribution.author for ref in contribution.payloads if ref.digest == digest]
        return None, found if found.authors else None

    def _has_connection(self, asker: Id, author: Id) -> bool:
        """By the last status of the one that asks."""
        return asker == author or any(relay.id == asker for relay in self._peers.get_relays(author))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            height, digest = await self._queue.get()
            try:
                await self._pull(height, digest)
            finally:
                self._pulling.discard(digest)

    async def _pull(self, height: int, digest: Digest) -> None:
        """From an author. Whoever asked comes again, and finds it here or not."""
        round_, offered = self._runs.find(height), self._offered.get(height, {}).get(digest)
        if round_ is None or offered is None:  # the height is over
            return
        with self._boundary.around("relayed blob", offered.authors[0]):
            try:
                patience_s = round_.rules.waits.collect_s
                await self._blobs.try_fetch(digest, offered.size, offered.authors, patience_s=patience_s)
            except (BlobUnavailable, StoreFull) as error:
                log.debug("blob %s is not passed on: %s", digest.hex()[:8], error)


def _list_offered(round_: RunRound, contributions: Iterable[Contribution]) -> dict[Digest, _Offered]:
    """What is on demand of these."""
    codes = {kind_code(kind) for kind in get_kinds(round_)}
    offered: dict[Digest, _Offered] = {}
    for contribution in contributions:
        for ref in contribution.payloads:
            if ref.kind in codes:
                one = offered.setdefault(ref.digest, _Offered())
                one.size = max(one.size, ref.size)
                one.authors.append(contribution.author)
    return offered
