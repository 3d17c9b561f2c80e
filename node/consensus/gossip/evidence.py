"""Evidence against members that signed two objects for one slot: which members are accused, and since which height.

An accused member is left out of rounds for `evidence_heights` heights. One proof of each slot is kept and sent on.
"""

from __future__ import annotations

import logging
from functools import partial

from chain.block import Evidence, Id
from chain.store.sqlite import SqliteStore
from node.boundary import Boundary
from node.clock import Clock
from node.consensus.gossip.gossip import Gossip
from node.consensus.height.actions import Accused
from node.consensus.height.current import CurrentRound
from node.consensus.record.record import Records
from node.events import Events
from node.offload import Offload
from node.p2p.peers import Peers
from node.p2p.refusals import Reason

log = logging.getLogger(__name__)


class EvidencePool:
    """Holds the evidence of one node's store. `disk` is the store's thread."""

    def __init__(
        self,
        current: CurrentRound,
        store: SqliteStore,
        disk: Offload,
        *,
        peers: Peers,
        gossip: Gossip,
        records: Records,
        events: Events,
        clock: Clock,
        boundary: Boundary,
    ) -> None:
        self._current = current
        self._store = store
        self._disk = disk
        self._peers = peers
        self._gossip = gossip
        self._records = records
        self._events = events
        self._clock = clock
        self._boundary = boundary
        self._accused: dict[Id, int] = {}  # author -> height of the newest evidence
        for stored in store.get_evidence(first=max(0, current.tip.height - current.tip.state.rules.evidence_heights)):
            self._note(stored.author, stored.height)
            gossip.keep_evidence(stored.evidence)

    def is_accused(self, author: Id, height: int) -> bool:
        """Says whether there is evidence against `author` of this height or a later one."""
        return height <= self._accused.get(author, -1)

    def get_accused(self, height: int) -> set[Id]:
        """Returns the members that are left out of the round at `height`."""
        oldest = height - self._current.tip.state.rules.evidence_heights
        return {author for author, at in self._accused.items() if at >= oldest}

    def on_evidence(self, evidence: Evidence, author: Id, height: int) -> None:
        """Notes a peer's proof against `author`, which is left out from now on, in this round and others."""
        if not self.is_accused(author, height):
            self._accused[author] = height
            self._current.call(partial(self.accuse, evidence, author, height))
            self._current.post(self._current.tip.height + 1, Accused(author))

    async def accuse(self, evidence: Evidence, author: Id, height: int) -> None:
        """Stores the proof and sends it on, unless there is one of this slot already."""
        with self._boundary.around("accusation", author):
            await self._keep(evidence, author, height)

    async def _keep(self, evidence: Evidence, author: Id, height: int) -> None:
        self._note(author, height)
        if not await self._disk.run(self._store.put_evidence, evidence, author, height, self._clock.now_ms()):
            return  # one proof a slot is enough, whatever else its author signs
        name = self._peers.get_name(author)
        log.warning("%s signed two different objects for one slot at height %d", name, height)
        self._peers.refuse(author, Reason.SIGNED_TWICE)
        if (record := self._records.current) is not None and record.height == height:
            record.on_signed_twice(author, evidence.kind)
        self._gossip.push_evidence(evidence)
        self._events.publish("evidence", height=height, author=author.hex(), slot=evidence.kind.name.lower())

    def _note(self, author: Id, height: int) -> None:
        self._accused[author] = max(height, self._accused.get(author, 0))

    def __repr__(self) -> str:
        return f"<EvidencePool: {len(self._accused)} accused>"
