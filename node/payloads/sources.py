"""The order in which peers are asked for a blob: its author, those that are connected with the author, then others.

Any peer can claim to be connected with an author. So a peer that is asked for another author's blob and keeps this node
waiting for nothing becomes doubtful: it is asked last for such blobs, and for a shorter time, until it has served some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from chain.block import Id
from node.p2p.transport.base import PeerUnavailable, Transport

GetRelays = Callable[[Id], Iterable[Id]]

IN_VAIN_S = 1.0  # shorter waits do not count: the peer was unreachable at once, or had too little time to answer
AMENDS = 8  # blobs that a doubtful peer has to serve before it is asked as others are
LESS = 0.25  # the share of the usual patience with a doubtful peer


class Sources:
    """The connected peers of one node as sources of blobs. `get_relays` returns the peers that say that they are
    connected with an author."""

    def __init__(self, transport: Transport, get_relays: GetRelays) -> None:
        self._transport = transport
        self._get_relays = get_relays
        self._owed: dict[Id, int] = {}  # by doubtful peer, the blobs that it has to serve

    def order(self, authors: Collection[Id]) -> list[Id]:
        """Returns all connected peers in the order in which to ask them. Relays come early if their author is not
        connected, as they have its blob soonest."""
        connected = self._transport.connected()
        near = [author for author in authors if author in connected]
        for author in authors:
            if author not in connected:
                near += [relay for relay in self._get_relays(author) if relay in connected and relay not in near]
        return sorted([*near, *sorted(connected.difference(near))], key=lambda peer: self.is_doubtful(peer, authors))

    def is_doubtful(self, peer: Id, authors: Collection[Id]) -> bool:
        """Says whether this peer kept the node waiting for nothing. An author never counts as doubtful: it pays for a
        wait by its credit."""
        return peer in self._owed and peer not in authors

    @contextmanager
    def asking(self, peer: Id, authors: Collection[Id], patience_s: float) -> Iterator[float]:
        """Surrounds one pull from a peer. Yields how long to wait for the peer in seconds, `patience_s` at most."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            yield patience_s * (LESS if self.is_doubtful(peer, authors) else 1.0)
        except (PeerUnavailable, TimeoutError, asyncio.CancelledError):  # cancelled: the height ended first
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
