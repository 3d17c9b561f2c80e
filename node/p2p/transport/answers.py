"""The answers to a peer's requests for blocks and blobs, within its limits: the same over a call that it makes and over
a stream that this node holds open to it (SECURITY §5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

import grpc

from node.p2p.refusals import Reason
from node.p2p.transport.base import (
    BLOB,
    BLOCKS,
    FRAMING_BYTES,
    MAX_BLOB_BYTES,
    MAX_BLOCKS_COUNT,
    BlobNotFound,
    BlobNotYet,
    Handler,
    PeerFault,
    limit_blocks_reply,
    read_chunks,
)
from node.p2p.transport.calls import Malformed
from node.p2p.transport.rate_limits import Intake
from node.pb import common_pb2
from node.pb import peer_pb2 as pb


class NotAnswered(Exception):
    """A request is refused without blame. The peer receives the reason."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Answers:
    """Answers requests out of what `handler` has. Raises NotAnswered, and PeerFault for a request that no correct node
    makes."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def answer_blocks(self, intake: Intake, request: pb.BlocksRequest | Malformed) -> pb.BlocksReply:
        if isinstance(request, Malformed):
            raise PeerFault(f"blocks: {request}")
        if not 1 <= request.count <= MAX_BLOCKS_COUNT:
            raise PeerFault(f"blocks: expected a count of 1 to {MAX_BLOCKS_COUNT}, got {request.count}")
        if intake.num_blocks_requests >= intake.limits.blocks_at_once:
            intake.counters.refusals[Reason.CALLS] += 1
            raise NotAnswered(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests at once")
        intake.num_blocks_requests += 1
        try:
            await asyncio.sleep(intake.take_blocks_request())
            blocks = await self._handler.on_blocks_request(intake.peer, request.first, request.count)
        finally:
            intake.num_blocks_requests -= 1
        reply = pb.BlocksReply(
            blocks=[
                common_pb2.FinalisedBlock(block=block, certificate=certificate)
                for block, certificate in limit_blocks_reply(blocks, request.count)
            ]
        )
        intake.counters.add_sent(BLOCKS, reply.ByteSize() + FRAMING_BYTES)
        return reply

    @contextmanager
    def blob_slot(self, intake: Intake) -> Iterator[None]:
        """Takes one of the peer's slots for reading blobs. Raises NotAnswered where it has none."""
        if not intake.role.may_read_blobs:
            intake.counters.refusals[Reason.OTHER_HEIGHT] += 1
            raise NotAnswered(grpc.StatusCode.PERMISSION_DENIED, "no blobs for a guest")
        if intake.num_blob_streams >= intake.limits.blob_streams:
            intake.counters.refusals[Reason.CALLS] += 1
            raise NotAnswered(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams at once")
        intake.num_blob_streams += 1
        try:
            yield
        finally:
            intake.num_blob_streams -= 1

    async def answer_blob(
        self, intake: Intake, request: pb.BlobRequest, write: Callable[[pb.BlobChunk], Awaitable[None]]
    ) -> None:
        """Writes the blob's chunks, one behind the handler so that the last is known. Needs a `blob_slot`."""
        if intake.is_refused():
            raise NotAnswered(grpc.StatusCode.PERMISSION_DENIED, "refused")
        if len(request.digest) != 32 or request.offset > MAX_BLOB_BYTES:
            raise PeerFault("blob: expected a digest of 32 bytes and an offset within any blob")
        await asyncio.sleep(intake.take_blob_request())
        try:
            await self._send_blob(intake, request, write)
        except TimeoutError as error:
            intake.counters.refusals[Reason.SLOW] += 1
            raise NotAnswered(grpc.StatusCode.DEADLINE_EXCEEDED, "read too slowly") from error

    async def _send_blob(
        self, intake: Intake, request: pb.BlobRequest, write: Callable[[pb.BlobChunk], Awaitable[None]]
    ) -> None:
        """Sends the chunks. Raises TimeoutError when the peer reads too slowly."""
        limits, sent = intake.limits, 0
        waited_s = 0.0
        waiting = b""

        async def send(data: bytes, *, last: bool) -> None:
            nonlocal sent, waited_s
            began_s = time.monotonic()
            patience_s = limits.blob_grace_s + sent / limits.blob_bytes_per_s - waited_s
            async with asyncio.timeout(max(0.0, patience_s)):
                await write(pb.BlobChunk(data=data, last=last))
            waited_s += time.monotonic() - began_s
            sent += len(data)
            intake.counters.add_sent(BLOB, len(data) + FRAMING_BYTES)

        async with aclosing(read_chunks(self._handler, intake.peer, request.digest, request.offset)) as chunks:
            try:
                async for chunk in chunks:
                    if waiting:
                        await send(waiting, last=False)
                    waiting = chunk
            except BlobNotFound as error:
                if sent or waiting:
                    raise NotAnswered(grpc.StatusCode.ABORTED, "the blob has gone") from error
                async with asyncio.timeout(limits.blob_grace_s):
                    is_coming = isinstance(error, BlobNotYet)
                    await write(pb.BlobChunk(not_found=not is_coming, not_yet=is_coming))
                return
        await send(waiting, last=True)
