"""Admissions: the peers that this node admits, by the state in force and by what its operator approved.

Members and observers are those of the state. Guests are keys that are not members yet or any more: a joiner and the new
key of a seat, once this operator has approved the change; a rotation that its own member proposes, as soon as it is
open; and the keys that were members up to 1,000 heights ago, so that their nodes learn what became of them (FEDERATION
§2, Keys).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from chain.block import Id
from chain.changes.members import AddMember, ReplaceKey
from chain.proposals import Proposal, Proposals
from chain.signing import encode_id
from chain.state import State
from chain.store.sqlite import SqliteStore
from node.consensus.height.current import CurrentRound
from node.p2p.admission import Admission, Role
from node.p2p.peers import Peers
from node.p2p.transport.base import Transport

log = logging.getLogger(__name__)

FAREWELL_HEIGHTS = 1000  # for so long the key of a former member is admitted as a guest


class Admissions:
    """Decides which peers one node admits. The result is in force in the book of peers and in the transport from the
    start."""

    def __init__(
        self,
        current: CurrentRound,
        proposals: Proposals,
        me: Id,
        store: SqliteStore,
        peers: Peers,
        transport: Transport,
    ) -> None:
        self._current = current
        self._proposals = proposals
        self._me = me
        self._peers = peers
        self._transport = transport
        self._state = current.tip.state
        self._former = _find_former(store, current.tip.height)  # with the height of its removal, and its name
        self._admission = self._compute()
        self._apply()

    def __repr__(self) -> str:
        kinds = (len(self._admission.members), len(self._admission.observers), len(self._admission.guests))
        return "<Admissions: {} members, {} observers, {} guests>".format(*kinds)

    def on_state(self, state: State) -> None:
        """Notes that another state is in force. A member that has left is a guest for a while."""
        for member in self._state.members:
            if state.index_of(member.key) is None:
                self._former[member.key] = (self._current.tip.height, member.name)
        self._state = state
        self._peers.on_state(state)
        self.on_changes()

    def on_changes(self) -> None:
        """Computes the admissions again after the chain has grown, or other changes are open or approved here."""
        height = self._current.tip.height
        self._former = {
            key: (since, name) for key, (since, name) in self._former.items() if height < since + FAREWELL_HEIGHTS
        }
        admission = self._compute()
        if admission != self._admission:
            self._tell(self._admission, admission)
            self._admission = admission
            self._apply()

    def _compute(self) -> Admission:
        members = self._state.member_ids
        observers = tuple(observer.key for observer in self._state.observers)
        self._guests = {key: name for key, (_, name) in self._former.items()} | _find_coming(self._proposals, self._me)
        for key in (*members, self._me):
            self._guests.pop(key, None)
        return Admission(members, observers, tuple(sorted(self._guests)))

    def _apply(self) -> None:
        self._peers.on_guests(self._guests)
        self._transport.admit(self._admission)

    def _tell(self, before: Admission, after: Admission) -> None:
        old, new = before.get_roles(), after.get_roles()
        for key in sorted(old.keys() | new.keys()):
            role = new.get(key, Role.NONE)
            if role is not old.get(key, Role.NONE):
                name = self._guests.get(key) or self._peers.get_name(key)
                log.info("%s (%s) is let in as: %s", name, encode_id(key)[:8], role.describe())


def _find_former(store: SqliteStore, head: int) -> dict[Id, tuple[int, str]]:
    """Returns the keys that ceased to be members lately, each with the height of that block and its name."""
    former: dict[Id, tuple[int, str]] = {}
    before: State | None = None
    for height, state in store.read_states(max(0, head - FAREWELL_HEIGHTS), head):
        for member in () if before is None else before.members:
            if state.index_of(member.key) is None:
                former[member.key] = (height, member.name)
        before = state
    return former


def _find_coming(proposals: Iterable[Proposal], me: Id) -> dict[Id, str]:
    """Returns the new keys of rotations, and of open changes that this node's operator approved, each with a name."""
    coming: dict[Id, str] = {}
    for proposal in proposals:
        kind = proposal.change.kind
        match kind:
            case AddMember() if me in proposal.approvals:
                coming[kind.key] = kind.given_name
            case ReplaceKey() if me in proposal.approvals or kind.seat == proposal.change.by:
                member = proposal.after.get_seat(kind.seat)
                coming[kind.new] = f"seat {kind.seat}" if member is None else member.name
    return coming
