"""The lines of a peer that has dialled this node: it holds streams open on which this node requests things. `serving`
is the peer's end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from chain.block import Id
from node.p2p.transport.base import PeerUnavailable
from node.p2p.transport.calls import Malformed
from node.p2p.transport.lines import Chunk, is_cancelled
from node.pb import peer_pb2 as pb

LINE_S = 5.0  # how long to wait for a peer to hold one more stream open
MAX_REFUSAL_CHARS = 200  # characters of a peer's reason that are passed on


class ServedLine:
    """Requests blocks and blobs over a Serve stream that the peer holds open."""

    def __init__(self, lines: ServedLines, context: Any) -> None:
        self._lines = lines
        self._context = context
        self.was_idle = True
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, request: pb.BlobRequest) -> None:
        await self.write(pb.ServeRequest(blob=request))

    async def read(self) -> Chunk:
        reply = await self.receive()
        if isinstance(reply, pb.ServeReply):
            return reply.chunk if reply.WhichOneof("body") == "chunk" else Malformed()
        if reply is None:
            self.cancel()
        return reply

    async def write(self, request: pb.ServeRequest) -> None:
        with self._translating():
            await self._context.write(request)

    async def receive(self) -> pb.ServeReply | Malformed | None:
        """Returns the peer's next reply; None: the stream has ended."""
        with self._translating():
            reply = await self._context.read()
        if isinstance(reply, pb.ServeReply) and reply.WhichOneof("body") == "refused":
            raise PeerUnavailable(f"refused: {reply.refused[:MAX_REFUSAL_CHARS]!r}")
        return reply if isinstance(reply, pb.ServeReply | Malformed) else None

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Raises PeerUnavailable where the peer has gone: gRPC reports that as a cancelled call, or as one that is
        over."""
        if self.done():
            raise PeerUnavailable("the stream has ended")
        try:
            yield
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self.cancel()
            raise PeerUnavailable("the stream has ended") from error
        except grpc.aio.BaseError as error:
            self.cancel()
            raise PeerUnavailable("the stream has ended") from error

    def cancel(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def done(self) -> bool:
        return self.ended.done()

    async def give_back(self) -> None:
        self._lines.put(self)


class ServedLines:
    """Holds the streams that one peer keeps open: as many as it opens, up to `max_lines`; further ones are refused.
    Only a peer that pushes may open them: `num_pushing` counts its Push streams."""

    def __init__(self, peer: Id, max_lines: int) -> None:
        self._peer = peer
        self._max_lines = max_lines
        self.num_pushing = 0
        self._lines: set[ServedLine] = set()
        self._idle: list[ServedLine] = []
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"ServedLines({self._peer.hex()[:8]}, open={len(self._lines)}, idle={len(self._idle)})"

    @property
    def is_full(self) -> bool:
        return len(self._lines) >= self._max_lines

    @contextmanager
    def holding(self, line: ServedLine) -> Iterator[None]:
        """Counts an open stream until it ends. `put` makes it available for requests."""
        self._lines.add(line)
        try:
            yield
        finally:
            line.cancel()
            self._lines.discard(line)
            if line in self._idle:
                self._idle.remove(line)

    def end(self) -> None:
        """Ends all streams, and every wait for one: the peer pushes no more, and will open none."""
        for line in self._lines:
            line.cancel()
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(PeerUnavailable("it holds no stream open any more"))

    async def take(self) -> ServedLine:
        try:
            async with asyncio.timeout(LINE_S):
                while True:
                    while self._idle:
                        line = self._idle.pop()
                        if not line.done():
                            return line
                    await self._wait()
        except TimeoutError as error:
            raise PeerUnavailable("it holds no stream open to be asked on") from error

    async def _wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif self._idle:  # woken and cancelled at once: the next one takes the line
                self._wake()

    def put(self, line: ServedLine) -> None:
        """Makes an idle line available."""
        if not line.done():
            self._idle.append(line)
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def request_blocks(self, request: pb.BlocksRequest, timeout_s: float) -> pb.BlocksReply | Malformed:
        line = await self.take()
        answered = False
        try:
            async with asyncio.timeout(timeout_s):
                await line.write(pb.ServeRequest(blocks=request))
                reply = await line.receive()
            answered = isinstance(reply, pb.ServeReply) and reply.WhichOneof("body") == "blocks"
        except TimeoutError as error:
            raise PeerUnavailable("deadline_exceeded") from error
        finally:
            if not answered:
                line.cancel()
            self.put(line)
        if reply is None:
            raise PeerUnavailable("the stream has ended")
        return reply.blocks if answered and isinstance(reply, pb.ServeReply) else Malformed()
