"""Relayed blobs: pulls on behalf of peers that are not connected with a blob's author (PROTOCOL §7).

A peer that asks for a blob this node lacks receives *not yet*, and asks again later, if this node is going to have it:
because it pulls it anyway, or now starts to pull it for that peer. It pulls only payloads on demand, of final blocks
whose blobs are still kept, as every voter pulls the others for itself. They are deleted with their height like all of
those (`node.payloads.retention`), and a peer cannot make this node pull more than its members have signed. No request
handler pulls: workers do.
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
MAX_PULL_BYTES = 1 << 30  # likewise


@dataclass(slots=True)
class _Offered:
    """The largest size that authors have signed for a blob on demand, and these authors."""

    size: int = 0
    authors: list[Id] = field(default_factory=list)


@dataclass(slots=True)
class _Budget:
    """The pulls and bytes that one peer may still cause at this height."""

    num_pulls: int = MAX_PULLS
    num_bytes: int = MAX_PULL_BYTES


class RelayedBlobs:
    """Pulls blobs for peers. `blobs` is the fetcher for them; `own` are the fetchers of this node's own blobs.
    `get_open` returns the contributions for the height under way. `run` continues until it is cancelled."""

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
        """Records the payloads on demand of a final block, and drops those of old blocks."""
        round_ = self._runs.find(block.height)
        self._budgets.clear()
        if round_ is not None and (offered := _list_offered(round_, block.contributions)):
            self._offered[block.height] = offered
        kept = NEWEST if round_ is None else min(NEWEST, round_.rules.keep_heights)
        self._offered = {height: offered for height, offered in self._offered.items() if height > block.height - kept}

    def is_coming(self, asker: Id, digest: Digest) -> bool:
        """Says whether `asker`, a member that is not connected with the author, should ask again for a blob that is not
        here. Starts to pull it if need be."""
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
        if height is None:  # its block may become final soon, or never
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
        """Returns what is signed of a blob, with the height of its final block, or None for the height under way."""
        for height, offered in self._offered.items():
            if digest in offered:
                return height, offered[digest]
        found = _Offered()
        for contribution in self._get_open():
            found.authors += [contribution.author for ref in contribution.payloads if ref.digest == digest]
        return None, found if found.authors else None

    def _has_connection(self, asker: Id, author: Id) -> bool:
        """Says whether `asker` is connected with `author`, by its last status."""
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
        """Pulls a blob from its authors. The peer that asked for it asks again, whether or not this succeeds."""
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
    """Returns the payloads on demand of these contributions, by digest."""
    codes = {kind_code(kind) for kind in get_kinds(round_)}
    offered: dict[Digest, _Offered] = {}
    for contribution in contributions:
        for ref in contribution.payloads:
            if ref.kind in codes:
                one = offered.setdefault(ref.digest, _Offered())
                one.size = max(one.size, ref.size)
                one.authors.append(contribution.author)
    return offered
