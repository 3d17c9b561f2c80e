"""The bulk connection to one peer: blocks and blobs are pulled over it, so that votes never queue behind them.

A blob stream stays open after its blob and is used again: one request on an open stream costs half of a new call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc

from chain.block import Digest, Id
from node.p2p.transport.base import (
    BLOB,
    BLOCKS,
    CHUNK_BYTES,
    FRAMING_BYTES,
    MAX_BLOCKS_COUNT,
    MAX_BLOCKS_REPLY_BYTES,
    BlobNotFound,
    BlobTooLong,
    PeerUnavailable,
    TrafficCounters,
)
from node.p2p.transport.calls import Malformed, PeerCalls
from node.p2p.transport.channel import Caller, translate
from node.p2p.transport.rate_limits import RateLimits
from node.pb import peer_pb2 as pb

BlobCall = grpc.aio.StreamStreamCall


class Bulk:
    """Pulls from one peer. `request_s` bounds a request for blocks; blobs are bounded by their progress."""

    def __init__(
        self,
        peer: Id,
        address: str,
        caller: Caller,
        counters: TrafficCounters,
        limits: RateLimits,
        request_s: float,
    ) -> None:
        self.peer = peer
        self._address = address
        self._caller = caller
        self._counters = counters
        self._limits = limits
        self._request_s = request_s
        self._channel: grpc.aio.Channel | None = None
        self._leaf = caller.get_leaf()
        self._num_calls = 0
        self._is_retired = False
        self._is_cut = False
        self._blocks_slots = asyncio.Semaphore(limits.blocks_at_once)
        self._blob_slots = asyncio.Semaphore(limits.blob_streams)
        self._idle: list[BlobCall] = []  # type: ignore[type-arg]  # generic in the stubs alone

    def __repr__(self) -> str:
        return f"Bulk({self.peer.hex()[:8]}, address={self._address}, calls={self._num_calls}, idle={len(self._idle)})"

    async def close(self) -> None:
        for call in self._idle:
            call.cancel()
        self._idle.clear()
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None

    async def retire(self) -> None:
        """Closes once the calls under way are over; there must be no new ones."""
        self._is_retired = True
        if self._num_calls == 0:
            await self.close()

    async def cut(self) -> None:
        """Closes, and ends the calls under way: for those who made them the peer is unavailable."""
        self._is_cut = self._is_retired = True
        await self.close()

    async def request_blocks(self, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """See Transport.request_blocks."""
        async with self._blocks_slots, self._open() as channel:
            request = pb.BlocksRequest(first=first, count=min(count, MAX_BLOCKS_COUNT))
            try:
                reply = await PeerCalls(channel).blocks(
                    request, metadata=self._caller.get_metadata(), timeout=self._request_s, wait_for_ready=True
                )
            except grpc.aio.AioRpcError as error:
                raise translate(error) from error
            except asyncio.CancelledError as error:
                self._raise_if_cut(error)
                raise
        if isinstance(reply, Malformed):
            raise PeerUnavailable(f"blocks: {reply}")
        size = reply.ByteSize()
        self._counters.add_received(BLOCKS, size + FRAMING_BYTES)
        blocks = [(entry.block, entry.certificate) for entry in reply.blocks]
        if len(blocks) > count or sum(map(len, sum(blocks, ()))) > MAX_BLOCKS_REPLY_BYTES:
            raise PeerUnavailable(f"expected at most {count} blocks in 1 MiB, got {len(blocks)} in {size} bytes")
        return blocks

    async def fetch_blob(self, digest: Digest, offset: int, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """See Transport.fetch_blob."""
        request = pb.BlobRequest(digest=digest, offset=offset)
        async with self._blob_slots, self._open() as channel:
            call, chunk = await self._begin(channel, request)
            complete = False
            position, waited_s = offset, 0.0
            try:
                while True:
                    _validate_chunk(chunk)
                    if chunk.not_found:
                        complete = True
                        raise BlobNotFound(digest.hex())
                    position += len(chunk.data)
                    if position > max_bytes:
                        raise BlobTooLong(f"expected {max_bytes} bytes, got {position} and more")
                    complete = chunk.last
                    self._counters.add_received(BLOB, len(chunk.data) + FRAMING_BYTES)
                    if chunk.data:
                        yield chunk.data
                    if complete:
                        return
                    began_s = time.monotonic()
                    chunk = await self._read(call, self._get_patience_s(position - offset) - waited_s)
                    waited_s += time.monotonic() - began_s
            finally:
                if complete:
                    self._idle.append(call)
                else:
                    call.cancel()

    async def _begin(self, channel: grpc.aio.Channel, request: pb.BlobRequest) -> tuple[BlobCall, pb.BlobChunk]:  # type: ignore[type-arg]  # as above
        """Asks over an idle stream if one still lives, else over a new one. Returns it with the first chunk."""
        while self._idle:
            call = self._idle.pop()
            try:
                return call, await self._ask(call, request)
            except PeerUnavailable:
                if not call.done():
                    raise
        call = PeerCalls(channel).blob(None, metadata=self._caller.get_metadata(), wait_for_ready=True)
        return call, await self._ask(call, request)

    async def _ask(self, call: BlobCall, request: pb.BlobRequest) -> pb.BlobChunk:  # type: ignore[type-arg]  # as above
        answered = False
        try:
            async with asyncio.timeout(self._limits.blob_grace_s):
                await call.write(request)
            chunk = await self._read(call, self._get_patience_s(0))
            answered = True
        except asyncio.CancelledError as error:
            self._raise_if_cut(error)
            raise
        except TimeoutError as error:
            raise PeerUnavailable("the request was not taken in time") from error
        except asyncio.InvalidStateError as error:  # an idle stream that has ended meanwhile
            raise PeerUnavailable("the stream had ended") from error
        except grpc.aio.AioRpcError as error:
            raise translate(error) from error
        finally:
            if not answered:
                call.cancel()
        return chunk

    async def _read(self, call: BlobCall, patience_s: float) -> pb.BlobChunk:  # type: ignore[type-arg]  # as above
        try:
            async with asyncio.timeout(max(0.0, patience_s)):
                chunk = await call.read()
        except asyncio.CancelledError as error:
            self._raise_if_cut(error)
            raise
        except TimeoutError as error:
            raise PeerUnavailable(f"slower than {self._limits.blob_bytes_per_s:.0f} bytes a second") from error
        except grpc.aio.AioRpcError as error:
            raise translate(error) from error
        if isinstance(chunk, Malformed):
            raise PeerUnavailable(f"blob: {chunk}")
        if not isinstance(chunk, pb.BlobChunk):
            raise PeerUnavailable("the stream ended before the blob did")
        return chunk

    def _raise_if_cut(self, error: asyncio.CancelledError) -> None:
        """gRPC says of a call whose channel was closed that it was cancelled, as if its caller had been. Raises
        PeerUnavailable if that is all."""
        task = asyncio.current_task()
        if self._is_cut and (task is None or not task.cancelling()):
            raise PeerUnavailable("let in no more") from error

    def _get_patience_s(self, num_bytes: int) -> float:
        """How long we may have waited for the next chunk by the time `num_bytes` have come."""
        return self._limits.blob_grace_s + num_bytes / self._limits.blob_bytes_per_s

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[grpc.aio.Channel, None]:
        """The channel; a new one, between calls, once there is a new leaf to show."""
        if self._is_cut:  # while this waited for its turn
            raise PeerUnavailable("let in no more")
        leaf = self._caller.get_leaf()
        if leaf is not self._leaf and self._num_calls == 0:
            await self.close()
        if self._channel is None:
            self._leaf = leaf
            self._channel = self._caller.open_channel(self.peer, self._address)
        self._num_calls += 1
        try:
            yield self._channel
        finally:
            self._num_calls -= 1
            if self._is_retired and self._num_calls == 0:
                await self.close()


def _validate_chunk(chunk: pb.BlobChunk) -> None:
    if len(chunk.data) > CHUNK_BYTES:
        raise PeerUnavailable(f"expected chunks of at most {CHUNK_BYTES} bytes, got {len(chunk.data)}")
    if not chunk.data and not chunk.last and not chunk.not_found:
        raise PeerUnavailable("expected a chunk with data")
