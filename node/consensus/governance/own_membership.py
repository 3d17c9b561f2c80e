"""The standing of this node's own key: a member, about to leave, to be admitted, removed or replaced.

It follows from the chain, and is logged when it changes: a node that does not take part says why.
"""

from __future__ import annotations

import logging

from chain.block import Id
from chain.changes.members import RemoveMember
from chain.proposals import Proposals
from chain.signing import encode_id
from chain.state import RetiredKey, State
from chain.store.sqlite import SqliteStore
from node.events import Events

log = logging.getLogger(__name__)


class OwnMembership:
    """Holds the standing of one node by the state in force."""

    def __init__(self, me: Id, state: State, proposals: Proposals, store: SqliteStore, events: Events) -> None:
        self._me = me
        self._proposals = proposals
        self._events = events
        self._state = state
        self._retired = _find_retired(me, store.get_state(store.head_height))

    def __repr__(self) -> str:
        return f"<Standing of {self._me.hex()[:8]}: {self.describe() or 'a member'}>"

    @property
    def is_member(self) -> bool:
        return self._state.index_of(self._me) is not None

    @property
    def is_leaving(self) -> bool:
        """Says whether this node's own proposal to leave is open: it contributes no more, and still votes."""
        member = self._state.get_member(self._me)
        return member is not None and any(
            isinstance(proposal.change.kind, RemoveMember)
            and proposal.change.kind.seat == proposal.change.by == member.seat
            for proposal in self._proposals
        )

    def on_state(self, state: State) -> None:
        """Notes that another state is in force, and logs it if this node was admitted or removed by it."""
        was_member, self._state = self.is_member, state
        if was_member == self.is_member:
            return
        if self.is_member:
            member = state.get_member(self._me)
            log.warning("admitted: this node is %s from now on", member.name if member else encode_id(self._me))
        else:
            self._retired = _find_retired(self._me, state)
            log.warning("%s", self.describe())
        self._events.publish("standing", member=self.is_member, reason=self.describe())

    def describe(self) -> str | None:
        """Says why this node signs nothing, or contributes nothing any more; None for a member that stays."""
        if self.is_leaving:
            return "leaving: contributes nothing any more, and votes until that is final"
        if self.is_member:
            return None
        if self._retired is not None:
            return self._describe_retired(self._retired)
        if any(proposal.change.kind.get_new_key() == self._me for proposal in self._proposals):
            return "to be admitted: stands ready, and signs nothing until the members have agreed"
        if any(observer.key == self._me for observer in self._state.observers):
            return "an observer: follows the chain, and signs nothing"
        return "no member: signs nothing, and follows the chain once members have agreed to its join request"

    def _describe_retired(self, old: RetiredKey) -> str:
        """Says that this key was removed or replaced, be it by this site, by the others, or by a thief of the key."""
        member = self._state.get_seat(old.seat)
        if member is None:
            return f"removed at height {old.last}: signs nothing any more, and goes on to serve the chain"
        return (
            f"replaced at height {old.last}: {member.name} has the key {encode_id(member.key)} by now, and this one "
            "signs nothing any more. If that was not done here, make a new key, and have the others put it there with: "
            f"fednode key replace {member.name} REQUEST"
        )


def _find_retired(me: Id, state: State) -> RetiredKey | None:
    """Returns the entry of this key among the state's retired keys; None if it has none."""
    return next((old for old in state.retired if old.key == me), None)
