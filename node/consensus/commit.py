"""Commits final blocks: writes blobs, blocks, certificates and head in one transaction, then moves the tip.

A second block that was certified at a height that is final here is not committed. Both blocks are stored, and this node
signs nothing on top of that height any more (PROTOCOL §9).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from chain import codec
from chain.block import ZERO, Contribution, Digest
from chain.state import State
from chain.store.blob_rows import SMALL_BLOB_BYTES
from chain.store.signed_slots import get_block_digests
from chain.store.sqlite import SqliteStore
from node.boundary import Boundary
from node.consensus.gossip.sync import ChainsDiverge
from node.consensus.height.current import CurrentRound
from node.consensus.height.final_block import FinalBlock
from node.consensus.height.halted import Halted
from node.consensus.payload_wiring import Payloads
from node.offload import Offload
from node.payloads.checks import Aggregate
from node.payloads.retention import Retention
from node.runs.specs import RunSpecs

DIVERGENCE = "divergence"  # the meta value that holds both blocks once two were certified at one height


class StateFollower(Protocol):
    """Follows the state in force; it lives longer than a height."""

    def on_state(self, state: State) -> None:
        """Notes that another state is in force."""


@dataclass(frozen=True, slots=True)
class Coming:
    """Holds what is stored along with blocks: an aggregate that is no small blob, small blobs, and the digests of blobs
    that were fetched from peers, for the vote or (`late`) for blocks that were final."""

    large_aggregate: bytes | None
    small: tuple[bytes, ...]
    pulled: frozenset[Digest]
    late: frozenset[Digest]


class Committer:
    """Commits final blocks; nothing else moves the tip. Retention is notified of all fetched blobs, and `followers` of
    each new state."""

    def __init__(
        self,
        current: CurrentRound,
        runs: RunSpecs,
        store: SqliteStore,
        disk: Offload,
        payloads: Payloads,
        *,
        retention: Retention,
        followers: Sequence[StateFollower],
        boundary: Boundary,
    ) -> None:
        self._current = current
        self._runs = runs
        self._store = store
        self._disk = disk
        self.retention = retention
        self._aggregates = payloads.aggregates
        self._blobs = payloads.blobs
        self._waiting = payloads.waiting
        self._behind = payloads.behind
        self._transfers = payloads.transfers
        self._followers = tuple(followers)
        self._boundary = boundary
        self._just_named: set[Digest] = get_block_digests(current.tip.block)  # digests that the newest blocks name

    def choose_next(self, blocks: Sequence[FinalBlock]) -> list[FinalBlock]:
        """Returns those of `blocks` that follow the tip, one on the other."""
        tip, chosen = self._current.tip, list[FinalBlock]()
        for final in blocks:
            if final.block.height == tip.height + 1 and final.block.header.prev == tip.id:
                chosen.append(final)
                tip = tip.extend(final.block)
        return chosen

    async def append(
        self, blocks: Sequence[FinalBlock], aggregate: Aggregate | None = None, seen: Collection[Contribution] = ()
    ) -> None:
        """Commits `blocks`, which follow the tip. They are durable on return. `aggregate` is the aggregate of the last
        one, if it was computed here, and `seen` are the contributions that were made for the first.

        A blob that came from a peer while earlier blocks were written is kept with those blocks if they name it.
        """
        waiting = self._waiting.get_all()
        if aggregate is not None and 0 < len(aggregate.data) <= SMALL_BLOB_BYTES:
            waiting[aggregate.digest] = aggregate.data
        coming = Coming(
            None if aggregate is None or aggregate.digest in waiting or aggregate.digest == ZERO else aggregate.data,
            tuple(waiting.values()),
            self._blobs.take_pulled() - self._just_named,
            frozenset[Digest]().union(*(blobs.take_pulled() for blobs in self._behind)),
        )
        await self._disk.run(self._put_blocks, blocks, tuple(seen), coming, self._just_named)
        self._waiting.remove(waiting)
        self._just_named = set[Digest]().union(*(get_block_digests(final.block) for final in blocks))
        if aggregate is not None:
            self._aggregates.on_new(aggregate)
        for final in blocks:
            before = self._current.tip.state
            self._current.tip = self._current.tip.extend(final.block)
            if self._current.tip.state != before:
                for follower in self._followers:
                    follower.on_state(self._current.tip.state)
            with self._boundary.around("record"):
                round_ = self._runs.find(final.block.height)
                if round_ is not None:
                    self._transfers.name(final.block.contributions, round_.spec.get_streamed(round_.number))

    def _put_blocks(
        self,
        blocks: Sequence[FinalBlock],
        seen: tuple[Contribution, ...],
        coming: Coming,
        just_named: set[Digest],
    ) -> None:
        """Writes blocks to the store, on the disk's thread. `seen` contributions and fetched blobs count for the first
        block."""
        if coming.large_aggregate is not None:
            self._store.put_blob(coming.large_aggregate)
        self._store.append_all([(final.block, final.certificate) for final in blocks], coming.small)
        pulled = coming.pulled | (self._store.take_new_rows() - just_named)
        for final in blocks:
            height = final.block.height
            if final.block.change is not None or self._store.get_state(height) != self._store.get_state(height - 1):
                self._runs.calendar.add(height, self._store.get_state(height))
        first, *others = blocks
        with self._boundary.around("retention"):
            self.retention.on_block(first.block, seen, pulled, coming.late)
            for final in others:
                self.retention.on_block(final.block)

    def abandon(self) -> None:
        """Stops all transfers of blobs, since nothing is committed any more."""
        for blobs in self._behind:
            blobs.abandon()

    # ---- when two blocks were certified at one height

    async def raise_if_diverged(self) -> None:
        """Raises Halted if two certified blocks of one height are stored."""
        divergence = await self._disk.run(self._store.get_meta, DIVERGENCE)
        if divergence is not None:
            raise Halted(
                f"two blocks were certified at height {divergence['height']}; nothing is signed on top of that"
            )

    async def halt(self, error: ChainsDiverge) -> None:
        """Stores both blocks and raises Halted."""
        noted = {
            "height": error.ours.height,
            "ours": codec.encode_block(error.ours).hex(),
            "theirs": codec.encode_block(error.theirs).hex(),
            "their_certificate": codec.encode_certificate(error.certificate).hex(),
        }
        await self._disk.run(self._store.put_meta, DIVERGENCE, noted)
        raise Halted(str(error)) from error

    def __repr__(self) -> str:
        return f"<Committer at {self._current.tip.height}>"
