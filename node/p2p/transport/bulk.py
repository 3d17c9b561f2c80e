"""Pulls blocks and blobs from one peer over lines of their own, so that votes never queue behind them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from chain.block import Digest, Id
from node.p2p.transport.base import (
    BLOB,
    BLOCKS,
    CHUNK_BYTES,
    FRAMING_BYTES,
    MAX_BLOCKS_COUNT,
    MAX_BLOCKS_REPLY_BYTES,
    BlobNotFound,
    BlobNotYet,
    BlobTooLong,
    PeerUnavailable,
    TrafficCounters,
)
from node.p2p.transport.calls import Malformed
from node.p2p.transport.lines import Line, Lines
from node.p2p.transport.rate_limits import RateLimits
from node.pb import peer_pb2 as pb


class Bulk:
    """Pulls from one peer. `get_lines` returns the lines to it as they are now, or raises PeerUnavailable. `request_s`
    bounds a request for blocks in seconds; blobs are bounded by their progress."""

    def __init__(
        self,
        peer: Id,
        get_lines: Callable[[Id], Lines],
        counters: TrafficCounters,
        limits: RateLimits,
        request_s: float,
    ) -> None:
        self.peer = peer
        self._get_lines = get_lines
        self._counters = counters
        self._limits = limits
        self._request_s = request_s
        self._blocks_slots = asyncio.Semaphore(limits.blocks_at_once)
        self._blob_slots = asyncio.Semaphore(limits.blob_streams)

    def __repr__(self) -> str:
        return f"Bulk({self.peer.hex()[:8]})"

    async def request_blocks(self, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """See Transport.request_blocks."""
        async with self._blocks_slots:
            request = pb.BlocksRequest(first=first, count=min(count, MAX_BLOCKS_COUNT))
            lines = self._get_lines(self.peer)
            try:
                reply = await lines.request_blocks(request, self._request_s)
            except PeerUnavailable:
                if (others := self._get_lines(self.peer)) is lines:
                    raise
                reply = await others.request_blocks(request, self._request_s)
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
        async with self._blob_slots:
            line, chunk = await self._begin(request)
            complete = False
            position, waited_s = offset, 0.0
            try:
                while True:
                    _validate_chunk(chunk)
                    if chunk.not_found or chunk.not_yet:
                        complete = True
                        raise (BlobNotYet if chunk.not_yet else BlobNotFound)(digest.hex())
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
                    chunk = await self._read(line, self._get_patience_s(position - offset) - waited_s)
                    waited_s += time.monotonic() - began_s
            finally:
                if not complete:
                    line.cancel()
                await line.give_back()

    async def _begin(self, request: pb.BlobRequest) -> tuple[Line, pb.BlobChunk]:
        """Requests a blob over one line, and over another where the first had ended while idle. Returns the line with
        the first chunk."""
        for _ in range(self._limits.blob_streams + 1):
            line = await self._take()
            answered = False
            try:
                chunk = await self._ask(line, request)
                answered = True
                return line, chunk
            except PeerUnavailable:
                if not (line.was_idle and line.done()):
                    raise
            finally:
                if not answered:
                    line.cancel()
                    await line.give_back()
        raise PeerUnavailable("its streams end as soon as they are used")

    async def _take(self) -> Line:
        """Takes a line. If the lines are replaced meanwhile, tries the new ones, once: a peer that keeps replacing them
        must not block the caller."""
        lines = self._get_lines(self.peer)
        try:
            return await lines.take()
        except PeerUnavailable:
            if (others := self._get_lines(self.peer)) is lines:
                raise
            return await others.take()

    async def _ask(self, line: Line, request: pb.BlobRequest) -> pb.BlobChunk:
        try:
            async with asyncio.timeout(self._limits.blob_grace_s):
                await line.ask(request)
        except TimeoutError as error:
            raise PeerUnavailable("the request was not taken in time") from error
        return await self._read(line, self._get_patience_s(0))

    async def _read(self, line: Line, patience_s: float) -> pb.BlobChunk:
        try:
            async with asyncio.timeout(max(0.0, patience_s)):
                chunk = await line.read()
        except TimeoutError as error:
            raise PeerUnavailable(f"slower than {self._limits.blob_bytes_per_s:.0f} bytes a second") from error
        if isinstance(chunk, Malformed):
            raise PeerUnavailable(f"blob: {chunk}")
        if chunk is None:
            raise PeerUnavailable("the stream ended before the blob did")
        return chunk

    def _get_patience_s(self, num_bytes: int) -> float:
        """Returns how many seconds this node may have waited in all for chunks by the time `num_bytes` have come."""
        return self._limits.blob_grace_s + num_bytes / self._limits.blob_bytes_per_s


def _validate_chunk(chunk: pb.BlobChunk) -> None:
    if len(chunk.data) > CHUNK_BYTES:
        raise PeerUnavailable(f"expected chunks of at most {CHUNK_BYTES} bytes, got {len(chunk.data)}")
    if not chunk.data and not (chunk.last or chunk.not_found or chunk.not_yet):
        raise PeerUnavailable("expected a chunk with data")
