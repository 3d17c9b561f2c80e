"""Opens a round: decides whom it awaits and how long, and whether this node signs, mines and contributes in it.

A node signs nothing at a height for which it may have signed something that its disk does not hold any more: after rows
were lost, and after its data was restored from a backup.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from chain.block import Id
from chain.calendar import Place, get_next_place
from chain.state import State
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from node.consensus.arrival_spread import ArrivalSpread
from node.consensus.gossip_parts import GossipParts
from node.consensus.governance_parts import GovernanceParts
from node.consensus.height.collecting import Collecting
from node.consensus.height.machine import RoundMachine
from node.consensus.height.participation import Participation
from node.consensus.learning.masking import Masking
from node.consensus.signing.restored import RESTORED, Restored, is_needed
from node.consensus.signing.signer import Signer
from node.offload import Offload

log = logging.getLogger(__name__)


class RoundOpener:
    """Opens the rounds of one node. `mines` may be changed, from the next round on."""

    def __init__(
        self,
        signer: Signer,
        store: SqliteStore,
        disk: Offload,
        gossip: GossipParts,
        governance: GovernanceParts,
        masking: Masking,
        participation: Participation,
        *,
        mines: bool,
    ) -> None:
        self.mines = mines
        self.restored = Restored(store.get_meta(RESTORED))
        self.participation = participation
        self.consent = governance.consent
        self.own_membership = governance.own_membership
        self.masking = masking
        self.crossing = ArrivalSpread()
        self._signer = signer
        self._store = store
        self._disk = disk
        self._peers = gossip.peers
        self._delays = gossip.delays
        self._awaiting = gossip.awaiting
        self._evidence = gossip.evidence
        self._proposals = governance.proposals

    async def open(self, tip: Tip, collect_s: float, *, seen: Collection[Id] = (), is_behind: bool) -> RoundMachine:
        """Returns the machine of the height after `tip`. `seen` are the authors whose contribution to the head was
        verified here, even if its block leaves them out. `is_behind` says that there are final blocks which this node
        lacks."""
        height = tip.height + 1
        await self._note_tip(tip, is_behind=is_behind)
        state, me = tip.state, self._signer.id
        speaks = self._signer.may_sign(state, height) and not self.restored.is_silent_at(height)
        await self._proposals.on_tip()
        await self.consent.on_tip(tip)
        await self.masking.on_tip(tip)
        has_round, place = state.has_round(height), get_next_place(state, tip.height)
        contributes = await self.masking.owes_openings(height) or self.may_contribute_to(place)
        authors, overdrawn = {c.author for c in tip.block.contributions}, self._awaiting.get_overdrawn()
        awaited = authors | set(seen) if authors else authors
        if awaited and self.masking.is_opening(height):
            overdrawn -= authors  # if any one of these is missing, the round is lost
            # other members send a key for the next round
            awaited |= {member for member in state.active_ids if self._peers.is_level(member, tip.height)}
        speaker = me if speaks else None
        collecting = Collecting(
            state,
            speaker,
            awaited=awaited | {me} if awaited else state.active_ids,  # a change block has no authors
            overdrawn=overdrawn,
            accused=self._evidence.get_accused(height),
            contributes=has_round and state.is_active(me) and contributes,
            collect_s=collect_s,
            is_empty=self.masking.is_empty if self.masking.has_inputs else None,
            may_give=authors,  # those that have sent a key
        )
        return RoundMachine(
            state,
            collecting,
            me=speaker,
            height=height,
            parent_ms=tip.header.time_ms,
            mine=self.mines and state.is_active(me),
            crossing_s=self.crossing.compute_wait_s(state.rules.waits.delta_s),
            delta_s=self._delays.compute_delta_s(state),
            change=self._proposals.choose(),
        )

    def may_contribute_to(self, place: Place) -> bool:
        """Says whether this node may contribute to the round in hand: its operator has nothing against it, and a run of
        masked sums does not wait for a change."""
        is_willing = self.participation.contributes_to(place) and not self.own_membership.is_leaving
        return is_willing and self.consent.reason is None and self.masking.pause is None

    def describe_silence(self, state: State) -> str | None:
        """Says why this node signs or contributes nothing in this state; None for a member that takes part."""
        return self.restored.describe(is_needed=is_needed(state, self._signer.id)) or self.own_membership.describe()

    async def _note_tip(self, tip: Tip, *, is_behind: bool) -> None:
        is_behind |= self._peers.get_reached_height() > tip.height  # requests to all of them may just have failed
        is_caught_up = self._peers.describe_stall() is None and not is_behind
        if self.restored.on_tip(tip.height, is_caught_up=is_caught_up):
            await self._disk.run(self._store.put_meta, RESTORED, self.restored.to_meta())
            silence = self.restored.describe(is_needed=is_needed(tip.state, self._signer.id))
            log.warning("%s", silence or "put back from a backup, and signs again: two heights passed")
