"""Backups of a running node: takes a snapshot of its data directory while rounds go on, and sends it piece by piece."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress

from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
from node.ledger.backup import CHUNK_BYTES, Snapshot, take_snapshot
from node.pb import admin_pb2 as pb

SNAPSHOT = "backup.tmp"  # in the data directory, while a snapshot is read


class _Abandoned(Exception):
    """Ends a backup whose caller has gone."""


class Backups:
    """Makes backups of one node, one at a time."""

    def __init__(self, genesis: Genesis, store: SqliteStore) -> None:
        self._genesis = genesis
        self._store = store
        self._folder = store.path / SNAPSHOT
        self._reading = asyncio.Lock()
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a node that was killed

    async def backup(self) -> AsyncGenerator[pb.BackupChunk, None]:
        """Yields the manifest, then the files as they lie in an archive. Closing the generator ends the backup."""
        gone = threading.Event()
        async with self._reading:
            taking = asyncio.ensure_future(asyncio.to_thread(self._take, gone))
            try:
                snapshot = await asyncio.shield(taking)
                encoded = snapshot.manifest.encode()
                for at in range(0, len(encoded), CHUNK_BYTES):
                    yield pb.BackupChunk(manifest=encoded[at : at + CHUNK_BYTES])
                chunks = snapshot.read()
                while chunk := await asyncio.to_thread(_take_some, chunks):
                    yield pb.BackupChunk(data=chunk)
            finally:
                gone.set()
                if not taking.done():  # its thread still reads this store
                    await asyncio.wait({taking})
                    with suppress(_Abandoned):
                        taking.result()
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _take(self, gone: threading.Event) -> Snapshot:
        def on_progress(done: float, what: str) -> None:
            if gone.is_set():
                raise _Abandoned

        self._folder.mkdir(mode=0o700)
        return take_snapshot(self._store, self._genesis, self._folder, on_progress)


def _take_some(chunks: Iterator[bytes]) -> bytes:
    """Returns the next chunks, small ones joined; no bytes at the end."""
    taken = bytearray()
    for chunk in chunks:
        taken += chunk
        if len(taken) >= CHUNK_BYTES:
            break
    return bytes(taken)
