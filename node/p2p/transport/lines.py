"""The lines to one peer over which it is asked for blocks and blobs: calls on a connection that this node has dialled
(`dialled_lines`), or streams that a peer, which has dialled this node, holds open to be asked on (`served_lines`).

One request at a time goes over a line. An answered line is used again: half the cost of a new call.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from node.p2p.transport.calls import Malformed
from node.pb import peer_pb2 as pb

Chunk = pb.BlobChunk | Malformed | None  # None: the line has ended


class Line(Protocol):
    """One stream on which a peer is asked for blobs, one after the other. What its methods raise is PeerUnavailable.

    `was_idle`: it was there before it was needed, and may have ended since without anybody's having seen it.
    """

    was_idle: bool

    async def ask(self, request: pb.BlobRequest) -> None: ...

    async def read(self) -> Chunk: ...

    def cancel(self) -> None: ...

    def done(self) -> bool: ...

    async def give_back(self) -> None:
        """To be used again, unless it is done: it is to be cancelled where what was asked has not been answered."""


class Lines(Protocol):
    """The lines of one peer. What its methods raise is PeerUnavailable."""

    async def take(self) -> Line:
        """An idle line, or a new one."""

    async def request_blocks(self, request: pb.BlocksRequest, timeout_s: float) -> pb.BlocksReply | Malformed: ...


def is_cancelled() -> bool:
    """Whether it is this task that was cancelled, and not a call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
