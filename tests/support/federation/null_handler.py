"""The null handler: the transport's handler for an end that is no node. It ignores messages and holds nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

from chain.block import Digest, Id
from node.p2p.transport.base import BlobNotFound, Message


class NullHandler:
    """A handler as in `node.p2p.transport.base.Handler` that ignores messages and holds nothing. Subclasses override
    what they need."""

    def on_message(self, peer: Id, message: Message) -> None: ...

    def on_peer_up(self, peer: Id) -> None: ...

    def on_peer_down(self, peer: Id) -> None: ...

    async def on_blocks_request(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        return []

    async def on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncIterator[bytes]:
        raise BlobNotFound(digest.hex())
        yield b""
