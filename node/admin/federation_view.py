"""The view of a federation's members, by the newest state."""

from __future__ import annotations

from collections.abc import Mapping

from chain.block import Id
from chain.signing import encode_id
from chain.state import Member
from node.admin.peer_view import PeerView
from node.admin.stored_chain import StoredChain
from node.consensus.service import RoundService
from node.ledger.runs_view import RunsReader
from node.pb import admin_pb2 as pb


class FederationView:
    """Shows the members of a federation, from one node's tip, store and peers."""

    def __init__(
        self, service: RoundService, chain: StoredChain, peers: PeerView, display_names: Mapping[str, str]
    ) -> None:
        """`display_names` maps members' ids to the names that this site uses for them."""
        self._service = service
        self._chain = chain
        self._peers = peers
        self._display_names = display_names
        self._runs = RunsReader(chain.store)

    @property
    def _me(self) -> Id:
        """Returns the key in force, which a rotation changes."""
        return self._service.signer.id

    async def list_members(self) -> pb.ListMembersReply:
        tip = self._service.tip
        members = sorted(tip.state.members, key=lambda member: member.seat)
        return pb.ListMembersReply(
            height=tip.height,
            quorum=tip.state.q,
            min_contributions=tip.state.min_contributions,
            members=[await self._show_member(member) for member in members],
            observers=[
                pb.ObserverView(
                    id=encode_id(observer.key),
                    name=observer.name,
                    display_name=self._display_names.get(encode_id(observer.key)),
                    connected=self._service.peers.is_connected(observer.key),
                    alive=self._service.peers.is_alive(observer.key),
                )
                for observer in tip.state.observers
            ],
        )

    async def _show_member(self, member: Member) -> pb.MemberView:
        shown = pb.MemberView(
            id=encode_id(member.key),
            name=member.name,
            display_name=self._display_names.get(encode_id(member.key)),
            seat=member.seat,
            since=member.since,
            key_since=member.key_since,
            suspended=member.is_suspended,
            me=member.key == self._me,
        )
        if member.pardoned_at:
            shown.pardoned_at = member.pardoned_at
        if member.since:
            change, _ = await self._chain.disk.run(self._runs.read_change, member.since)
            shown.change = change.compute_id(self._service.tip.state.chain_id).hex()
        if member.key == self._me:
            shown.connected = shown.alive = True
            shown.height = self._service.tip.height
        elif (peer := self._service.peers.get(member.key)) is not None:
            view = self._peers.show(peer)
            shown.connected, shown.alive = view.connected, view.alive
            shown.through.extend(view.through)
            for name in ("silent_s", "height", "address", "version"):
                if view.HasField(name):
                    setattr(shown, name, getattr(view, name))
        if (ahead_s := self._service.clocks.get_skews_s().get(member.key)) is not None:
            shown.clock_ahead_s = ahead_s
        return shown
