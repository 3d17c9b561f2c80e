"""The parts of gossip: they send this node's objects to its peers, and take in theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chain.block import Digest
from node.consensus.context import RoundContext
from node.consensus.gossip.authenticator import Authenticator
from node.consensus.gossip.awaiting import Awaiting
from node.consensus.gossip.evidence import EvidencePool
from node.consensus.gossip.gossip import Gossip, Position
from node.consensus.gossip.hints import AddressHints
from node.consensus.gossip.last_seen import LastSeen
from node.consensus.gossip.member_clocks import MemberClocks
from node.consensus.gossip.neighbours import Neighbours
from node.consensus.gossip.published import PublishedRounds
from node.consensus.gossip.second_histories import SecondHistories
from node.consensus.gossip.silence import SilenceWatch
from node.consensus.gossip.spreading import Spreading
from node.consensus.gossip.sync import Sync
from node.p2p.address_book import AddressBook
from node.p2p.delays import Delays
from node.p2p.peers import Peers


@dataclass(frozen=True, slots=True, eq=False)
class GossipParts:
    """Holds the parts of gossip of one node; `make_gossip` makes them."""

    peers: Peers
    delays: Delays
    clocks: MemberClocks
    awaiting: Awaiting
    neighbours: Neighbours
    gossip: Gossip
    evidence: EvidencePool
    authenticator: Authenticator
    hints: AddressHints
    published: PublishedRounds
    sync: Sync
    silence: SilenceWatch
    last_seen: LastSeen


def make_gossip(
    context: RoundContext, get_position: Callable[[], Position], find_payload: Callable[[Digest], bytes | None]
) -> GossipParts:
    """Makes the parts from what the store holds. Raises StoreCorrupted, or NodeError for the address book."""
    c, current, peers, events = context.node, context.current, context.peers, context.events
    neighbours = Neighbours(current, peers, c.transport, c.clock)
    delays = Delays(c.transport.round_trips, peers.count_liars)
    spreading = Spreading(c.transport, lambda: neighbours.eager)
    gossip = Gossip(c.transport, peers, c.clock, get_position, spreading, find_payload, delays)
    evidence = EvidencePool(
        current,
        c.store,
        c.disk,
        peers=peers,
        gossip=gossip,
        records=context.records,
        events=events,
        clock=c.clock,
        boundary=c.boundary,
    )
    hints = AddressHints(
        c.book or AddressBook.load(c.store.path, {}),
        context.signer,
        c.transport,
        chain_id=c.genesis.chain_id,
        advertise=c.advertise,
        peers=peers,
        clock=c.clock,
        disk=c.disk,
    )
    published = PublishedRounds(
        current,
        context.signer,
        c.transport,
        c.store,
        c.disk,
        chain_id=c.genesis.chain_id,
        calendar=c.runs.calendar,
        peers=peers,
        clock=c.clock,
        publish_from=c.publish_from,
    )
    published.load()
    sync = Sync(
        c.transport,
        peers,
        lambda: current.tip,
        current.adopt,
        SecondHistories(c.store, c.disk, events),
        c.boundary,
        c.checkpoint,
    )
    return GossipParts(
        peers,
        delays,
        MemberClocks(current, c.me, c.clock),
        Awaiting(current.tip.state, c.me, peers, events),
        neighbours,
        gossip,
        evidence,
        Authenticator(current.tip.state, c.clock.monotonic),
        hints,
        published,
        sync,
        SilenceWatch(current, peers, c.clock, events, context.get_status_s, gossip.on_step),
        LastSeen(peers, c.store, c.disk, c.clock),
    )
