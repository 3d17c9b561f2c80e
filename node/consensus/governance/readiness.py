"""The readiness of a new key: this node's signed statement that it has the chain, made if an open change brings a key
of this node.

A node that joins, or whose lost key is replaced, holds only that key; a node that rotates holds it beside the old one.
The statement names a final block and counts for READY_HEIGHTS above it, so it is renewed in good time (FEDERATION §2).
The first one is signed once the node's worker has started: such a node contributes soon after it is admitted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from chain.approvals import encode_readiness
from chain.block import Readiness
from chain.changes.execution import READY_HEIGHTS
from chain.changes.members import ReplaceKey
from chain.proposals import Proposal
from node.consensus.gossip.sync import Sync
from node.consensus.governance.proposals import ProposalBook
from node.consensus.height.current import CurrentRound
from node.consensus.signing.signer import Signer
from node.p2p.peers import Peer, Peers
from node.p2p.transport.base import Message, MessageKind, Transport

log = logging.getLogger(__name__)

RENEW_HEIGHTS = READY_HEIGHTS // 2


class ReadinessSigner:
    """Signs and sends the readiness of one node's new key."""

    def __init__(
        self,
        current: CurrentRound,
        book: ProposalBook,
        signer: Signer,
        transport: Transport,
        peers: Peers,
        sync: Sync,
        prepare: Callable[[], bool],
    ) -> None:
        """`prepare` starts the worker, and returns whether that is done."""
        self._current = current
        self._book = book
        self._signer = signer
        self._transport = transport
        self._peers = peers
        self._sync = sync
        self._prepare = prepare

    def __repr__(self) -> str:
        return f"<ReadinessSigner on {self._current.tip.height}>"

    async def run(self) -> None:
        """Calls `renew` as often as statuses are sent, until cancelled."""
        while True:
            await asyncio.sleep(self._current.tip.state.rules.waits.status_s)
            await self.renew()

    async def renew(self) -> None:
        """Signs what is due and sends it to all members; sends an earlier statement to those that lack it by their
        status."""
        for proposal in list(self._book):
            new_key = proposal.change.kind.get_new_key()
            if new_key is None or not self._signer.holds(new_key) or not self._is_for_this_node(proposal):
                continue
            is_synced = self._is_synced()
            is_prepared = is_synced and self._prepare()
            if self._is_due(proposal) and is_synced and (is_prepared or proposal.readiness is not None):
                await self._sign(proposal)
            elif proposal.readiness is not None:
                self._give(proposal.readiness, _lacks)

    def _is_for_this_node(self, proposal: Proposal) -> bool:
        """Says whether a change puts this node's key in its own seat. Another member that has seen the key could name
        it for its own seat, and so use it up."""
        me, kind = self._current.tip.state.get_member(self._signer.id), proposal.change.kind
        return me is None or (isinstance(kind, ReplaceKey) and kind.seat == me.seat)

    def _is_due(self, proposal: Proposal) -> bool:
        ready = proposal.readiness
        return ready is None or self._current.tip.height - ready.height >= RENEW_HEIGHTS

    def _is_synced(self) -> bool:
        """Says whether this head is the chain's, as far as the members in reach say."""
        if self._sync.is_behind or not self._signer.has_reached_checkpoint(self._current.tip.height):
            return False
        return self._is_member_here() or any(peer.is_member and self._peers.is_alive(peer.id) for peer in self._peers)

    def _is_member_here(self) -> bool:
        return self._current.tip.state.index_of(self._signer.id) is not None

    async def _sign(self, proposal: Proposal) -> None:
        tip, new_key = self._current.tip, proposal.change.kind.get_new_key()
        assert new_key is not None  # noqa: S101 (the caller has seen it)
        ready = self._signer.sign_readiness(proposal.id, new_key, tip)
        if await self._book.keep_readiness(ready):
            self._give(ready, lambda peer, _: True)
            log.info("stands ready for change %s at height %d", proposal.id.hex()[:8], tip.height)

    def _give(self, ready: Readiness, is_for: Callable[[Peer, Readiness], bool]) -> None:
        message = Message(MessageKind.READINESS, encode_readiness(ready))
        for peer in self._peers:
            if peer.is_member and peer.connected and is_for(peer, ready):
                self._transport.post(peer.id, message)


def _lacks(peer: Peer, ready: Readiness) -> bool:
    """Says whether a peer that has the change has no readiness of it, or an older one."""
    told = () if peer.status is None else peer.status.open
    held = next((change for change in told if change.id == ready.change_id), None)
    return held is not None and (held.ready_height is None or held.ready_height < ready.height)
