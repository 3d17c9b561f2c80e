"""The last sight of each member: stores once a minute when each was last alive, so that it is known when this node is
stopped.

`fednode genesis fork` needs these times, since an operator claims with it that a quorum is lost for ever.
"""

from __future__ import annotations

import asyncio

from chain.store.interface import SEEN
from chain.store.sqlite import SqliteStore
from node.clock import Clock
from node.offload import Offload
from node.p2p.peers import Peers

NOTE_S = 60.0


class LastSeen:
    """Keeps the times for one node. `run` goes on until cancelled."""

    def __init__(self, peers: Peers, store: SqliteStore, disk: Offload, clock: Clock) -> None:
        self._peers = peers
        self._store = store
        self._disk = disk
        self._clock = clock
        self._seen: dict[str, int] = (store.get_meta(SEEN) or {}).get("members", {})  # Unix ms, by key

    async def run(self) -> None:
        while True:
            await asyncio.sleep(NOTE_S)
            await self.note()

    async def note(self) -> None:
        """Stores the times, durable on return. Those who are no longer members are forgotten."""
        now_s, now_ms = self._clock.monotonic(), self._clock.now_ms()
        seen = {}
        for peer in self._peers:
            key = peer.id.hex()
            if peer.is_member and self._peers.get_relays(peer.id):  # connected with another peer right now
                seen[key] = now_ms
            elif peer.is_member and (newest_s := max(peer.seen_s, peer.heard_s)) > float("-inf"):
                seen[key] = now_ms - int((now_s - newest_s) * 1000)
            elif peer.is_member and key in self._seen:
                seen[key] = self._seen[key]
        self._seen = seen
        await self._disk.run(self._store.put_meta, SEEN, {"at": now_ms, "members": seen})

    def __repr__(self) -> str:
        return f"<LastSeen of {len(self._seen)}>"
