"""Sends new objects from neighbour to neighbour, if members are not all connected with each other (PROTOCOL §5).

Objects that have become new within PAUSE_S go as one message to each neighbour, without those that it has itself sent
meanwhile. They are accepted here first, so that only authentic ones go further. Each object comes here once, and is
forgotten when it is sent on: statuses repair what got lost.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from chain.block import Digest, Id
from node.p2p.bundle import MAX_PARTS, PART_BYTES, PART_KINDS, encode_bundle
from node.p2p.transport.base import Message, MessageKind, Transport

PAUSE_S = 0.015  # between two messages to the same neighbour
FULL_BYTES = 64 * 1024  # of a bundle; more go into another
MAX_WAITING = 4096  # objects; no honest federation signs more within one pause


@dataclass(slots=True)
class _Waiting:
    """Holds an object and its payloads until the next message is sent. `has_it` are the peers that have it already."""

    parts: list[Message]
    has_it: set[Id] = field(default_factory=set)


class Spreading:
    """Sends on new objects for one node. `get_neighbours` returns those that receive new objects at once, in any
    order."""

    def __init__(self, transport: Transport, get_neighbours: Callable[[], Iterable[Id]]) -> None:
        self._transport = transport
        self._get_neighbours = get_neighbours
        self._waiting: dict[Digest, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sent_s = float("-inf")
        self.num_passed_on = 0  # objects sent, counted once for each receiver

    @property
    def num_waiting(self) -> int:
        """Returns the number of objects that wait for the next bundle."""
        return len(self._waiting)

    def add(self, parts: Sequence[Message], digest: Digest | None = None, sender: Id | None = None) -> None:
        """Adds a new object; without a sender it is this node's own. `digest` is the digest of its first part."""
        key = hashlib.sha256(parts[0].data).digest() if digest is None else digest
        if key in self._waiting or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting[key] = _Waiting(list(parts), set() if sender is None else {sender})
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._sent_s + PAUSE_S - loop.time()), self._send)

    def add_payload(self, contribution: Digest, payload: Message) -> None:
        """Adds a payload that came right behind its contribution."""
        if (waiting := self._waiting.get(contribution)) is not None:
            waiting.parts.append(payload)

    def on_known(self, digest: Digest, sender: Id) -> None:
        """Notes that a neighbour has sent an object that is here already."""
        if (waiting := self._waiting.get(digest)) is not None:
            waiting.has_it.add(sender)

    def _send(self) -> None:
        self._timer, self._sent_s = None, asyncio.get_running_loop().time()
        waiting, self._waiting = self._waiting, {}
        connected = self._transport.connected()
        for peer in self._get_neighbours():
            if peer in connected:
                new = [one.parts for one in waiting.values() if peer not in one.has_it]
                self.num_passed_on += len(new)
                post_parts(self._transport, peer, new)

    def __repr__(self) -> str:
        return f"<Spreading: {self.num_waiting} waiting, {self.num_passed_on} passed on>"


def post_parts(transport: Transport, peer: Id, objects: Iterable[Sequence[Message]]) -> None:
    """Sends objects in as few messages as they fit into. An object that is too large for a bundle goes by itself."""
    bundle: list[Message] = []
    size = 0
    for parts in objects:
        if parts[0].kind not in PART_KINDS:
            for part in parts:
                transport.post(peer, part)
            continue
        added = sum(PART_BYTES + len(part.data) for part in parts)
        if bundle and (len(bundle) + len(parts) > MAX_PARTS or size + added > FULL_BYTES):
            transport.post(peer, Message(MessageKind.BUNDLE, encode_bundle(bundle)))
            bundle, size = [], 0
        bundle += parts
        size += added
    if bundle:
        transport.post(peer, Message(MessageKind.BUNDLE, encode_bundle(bundle)))
