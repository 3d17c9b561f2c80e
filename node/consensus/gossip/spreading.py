"""Passes on what is new from neighbour to neighbour, where members have no connections with all others (PROTOCOL §5).

What has become new within PAUSE_S goes as one message, to each neighbour that has not shown meanwhile that it has it.
It was taken in here first, so that nothing that is not authentic goes further. Each object comes up here once, and what
was passed on is forgotten: whatever got lost is for statuses to repair.
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
FULL_BYTES = 64 * 1024  # of a bundle, from which on another is begun
MAX_WAITING = 4096  # objects; more within one pause no honest federation signs


@dataclass(slots=True)
class _Waiting:
    """An object, and payloads behind it, until the next message goes out. `has_it`: who need not be told."""

    parts: list[Message]
    has_it: set[Id] = field(default_factory=set)


class Spreading:
    """One node's. `get_neighbours` gives those that hear of what is new at once, in any order."""

    def __init__(self, transport: Transport, get_neighbours: Callable[[], Iterable[Id]]) -> None:
        self._transport = transport
        self._get_neighbours = get_neighbours
        self._waiting: dict[Digest, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sent_s = float("-inf")
        self.num_passed_on = 0  # objects, and each once for whoever it goes to

    @property
    def num_waiting(self) -> int:
        """Objects that are passed on with the next bundle."""
        return len(self._waiting)

    def add(self, parts: Sequence[Message], digest: Digest | None = None, sender: Id | None = None) -> None:
        """Something new, of this node itself unless it has a sender. `digest` is that of its first part."""
        key = hashlib.sha256(parts[0].data).digest() if digest is None else digest
        if key in self._waiting or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting[key] = _Waiting(list(parts), set() if sender is None else {sender})
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._sent_s + PAUSE_S - loop.time()), self._send)

    def add_payload(self, contribution: Digest, payload: Message) -> None:
        """It came right behind its contribution."""
        if (waiting := self._waiting.get(contribution)) is not None:
            waiting.parts.append(payload)

    def on_known(self, digest: Digest, sender: Id) -> None:
        """A neighbour has given what is here already."""
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
    """Has objects sent in as few messages as they fit into; what is larger than a bundle's part may be, by itself."""
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
