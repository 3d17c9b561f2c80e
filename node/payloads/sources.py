"""The order in which peers are asked for a blob: its author, those that are connected with the author, then others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from chain.block import Id
from node.p2p.transport.base import Transport

GetRelays = Callable[[Id], Iterable[Id]]


class Sources:
    """One node's. `get_relays` gives the peers that say that they are connected with an author."""

    def __init__(self, transport: Transport, get_relays: GetRelays) -> None:
        self._transport = transport
        self._get_relays = get_relays

    def order(self, authors: Collection[Id]) -> list[Id]:
        """Everybody who is connected. Where an author is not, those come early that have its blob soonest."""
        connected = self._transport.connected()
        near = [author for author in authors if author in connected]
        for author in authors:
            if author not in connected:
                near += [relay for relay in self._get_relays(author) if relay in connected and relay not in near]
        return near + sorted(connected.difference(near))

    def __repr__(self) -> str:
        return f"Sources(connected={len(self._transport.connected())})"
