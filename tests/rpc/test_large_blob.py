"""A blob of the size of a real set, over sockets and threads: neither memory nor the event loop feels it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from chain.block import Digest, Id
from chain.store.sqlite import SqliteStore
from ml.payload import CHUNK_BYTES
from node.clock import SystemClock
from node.offload import ThreadOffload
from node.payloads.fetcher import BlobFetcher
from node.payloads.partial_files import PartialFiles
from node.payloads.transfers import Transfers
from support.data.chains import make_genesis, make_keys
from support.federation.transports import rpc_net

SIZE = 123 * CHUNK_BYTES
GROWTH_BYTES = 64 << 20  # of gRPC's own buffers, above all
LATE_S = 0.25
GENESIS = make_genesis(make_keys(2))


def get_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_file(path: Path) -> tuple[Digest, bytes]:
    """A file of SIZE bytes: its digest, and those of its chunks."""
    whole, digests = sha256(), b""
    with path.open("wb") as file:
        for _ in range(0, SIZE, CHUNK_BYTES):
            chunk = os.urandom(CHUNK_BYTES)
            file.write(chunk)
            whole.update(chunk)
            digests += sha256(chunk).digest()
    return whole.digest(), digests


@pytest.mark.long
async def test_a_blob_of_129_mb_passes_with_little_memory_and_without_a_pause(tmp_path: Path) -> None:
    source = tmp_path / "made"
    digest, chunk_digests = make_file(source)
    bulk, disk = ThreadOffload("bulk"), ThreadOffload("disk")
    store = SqliteStore.open(tmp_path / "data", GENESIS)
    asked: list[int] = []

    async def serve(peer: Id, wanted: Digest, offset: int) -> AsyncIterator[bytes]:
        asked.append(offset)
        with source.open("rb") as file:
            file.seek(offset)
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk

    most, latest_s = 0, 0.0

    async def watch() -> None:
        nonlocal most, latest_s
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await asyncio.sleep(0.01)
            latest_s = max(latest_s, loop.time() - began_s - 0.01)
            most = max(most, get_resident_bytes())

    async with rpc_net(2) as net:
        alice, bob = net.nodes
        alice.recorder.on_blob_request = serve  # type: ignore[method-assign, assignment]  # from a file
        fetcher = BlobFetcher(
            bob.transport, store, disk, PartialFiles(store, bulk), Transfers(SystemClock(), lambda peer: peer.hex()[:8])
        )
        before = get_resident_bytes()
        watching = asyncio.create_task(watch())
        path = await fetcher.fetch_file(digest, SIZE, chunk_digests, [alice.id])
        watching.cancel()
    assert path.stat().st_size == SIZE
    assert asked == [0]
    assert most - before < GROWTH_BYTES
    assert latest_s < LATE_S
    print(f"{(most - before) / 1e6:.0f} MB more at most, the loop {latest_s * 1e3:.0f} ms late at most")
    await disk.run(store.close)
    bulk.close()
    disk.close()
