"""A handler that writes down what reaches it, and a wait for conditions, for tests of transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from chain.block import Digest, Id
from node.p2p.transport.base import CHUNK_BYTES, BlobNotFound, BlobNotYet, Message, MessageKind, PeerFault

PATIENCE_S = 60.0  # for whatever must arrive: a busy machine may be a hundred times slower than an idle one


class Recorder:
    """Keeps messages and peers seen; serves `blocks` and `blobs`; reports a message of `bad_data` as its sender's
    fault."""

    def __init__(self) -> None:
        self.messages: list[tuple[Id, Message]] = []
        self.ups: list[Id] = []
        self.downs: list[Id] = []
        self.blocks: list[tuple[bytes, bytes]] = []
        self.blobs: dict[Digest, bytes] = {}
        self.coming: set[Digest] = set()  # blobs it says it does not have yet
        self.blob_requests: list[tuple[Id, int]] = []
        self.bad_data = b"bad"
        self.open_streams = 0

    def on_message(self, peer: Id, message: Message) -> None:
        if message.data == self.bad_data:
            raise PeerFault("bad bytes")
        self.messages.append((peer, message))

    def on_peer_up(self, peer: Id) -> None:
        self.ups.append(peer)

    def on_peer_down(self, peer: Id) -> None:
        self.downs.append(peer)

    async def on_blocks_request(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        return self.blocks[first : first + count]

    async def on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncIterator[bytes]:
        self.blob_requests.append((peer, offset))
        blob = self.blobs.get(digest)
        if blob is None and digest in self.coming:
            raise BlobNotYet(digest.hex())
        if blob is None:
            raise BlobNotFound(digest.hex())
        self.open_streams += 1
        try:
            for start in range(offset, len(blob), CHUNK_BYTES):
                yield blob[start : start + CHUNK_BYTES]
        finally:
            self.open_streams -= 1

    def get_data(self, kind: MessageKind, peer: Id | None = None) -> list[bytes]:
        """Returns the data of the messages of one kind, in order of arrival."""
        return [message.data for sender, message in self.messages if message.kind is kind and peer in (None, sender)]


async def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Returns once `condition` holds; AssertionError naming `what` after `timeout_s` of the loop's time."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, f"not in {timeout_s} s: {what}"
        await asyncio.sleep(0.005)
