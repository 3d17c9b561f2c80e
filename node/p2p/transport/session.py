"""The conversation with one peer over Push streams: one that this node has dialled, one that the peer has dialled, or
for a moment both. Either carries both directions.

Of two, the one that the lower key has dialled stays. What is posted goes over the one that stays, and the other end
gives up its own: it says no more on it, hears it out, and nothing is lost. It is the first to see that there are two,
so the lower key keeps the other's stream until it sees its own.
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

GIVE_UP_S = 10.0  # how long a stream that is given up is heard out


class Stream:
    """A Push stream that is open. `is_deaf`: we have dialled it and take nothing of what the peer says."""

    def __init__(self, *, is_deaf: bool = False) -> None:
        self.is_deaf = is_deaf
        self.chosen = asyncio.Event()  # what is posted goes over this one
        self.superseded = asyncio.Event()  # the other one stays, so this one is to be given up
        self.ended = asyncio.Event()  # to be broken off
        self.writing = asyncio.Lock()


class Session:
    """One node's with one peer. It is up while a stream is open."""

    def __init__(self, me: Id, intake: Intake, sender: Sender, boundary: Boundary) -> None:
        self.peer = intake.peer
        self.intake = intake
        self.sender = sender
        self.dials_first = me < self.peer
        self.is_dialling = False  # a stream was asked for, which may be open at the other end already
        self._boundary = boundary
        self._streams: dict[Direction, Stream] = {}
        self._heard: Stream | None = None
        self._alone = asyncio.Event()
        self._alone.set()

    def __repr__(self) -> str:
        return f"Session({self.peer.hex()[:8]}, streams={sorted(self._streams)})"

    @property
    def direction(self) -> Direction | None:
        """Of the stream that carries what is posted; None while the peer is down."""
        return next((direction for direction, stream in self._streams.items() if stream.chosen.is_set()), None)

    @property
    def has_accepted(self) -> bool:
        """Whether a stream is open that the peer has dialled: then there is no need of another."""
        return Direction.ACCEPTED in self._streams

    async def until_alone(self) -> None:
        """Returns once no stream is open that the peer has dialled."""
        await self._alone.wait()

    @contextmanager
    def joined(self, direction: Direction, stream: Stream, handler: Handler) -> Iterator[None]:
        """`stream` is open. Another one of its direction is broken off for it."""
        before = self._streams.get(direction)
        was_up = bool(self._streams)
        self._streams[direction] = stream
        self._choose()
        if before is not None:
            before.ended.set()
        if not was_up:
            self.sender.open()
        try:
            if not was_up or before is not None:  # it may have started anew
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
        """Returns once `stream`, on which the peer says no more, can end: nothing is lost by it, as ours has taken its
        place, or none of ours is coming."""
        if self.is_dialling:
            with suppress(TimeoutError):
                async with asyncio.timeout(GIVE_UP_S):
                    await stream.superseded.wait()
        if stream.superseded.is_set() and not stream.chosen.is_set():
            async with stream.writing:  # what is being said on it is said
                pass

    @contextmanager
    def hearing(self, stream: Stream) -> Iterator[None]:
        """`stream` is one on which the peer takes nothing: it is heard, and not up by that."""
        if self._heard is not None:
            self._heard.ended.set()
        self._heard = stream
        try:
            yield
        finally:
            if self._heard is stream:
                self._heard = None

    def end(self) -> None:
        """Breaks off what is open."""
        for stream in (*self._streams.values(), *([self._heard] if self._heard is not None else [])):
            stream.ended.set()

    async def write(self, stream: Stream, write: Callable[[pb.Batch], Awaitable[None]]) -> None:
        """Sends what is posted over `stream` while it is the chosen one, until cancelled. Raises TimeoutError when the
        peer takes nothing any more."""
        while True:
            await stream.chosen.wait()
            async with stream.writing:
                await self.sender.run(write, stream.chosen.is_set)

    def _choose(self) -> None:
        dialled, accepted = (self._streams.get(direction) for direction in Direction)
        ours_stays = dialled is not None and (accepted is None or (self.dials_first and not dialled.is_deaf))
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
