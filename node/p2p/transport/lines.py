"""The lines on which this node requests blocks and blobs of one peer: calls on a connection that this node has dialled
(`dialled_lines`), or streams that a peer, which has dialled this node, holds open (`served_lines`).

One request at a time goes over a line. A line whose request is answered is used again: half the cost of a new call.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from node.p2p.transport.calls import Malformed
from node.pb import peer_pb2 as pb

Chunk = pb.BlobChunk | Malformed | None  # None: the line has ended


class Line(Protocol):
    """Requests blobs of a peer over one stream, one after the other. Its methods raise PeerUnavailable.

    `was_idle`: the line was open before it was needed, and may have ended unnoticed since.
    """

    was_idle: bool

    async def ask(self, request: pb.BlobRequest) -> None: ...

    async def read(self) -> Chunk: ...

    def cancel(self) -> None: ...

    def done(self) -> bool: ...

    async def give_back(self) -> None:
        """Returns the line for further use, unless it is done. A line whose request is not answered is to be cancelled
        before."""


class Lines(Protocol):
    """Holds the lines of one peer. Its methods raise PeerUnavailable."""

    async def take(self) -> Line:
        """Returns an idle line, or a new one."""

    async def request_blocks(self, request: pb.BlocksRequest, timeout_s: float) -> pb.BlocksReply | Malformed: ...


def is_cancelled() -> bool:
    """Says whether this task was cancelled, rather than a call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
