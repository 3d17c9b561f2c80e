"""The view of a node's peers: shows each with its state, its traffic, and the faults counted against it."""

from __future__ import annotations

from chain.signing import encode_id
from node.boundary import Boundary
from node.clock import Clock
from node.consensus.service import RoundService
from node.p2p.address_book import AddressBook
from node.p2p.bans import Bans
from node.p2p.peers import Peer
from node.p2p.refusals import Refusals
from node.p2p.transport.base import Transport
from node.pb import admin_pb2 as pb


class PeerView:
    """Shows peers, from what the parts of one node know of each."""

    def __init__(
        self,
        service: RoundService,
        book: AddressBook,
        *,
        transport: Transport,
        bans: Bans,
        boundary: Boundary,
        clock: Clock,
    ) -> None:
        self._service = service
        self._book = book
        self._transport = transport
        self._bans = bans
        self._boundary = boundary
        self._clock = clock

    def show(self, peer: Peer) -> pb.PeerView:
        silent_s = self._clock.monotonic() - peer.seen_s
        shown = pb.PeerView(
            id=encode_id(peer.id),
            name=peer.name,
            address=self._book.get(peer.id),
            added=self._book.is_added(peer.id),
            member=peer.is_member,
            role=peer.role.describe(),
            connected=peer.connected,
            alive=self._service.peers.is_alive(peer.id),
            silent_s=silent_s if silent_s < float("inf") else None,
            rejected=peer.num_rejected + self._boundary.by_peer[peer.id],
        )
        if peer.status is not None:
            shown.height, shown.head = peer.status.head_height, peer.status.head_id.hex()
            shown.abstains = peer.status.abstains
            if peer.status.version:
                shown.version, shown.protocol = peer.status.version, peer.status.protocol
            if peer.status.height and self._service.tip.state.has_round(peer.status.height):
                shown.round, shown.view = peer.status.height, peer.status.view
        if peer.is_member and not peer.connected:
            shown.through.extend(relay.name for relay in self._service.peers.get_relays(peer.id))
        if peer.is_member:
            shown.credit = self._service.credits.get_waits(peer.id)
            if (reason := self._service.describe_not_awaited().get(peer.id)) is not None:
                shown.not_awaited = reason
        if (skew_s := self._service.clocks.get_skews_s().get(peer.id)) is not None:
            shown.clock_ahead_s = skew_s
        if (left_s := self._bans.get_remaining_s(peer.id)) > 0:
            shown.banned_s = left_s
            shown.banned_for = "hand" if peer.id in self._bans.get_by_hand() else "fault"
        if (direction := self._transport.directions().get(peer.id)) is not None:
            shown.direction = direction.value
        trips = self._transport.round_trips().get(peer.id)
        if peer.connected and trips is not None and (round_trip_s := trips.get_typical_s()) is not None:
            shown.round_trip_s = round_trip_s
        traffic = self._transport.counters().get(peer.id)
        if traffic is not None:
            shown.bytes_sent, shown.bytes_received = traffic.bytes_sent, traffic.bytes_received
            shown.messages_sent, shown.messages_received = traffic.messages_sent, traffic.messages_received
            shown.batches_sent = traffic.batches_sent
            shown.dropped, shown.refused, shown.waits = traffic.dropped, traffic.refused, traffic.waits
        refusals = self._service.get_refusals().get(peer.id, Refusals())
        shown.not_taken.update({reason.value: count for reason, count in refusals.items()})
        return shown

    def get_addresses(self) -> dict[bytes, str]:
        """Returns the addresses at which this node dials its peers, as far as it knows them."""
        return self._book.get_all()

    def get_name(self, node_id: bytes) -> str:
        """Returns the name of a peer or member; for a stranger, the start of the key."""
        peer = self._service.peers.get(node_id)
        return peer.name if peer is not None else self._service.peers.get_name(node_id)
