"""Payload wiring: makes the parts that fetch blobs and compute with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from chain.block import Block, Contribution, Id
from chain.tip import Tip
from node.consensus.context import NodeContext
from node.consensus.gossip.awaiting import Awaiting
from node.consensus.height.current import CurrentRound
from node.offload import Offload
from node.p2p.peers import Peers
from node.p2p.refusals import Reason
from node.payloads.aggregates import Aggregates
from node.payloads.checks import RoundPayloads
from node.payloads.fetcher import BlobFetcher
from node.payloads.on_demand import OnDemand
from node.payloads.partial_files import PartialFiles
from node.payloads.pushed import PushedPayloads
from node.payloads.relayed import RelayedBlobs
from node.payloads.retention import read_sharing_blocks
from node.payloads.shared_sets import SharedSets
from node.payloads.transfers import Transfers
from node.payloads.waiting_blobs import WaitingBlobs
from node.runs.specs import RunRound


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """Holds the parts that fetch blobs, each of them so that none waits for another, and those that use the blobs."""

    transfers: Transfers
    waiting: WaitingBlobs
    pushed: PushedPayloads
    blobs: BlobFetcher  # for the vote of the height in hand; its transfers end with the height
    demanded_blobs: BlobFetcher  # on demand, from single peers; on a thread that votes do not wait for
    late_blobs: BlobFetcher  # for blocks that are final
    relayed_blobs: BlobFetcher  # for peers that cannot reach the blobs' authors
    aggregates: Aggregates
    late_aggregates: Aggregates
    on_demand: OnDemand
    shared_sets: SharedSets
    relayed: RelayedBlobs
    arithmetic: Offload

    @property
    def behind(self) -> tuple[BlobFetcher, ...]:
        """Returns the fetchers that no vote waits for."""
        return self.demanded_blobs, self.late_blobs, self.relayed_blobs

    def make_round(self, tip: Tip, round_: RunRound) -> RoundPayloads:
        """Returns the payloads of a round on a tip."""
        return RoundPayloads(
            round_.spec,
            round_number=round_.number,
            parent=partial(self.aggregates.get_arrays, tip.block),
            blobs=self.blobs,
            arithmetic=self.arithmetic,
            pushed=self.pushed,
        )


def make_payloads(c: NodeContext, current: CurrentRound, peers: Peers, awaiting: Awaiting) -> Payloads:
    """Makes the parts for the chain in `current`."""

    def get_open() -> Iterable[Contribution]:
        return current.machine.contributions.values() if current.machine is not None else ()

    transfers = _make_transfers(c, peers, current.tip.height)
    partial_files = PartialFiles(c.store, c.bulk)

    def make_fetcher(disk: Offload) -> BlobFetcher:
        return BlobFetcher(
            c.transport, c.store, disk, partial_files, transfers, c.slowness, c.boundary, get_relays=get_relays
        )

    def get_relays(author: Id) -> list[Id]:
        return [peer.id for peer in peers.get_relays(author)]

    def make_aggregates(blobs: BlobFetcher) -> Aggregates:
        return Aggregates(c.runs, c.store, blobs, disk=c.disk, arithmetic=c.arithmetic, boundary=c.boundary)

    def is_alone() -> bool:
        return peers.describe_stall() is not None

    async def read_block(height: int) -> Block | None:
        stored = await c.disk.run(c.store.get_block, height)
        return None if stored is None else stored.block

    waiting = WaitingBlobs()
    blobs, demanded_blobs, late_blobs = make_fetcher(c.disk), make_fetcher(c.bulk), make_fetcher(c.disk)
    on_demand = OnDemand(
        c.runs,
        c.me,
        demanded_blobs,
        c.bulk,
        is_alone=is_alone,
        get_patience=awaiting.get_patience,
        on_loss=awaiting.on_missing,
        read_block=read_block,
        is_member=lambda member: current.tip.state.is_active(member),
        boundary=c.boundary,
    )
    shared_sets = SharedSets(
        c.runs,
        c.me,
        c.store,
        late_blobs,
        c.disk,
        c.bulk,
        is_alone=is_alone,
        on_loss=awaiting.on_missing,
        boundary=c.boundary,
    )
    relayed_blobs, own = make_fetcher(c.bulk), (blobs, demanded_blobs, late_blobs)
    return Payloads(
        transfers,
        waiting,
        PushedPayloads(waiting),
        blobs,
        demanded_blobs,
        late_blobs,
        relayed_blobs,
        make_aggregates(blobs),
        make_aggregates(late_blobs),
        on_demand,
        shared_sets,
        RelayedBlobs(c.runs, peers, relayed_blobs, own, get_open=get_open, boundary=c.boundary),
        c.arithmetic,
    )


def _make_transfers(c: NodeContext, peers: Peers, head: int) -> Transfers:
    """Makes the transfers, with names for the sets that members have shared already."""

    def on_wrong(peer: Id) -> None:
        peers.refuse(peer, Reason.BLOB)

    transfers = Transfers(c.clock, peers.get_name, on_wrong=on_wrong)
    for shared in read_sharing_blocks(c.store, c.runs, head):
        round_ = c.runs.find(shared.height)
        if round_ is not None:
            with c.boundary.around("record"):
                transfers.name(shared.contributions, round_.spec.get_streamed(round_.number))
    return transfers
