"""The lines over a connection that this node has dialled: each is a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from chain.block import Id
from node.p2p.tls import Leaf
from node.p2p.transport.base import PeerUnavailable
from node.p2p.transport.calls import Malformed, PeerCalls
from node.p2p.transport.channel import Caller, translate
from node.p2p.transport.lines import Chunk, Line, is_cancelled
from node.pb import peer_pb2 as pb


class Connection:
    """Holds a channel and its idle lines, and counts the calls over it."""

    def __init__(self, channel: grpc.aio.Channel, leaf: Leaf | None) -> None:
        self.channel = channel
        self.leaf = leaf
        self.idle: list[DialledLine] = []
        self.is_cut = False
        self._is_retired = False
        self._num_users = 0

    def enter(self) -> None:
        self._num_users += 1

    async def leave(self) -> None:
        self._num_users -= 1
        if self._is_retired and self._num_users == 0:
            await self._close()

    async def retire(self) -> None:
        """Closes once the calls under way are over."""
        self._is_retired = True
        if self._num_users == 0:
            await self._close()

    async def cut(self) -> None:
        """Closes at once and ends the calls under way: their callers get PeerUnavailable."""
        self.is_cut = self._is_retired = True
        await self._close()

    async def _close(self) -> None:
        for line in self.idle:
            line.cancel()
        self.idle.clear()
        await self.channel.close(None)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Raises PeerUnavailable for gRPC's errors. gRPC reports a call whose channel was closed as if its caller had
        been cancelled."""
        try:
            yield
        except asyncio.CancelledError as error:
            if not self.is_cut or is_cancelled():
                raise
            raise PeerUnavailable("let in no more") from error
        except asyncio.InvalidStateError as error:
            raise PeerUnavailable("the stream has ended") from error
        except grpc.aio.AioRpcError as error:
            raise translate(error) from error


class DialledLine:
    """Requests blobs over one Blob call."""

    def __init__(self, call: Any, connection: Connection) -> None:
        self.connection = connection
        self.was_idle = False
        self._call = call

    async def ask(self, request: pb.BlobRequest) -> None:
        with self.connection.translating():
            await self._call.write(request)

    async def read(self) -> Chunk:
        with self.connection.translating():
            chunk = await self._call.read()
        return chunk if isinstance(chunk, pb.BlobChunk | Malformed) else None

    def cancel(self) -> None:
        self._call.cancel()

    def done(self) -> bool:
        return bool(self._call.done())

    async def give_back(self) -> None:
        if not self.done():
            self.was_idle = True
            self.connection.idle.append(self)
        await self.connection.leave()


class DialledLines:
    """Makes calls on the bulk connection that is dialled at one address. The first call opens the connection, and
    another replaces it once there is a new leaf to show."""

    def __init__(self, peer: Id, address: str, caller: Caller) -> None:
        self._peer = peer
        self._address = address
        self._caller = caller
        self._connection: Connection | None = None
        self._is_cut = False
        self.metadata = caller.get_metadata()

    def __repr__(self) -> str:
        idle = 0 if self._connection is None else len(self._connection.idle)
        return f"DialledLines({self._peer.hex()[:8]}, address={self._address}, idle={idle})"

    async def take(self) -> Line:
        connection = await self._connect()
        while connection.idle:
            line = connection.idle.pop()
            if not line.done():
                connection.enter()
                return line
        connection.enter()
        call = PeerCalls(connection.channel).blob(None, metadata=self.metadata, wait_for_ready=True)
        return DialledLine(call, connection)

    async def request_blocks(self, request: pb.BlocksRequest, timeout_s: float) -> pb.BlocksReply | Malformed:
        async with self.open() as connection:
            with connection.translating():
                reply: pb.BlocksReply | Malformed = await PeerCalls(connection.channel).blocks(
                    request, metadata=self.metadata, timeout=timeout_s, wait_for_ready=True
                )
        return reply

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Connection, None]:
        """Lends the connection, for calls of another kind."""
        connection = await self._connect()
        connection.enter()
        try:
            yield connection
        finally:
            await connection.leave()

    async def _connect(self) -> Connection:
        if self._is_cut:  # while a caller waited for its turn
            raise PeerUnavailable("let in no more")
        leaf, old = self._caller.get_leaf(), self._connection
        if old is not None and old.leaf is leaf:
            return old
        connection = self._connection = Connection(self._caller.open_channel(self._peer, self._address), leaf)
        if old is not None:
            await old.retire()
        return connection

    async def retire(self) -> None:
        """Closes once the calls under way are over; there must be no new ones."""
        if self._connection is not None:
            await self._connection.retire()

    async def cut(self) -> None:
        """Closes for good and ends the calls under way: their callers get PeerUnavailable."""
        self._is_cut = True
        await self.close()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.cut()
