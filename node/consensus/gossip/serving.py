"""Serves blocks and blobs of the store to peers that request them (PROTOCOL §6, §7)."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from io import BytesIO
from typing import BinaryIO

from chain.block import Digest, Id
from chain.store.blob_rows import BlobSource
from chain.store.sqlite import SqliteStore
from node.offload import Offload, run_sized
from node.p2p.transport.base import CHUNK_BYTES, MAX_BLOB_BYTES, MAX_BLOCKS_REPLY_BYTES, BlobNotFound, BlobNotYet
from node.payloads.relayed import RelayedBlobs
from node.payloads.transfers import Transfers
from node.payloads.waiting_blobs import WaitingBlobs

BLOCK_FRAMING_BYTES = 16  # around each block of a reply, at most


class StoreServer:
    """Serves requests for one node. `disk` is the store's thread; `bulk` reads blobs, so that votes need not wait."""

    def __init__(
        self,
        store: SqliteStore,
        disk: Offload,
        bulk: Offload,
        transfers: Transfers,
        relayed: RelayedBlobs,
        waiting: WaitingBlobs,
    ) -> None:
        self._store = store
        self._disk = disk
        self._bulk = bulk
        self._transfers = transfers
        self._relayed = relayed
        self._waiting = waiting

    async def get_blocks(self, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """Returns blocks with their certificates, as many as are held and fit into a reply. Raises StoreCorrupted."""
        return await self._disk.run(self._read_blocks, first, count)

    def _read_blocks(self, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """Reads the blocks, on the disk's thread."""
        replies: list[tuple[bytes, bytes]] = []
        total = 0
        for row in self._store.read_rows(max(1, first), first + count - 1):
            if row.damage is not None:
                self._store.get_block_bytes(row.height)  # raises the error with the details
            if row.height != max(1, first) + len(replies):
                break
            total += len(row.block) + len(row.certificate) + BLOCK_FRAMING_BYTES
            if total > MAX_BLOCKS_REPLY_BYTES:
                break
            replies.append((row.block, row.certificate))
        return replies

    async def read_blob(self, peer: Id, digest: Digest, offset: int) -> AsyncGenerator[bytes, None]:
        """Yields a blob from `offset` on, in chunks. Raises BlobNotFound, or BlobNotYet if it will be here soon."""
        if offset > MAX_BLOB_BYTES:
            raise BlobNotFound(f"{digest.hex()} from {offset}")
        try:
            with await self._open(digest) as file:
                size = file.seek(0, os.SEEK_END)
                left = size - file.seek(offset)
                with self._transfers.follow(
                    peer, digest, is_incoming=False, resumed=min(offset, size), total=size
                ) as on_passed:
                    while left > 0:
                        chunk = await run_sized(self._bulk, left, file.read, CHUNK_BYTES)
                        left -= len(chunk)
                        yield chunk
                        on_passed(len(chunk))
        except FileNotFoundError as error:
            if self._relayed.is_coming(peer, digest):
                raise BlobNotYet(digest.hex()) from error
            raise BlobNotFound(digest.hex()) from error

    async def _open(self, digest: Digest) -> BinaryIO:
        """Opens a blob. Raises FileNotFoundError."""
        found: BlobSource | None = self._waiting.find(digest)
        if found is None:
            found = await self._bulk.run(self._store.locate_blob, digest)
        return BytesIO(found) if isinstance(found, bytes) else found.open("rb")
