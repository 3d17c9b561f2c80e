"""The conversation with one peer over Push streams: one that this node has dialled, one that the peer has dialled, or
for a moment both. Either carries both directions.

Of two streams, the one that the lower key has dialled stays, and posted messages go over it. The node with the higher
key gives up its own stream: it sends no more on it, reads what still comes, and nothing is lost. That node sees first
that there are two streams, so the lower key keeps the other's stream until it sees its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from chain.block import Id
from node.boundary import Boundary
from node.p2p.transport.base import Direction, Handler
from node.p2p.transport.rate_limits import Intake
from node.p2p.transport.sender import Sender
from node.pb import peer_pb2 as pb

GIVE_UP_S = 10.0  # how long a stream that is given up is still read


class Stream:
    """Holds the state of an open Push stream. `refuses_input`: this node has dialled it and accepts nothing that the
    peer sends on it."""

    def __init__(self, *, refuses_input: bool = False) -> None:
        self.refuses_input = refuses_input
        self.chosen = asyncio.Event()  # posted messages go over this stream
        self.superseded = asyncio.Event()  # the other stream stays, so this one is to be given up
        self.ended = asyncio.Event()  # the stream is to be broken off
        self.writing = asyncio.Lock()


class Session:
    """Holds the streams with one peer. It is up while one is open."""

    def __init__(self, me: Id, intake: Intake, sender: Sender, boundary: Boundary) -> None:
        self.peer = intake.peer
        self.intake = intake
        self.sender = sender
        self.dials_first = me < self.peer
        self.is_dialling = False  # a stream was requested, and may be open at the other end already
        self._boundary = boundary
        self._streams: dict[Direction, Stream] = {}
        self._heard: Stream | None = None
        self._alone = asyncio.Event()
        self._alone.set()

    def __repr__(self) -> str:
        return f"Session({self.peer.hex()[:8]}, streams={sorted(self._streams)})"

    @property
    def direction(self) -> Direction | None:
        """Returns the direction of the stream that carries posted messages; None while the peer is down."""
        return next((direction for direction, stream in self._streams.items() if stream.chosen.is_set()), None)

    @property
    def has_accepted(self) -> bool:
        """Says whether a stream is open that the peer has dialled: then this node need not dial."""
        return Direction.ACCEPTED in self._streams

    async def until_alone(self) -> None:
        """Returns once no stream is open that the peer has dialled."""
        await self._alone.wait()

    @contextmanager
    def joined(self, direction: Direction, stream: Stream, handler: Handler) -> Iterator[None]:
        """Adds an open `stream` for as long as the context lasts. Breaks off an earlier one of the same direction."""
        before = self._streams.get(direction)
        was_up = bool(self._streams)
        self._streams[direction] = stream
        self._choose()
        if before is not None:
            before.ended.set()
        if not was_up:
            self.sender.open()
        try:
            if not was_up or before is not None:  # the peer may have restarted
                with self._boundary.around("connection", self.peer):
                    handler.on_peer_up(self.peer)
            yield
        finally:
            stream.chosen.clear()
            if self._streams.get(direction) is stream:
                del self._streams[direction]
                self._choose()
                if not self._streams:
                    self.sender.close()
                    with self._boundary.around("connection", self.peer):
                        handler.on_peer_down(self.peer)

    async def until_replaced(self, stream: Stream) -> None:
        """Returns once `stream`, on which the peer sends no more, can end without loss: a stream that this node has
        dialled has replaced it, or none is being dialled."""
        if self.is_dialling:
            with suppress(TimeoutError):
                async with asyncio.timeout(GIVE_UP_S):
                    await stream.superseded.wait()
        if stream.superseded.is_set() and not stream.chosen.is_set():
            async with stream.writing:  # the message being sent on it is sent
                pass

    @contextmanager
    def hearing(self, stream: Stream) -> Iterator[None]:
        """Has `stream` read although the peer accepts nothing on it: the session is not up because of it."""
        if self._heard is not None:
            self._heard.ended.set()
        self._heard = stream
        try:
            yield
        finally:
            if self._heard is stream:
                self._heard = None

    def end(self) -> None:
        """Breaks off all open streams."""
        for stream in (*self._streams.values(), *([self._heard] if self._heard is not None else [])):
            stream.ended.set()

    async def write(self, stream: Stream, write: Callable[[pb.Batch], Awaitable[None]]) -> None:
        """Sends posted messages over `stream` while it is the chosen one, until cancelled. Raises TimeoutError when the
        peer reads nothing any more."""
        while True:
            await stream.chosen.wait()
            async with stream.writing:
                await self.sender.run(write, stream.chosen.is_set)

    def _choose(self) -> None:
        dialled, accepted = (self._streams.get(direction) for direction in Direction)
        ours_stays = dialled is not None and (accepted is None or (self.dials_first and not dialled.refuses_input))
        chosen = dialled if ours_stays else accepted
        for stream in self._streams.values():
            if stream is chosen:
                stream.chosen.set()
            else:
                stream.chosen.clear()
                stream.superseded.set()
        if accepted is None:
            self._alone.set()
        else:
            self._alone.clear()
        self.sender.wake()
