"""Writes of small blobs under way: nobody gives a word on them before they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from chain.errors import StoreFull
from chain.store.sqlite import SqliteStore
from node.payloads.blob_writes import BlobWrites
from support.data.chains import make_genesis, make_keys

P = ParamSpec("P")
T = TypeVar("T")


class HeldOffload:
    """Does nothing before it is let go, and counts what it was asked to do."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_go = asyncio.Event()
        self.error: Exception | None = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.asked += 1
        await self.may_go.wait()
        if self.error is not None:
            raise self.error
        return function(*args, **kwargs)

    def close(self) -> None:
        pass


def get_digest(data: bytes) -> bytes:
    return sha256(data).digest()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore.open(tmp_path / "alice", make_genesis(make_keys(4))) as opened:
        yield opened


async def test_settling_waits_until_all_of_it_is_in_the_store(store: SqliteStore) -> None:
    offload = HeldOffload()
    writes = BlobWrites(store, offload)
    for data in (b"one", b"two", b"one"):
        writes.begin(get_digest(data), data)
    settled = asyncio.create_task(writes.settle())
    await asyncio.sleep(0)
    assert not settled.done()
    assert not store.has_blob(get_digest(b"one"))
    offload.may_go.set()
    await settled
    assert offload.asked == 1  # what waits is written together
    assert [store.get_blob(get_digest(data)) for data in (b"one", b"two")] == [b"one", b"two"]
    assert writes.take_written() == {get_digest(b"one"), get_digest(b"two")}
    await writes.settle()  # there is nothing left to wait for


async def test_what_comes_during_a_write_is_written_together_after_it(store: SqliteStore) -> None:
    offload = HeldOffload()
    writes = BlobWrites(store, offload)
    writes.begin(get_digest(b"one"), b"one")
    await asyncio.sleep(0)
    for data in (b"two", b"three", b"one"):
        writes.begin(get_digest(data), data)
    await asyncio.sleep(0)
    assert offload.asked == 1
    offload.may_go.set()
    await writes.settle()
    assert offload.asked == 2
    assert all(store.has_blob(get_digest(data)) for data in (b"one", b"two", b"three"))


async def test_what_is_held_is_not_written_again(store: SqliteStore) -> None:
    offload = HeldOffload()
    writes = BlobWrites(store, offload)
    writes.begin(store.put_blob(b"old"), b"old")
    await writes.settle()
    assert offload.asked == 0
    assert writes.take_written() == frozenset()


async def test_a_write_that_fails_is_heard_of_by_whoever_settles_from_then_on(store: SqliteStore) -> None:
    offload = HeldOffload()
    offload.error = StoreFull("no room")
    offload.may_go.set()
    heard = list[BaseException]()
    writes = BlobWrites(store, offload, heard.append)
    writes.begin(get_digest(b"one"), b"one")
    for _ in range(2):
        with pytest.raises(StoreFull, match="no room"):
            await writes.settle()
    assert heard == [offload.error]  # also where nobody settles


async def test_a_caller_that_is_cancelled_leaves_the_write_alone(store: SqliteStore) -> None:
    offload = HeldOffload()
    writes = BlobWrites(store, offload)
    writes.begin(get_digest(b"one"), b"one")
    settled = asyncio.create_task(writes.settle())
    await asyncio.sleep(0)
    settled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settled
    offload.may_go.set()
    await writes.settle()
    assert store.has_blob(get_digest(b"one"))
