"""Decides whose contribution a round awaits, by what waits in vain have cost (`credit`), and logs it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from chain.block import Id
from chain.state import State
from node.consensus.height.credit import Credits, VainWait
from node.consensus.height.machine import RoundMachine
from node.events import Events
from node.p2p.peers import Peers
from node.payloads.pulled import MissingAuthor

log = logging.getLogger(__name__)


class Awaiting:
    """Keeps this node's credit accounts of the other members, and logs which of them it no longer awaits."""

    def __init__(self, state: State, me: Id, peers: Peers, events: Events) -> None:
        self._me = me
        self._peers = peers
        self._events = events
        self.credits = Credits(())
        self.on_state(state)

    def on_state(self, state: State) -> None:
        """Notes that another state is in force. A new member begins with full credit."""
        self._others = [member for member in state.active_ids if member != self._me]
        self.credits.on_members(self._others)

    def get_overdrawn(self) -> frozenset[Id]:
        """Returns the members that are not awaited, since they have cost too much."""
        return self.credits.get_overdrawn()

    def get_patience(self, members: Collection[Id]) -> float:
        """Returns the share of the longest wait that is spent on these members."""
        return self.credits.get_patience(members)

    def on_final(self, height: int, vain: Mapping[Id, VainWait]) -> None:
        """Charges the members that were awaited in vain at a height that is final."""
        for member in sorted(self.credits.on_final(height, vain)):
            self._tell(member)

    def on_missing(self, missing: MissingAuthor) -> None:
        """Charges an author whose promised payload did not come, so that a round goes on without it."""
        author, height = missing.author, missing.height
        log.warning("round %d goes on without %s: %s", height, self._peers.get_name(author), missing.why)
        if self.credits.charge(author, height, VainWait(missing.waited, missing.why)):
            self._tell(author)
        if missing.is_fault:
            self._events.publish("rejected", height=height, author=author.hex(), reason=missing.why)

    def describe(self, machine: RoundMachine | None) -> dict[Id, str]:
        """Returns the members whose contribution is not awaited in this round, each with the reason."""
        if machine is None:
            return {}
        others = (member for member in self._others if member not in machine.awaited)
        return {
            member: self.credits.explain(member) or machine.collecting.explain_not_awaited(member) for member in others
        }

    def _tell(self, member: Id) -> None:
        why = self.credits.explain(member)
        log.warning("%s is not awaited for some rounds: %s", self._peers.get_name(member), why)
        is_up = self._peers.is_connected(member)
        self._events.publish("peer", peer=member.hex(), up=is_up, awaited=False, reason=why)

    def __repr__(self) -> str:
        return f"<Awaiting all but {len(self.get_overdrawn())} of {len(self._others)}>"
