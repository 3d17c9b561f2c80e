"""The order in which peers are asked for a blob: its author, those that are connected with the author, then others.

Whoever is asked for a blob of somebody else and lets this node wait in vain is asked for such last from then on, and
waited for less, until it has served some: anybody can say that it is connected with an author.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from chain.block import Id
from node.p2p.transport.base import PeerUnavailable, Transport

GetRelays = Callable[[Id], Iterable[Id]]

IN_VAIN_S = 1.0  # whoever is not there at once costs nobody any time, nor who is given too little for an answer
AMENDS = 8  # blobs that one serves who has let this node wait in vain, before it is asked as others are
LESS = 0.25  # of the usual patience, what it is waited for until then


class Sources:
    """One node's. `get_relays` gives the peers that say that they are connected with an author."""

    def __init__(self, transport: Transport, get_relays: GetRelays) -> None:
        self._transport = transport
        self._get_relays = get_relays
        self._owed: dict[Id, int] = {}  # blobs, by whoever has let this node wait in vain

    def order(self, authors: Collection[Id]) -> list[Id]:
        """Everybody who is connected. Where an author is not, those come early that have its blob soonest."""
        connected = self._transport.connected()
        near = [author for author in authors if author in connected]
        for author in authors:
            if author not in connected:
                near += [relay for relay in self._get_relays(author) if relay in connected and relay not in near]
        return sorted([*near, *sorted(connected.difference(near))], key=lambda peer: self.is_doubtful(peer, authors))

    def is_doubtful(self, peer: Id, authors: Collection[Id]) -> bool:
        """Whether it has let this node wait in vain; an author pays for that itself, with its credit."""
        return peer in self._owed and peer not in authors

    @contextmanager
    def asking(self, peer: Id, authors: Collection[Id], patience_s: float) -> Iterator[float]:
        """Around one pull. Gives how long to wait for the peer, `patience_s` at most."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            yield patience_s * (LESS if self.is_doubtful(peer, authors) else 1.0)
        except (PeerUnavailable, TimeoutError, asyncio.CancelledError):  # the last when the height was over first
            if loop.time() - began_s >= IN_VAIN_S:
                self._on_wait_in_vain(peer, authors)
            raise
        if self.is_doubtful(peer, authors):
            self._owed[peer] -= 1
            if not self._owed[peer]:
                del self._owed[peer]

    def _on_wait_in_vain(self, peer: Id, authors: Collection[Id]) -> None:
        if peer not in authors:
            self._owed[peer] = AMENDS

    def __repr__(self) -> str:
        return f"Sources(connected={len(self._transport.connected())}, doubtful={len(self._owed)})"
