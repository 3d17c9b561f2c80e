"""Proposes the conviction of members that signed twice: evidence proves itself, and needs nobody's approval.

All members that hold the evidence could propose it, with n equal changes as the result. So they take turns, from the
coordinator of the height after the double signature on: each waits for those before it, and does nothing if one of them
has proposed it (FEDERATION §2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from chain.block import Id
from chain.changes.change import Change
from chain.changes.members import Convict
from chain.errors import ChainError
from chain.evidence import encode_evidence
from chain.proposals import Proposal
from chain.state import State
from chain.store.interface import StoredEvidence
from chain.store.sqlite import SqliteStore
from node.consensus.gossip.evidence import EvidencePool
from node.consensus.governance.proposals import ProposalBook
from node.consensus.height.current import CurrentRound
from node.consensus.signing.signer import Signer
from node.errors import NodeError
from node.offload import Offload

log = logging.getLogger(__name__)

TURN_STATUSES = 4  # statuses that a member's turn lasts
OPEN_HEIGHTS = 100


class Convictions:
    """Proposes convictions for one node. `disk` is the store's thread."""

    def __init__(
        self,
        current: CurrentRound,
        evidence: EvidencePool,
        book: ProposalBook,
        signer: Signer,
        store: SqliteStore,
        disk: Offload,
    ) -> None:
        self._current = current
        self._evidence = evidence
        self._book = book
        self._signer = signer
        self._store = store
        self._disk = disk
        self._waited: dict[int, int] = {}  # calls of `look` since a seat could be convicted, by seat

    def __repr__(self) -> str:
        return f"<Convictions on {self._current.tip.height}: {len(self._waited)} could be>"

    async def run(self) -> None:
        """Calls `look` as often as statuses are sent, until cancelled."""
        while True:
            await asyncio.sleep(self._current.tip.state.rules.waits.status_s)
            await self.look()

    async def look(self) -> None:
        """Proposes the convictions for which it is this node's turn."""
        tip = self._current.tip
        if not self._signer.may_sign(tip.state, tip.height + 1) or not self._get_accused():
            self._waited.clear()
            return
        oldest = max(0, tip.height - tip.state.rules.evidence_heights)
        stored = await self._disk.run(self._store.get_evidence, oldest)
        seats = set[int]()
        for seat, each in self._choose_newest(stored).items():
            change = self._make_change(each)
            try:
                self._book.check(change)
            except ChainError as error:
                log.debug("evidence against seat %d cannot be executed now: %s", seat, error)
                continue
            seats.add(seat)
            waited = self._waited[seat] = self._waited.get(seat, -1) + 1
            if waited >= TURN_STATUSES * self._get_turn(each.height):
                await self._propose(change)
        self._waited = {seat: waited for seat, waited in self._waited.items() if seat in seats}

    def _choose_newest(self, stored: Iterable[StoredEvidence]) -> dict[int, StoredEvidence]:
        """Returns for each seat that can be convicted its newest evidence, since old evidence soon expires. Evidence of
        later heights proves nothing yet."""
        newest: dict[int, StoredEvidence] = {}
        for each in stored:
            seat = self._find_seat(each) if each.height <= self._current.tip.height else None
            if seat is not None:
                newest[seat] = each
        return newest

    def _get_accused(self) -> set[Id]:
        """Returns the accused keys of members that are not suspended. A member's earlier keys count too."""
        state = self._current.tip.state
        seats = {old.key: old.seat for old in state.retired} | {member.key: member.seat for member in state.members}
        open_seats = {member.seat for member in state.members if not member.is_suspended}
        accused = self._evidence.get_accused(self._current.tip.height + 1)
        return {author for author in accused if seats.get(author) in open_seats}

    def _find_seat(self, stored: StoredEvidence) -> int | None:
        """Returns the seat that evidence accuses, if it can be convicted and nobody has proposed that."""
        state = self._current.tip.state
        seat = state.find_holder(stored.author, stored.height)
        member = None if seat is None else state.get_seat(seat)
        if member is None or member.is_suspended or stored.height <= member.pardoned_at:
            return None
        return None if any(self._accuses(proposal.after, member.seat) for proposal in self._get_open()) else seat

    def _get_open(self) -> list[Proposal]:
        return [proposal for proposal in self._book if isinstance(proposal.change.kind, Convict)]

    @staticmethod
    def _accuses(after: State, seat: int) -> bool:
        member = after.get_seat(seat)
        return member is not None and member.is_suspended

    def _make_change(self, stored: StoredEvidence) -> Change:
        tip = self._current.tip
        me = tip.state.get_member(self._signer.id)
        seat = 0 if me is None else me.seat
        kind = Convict(encode_evidence(stored.evidence))
        return Change(kind, seat, tip.height, tip.height + 1, tip.height + OPEN_HEIGHTS)

    def _get_turn(self, height: int) -> int:
        """Returns how many members may propose it before this one."""
        active = self._current.tip.state.active_ids
        if self._signer.id not in active:
            return len(active)
        return (active.index(self._signer.id) - (height + 1)) % len(active)

    async def _propose(self, change: Change) -> None:
        with suppress(ChainError, NodeError):  # a block or another proposal came first
            await self._book.propose(change)
