"""Blobs too large for memory: chunk by chunk into a file, from whoever serves the right ones (PROTOCOL §7)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest

from chain.block import Digest, Id
from chain.errors import StoreCorrupted
from chain.store.sqlite import SqliteStore
from ml.payload import CHUNK_BYTES
from node.p2p.transport.base import BlobNotFound, BlobTooLong, PeerUnavailable, Transport
from node.payloads.chunks import Chunks, ChunksMisfit
from node.payloads.fetcher import PATIENCE_S, BlobFetcher, BlobUnavailable
from node.payloads.partial_files import PartialFiles
from node.payloads.transfers import Transfers
from support.data.chains import make_genesis, make_keys
from support.federation.cluster import VirtualClock
from support.federation.inline import InlineOffload
from support.federation.virtual_time import run_virtual

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
ALICE, BOB, CAROL = (key.id for key in KEYS[1:])
NAMES = {ALICE: "alice", BOB: "bob", CAROL: "carol"}

BLOB = os.urandom(5 * CHUNK_BYTES // 2)  # two chunks and a half
DIGEST = sha256(BLOB).digest()


def list_chunks(data: bytes) -> bytes:
    return b"".join(sha256(data[start : start + CHUNK_BYTES]).digest() for start in range(0, len(data), CHUNK_BYTES))


CHUNK_DIGESTS = list_chunks(BLOB)

Serve = Callable[[int], AsyncGenerator[bytes, None]]


def serve(data: bytes, *, piece: int = CHUNK_BYTES, until: int | None = None, slow_s: float = 0.0) -> Serve:
    """A peer that has `data`. It breaks off after `until` bytes of it, and rests `slow_s` before each piece."""

    async def chunks(offset: int) -> AsyncGenerator[bytes, None]:
        end = len(data) if until is None else until
        for start in range(offset, end, piece):
            await asyncio.sleep(slow_s)
            yield data[start : min(start + piece, end)]
        if until is not None:
            raise PeerUnavailable("it broke off")

    return chunks


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@dataclass
class Peers:
    """The transport: whoever is in `serving` is connected. `given` is what each sent, from and to which byte. With
    `is_lax` nobody looks at what was declared before the fetcher does."""

    serving: dict[Id, Serve] = field(default_factory=dict)
    given: list[tuple[Id, int, int]] = field(default_factory=list)
    is_lax: bool = False

    def connected(self) -> frozenset[Id]:
        return frozenset(self.serving)

    async def fetch_blob(
        self, peer: Id, digest: Digest, offset: int = 0, *, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.001)
        position = offset
        try:
            async for data in self.serving[peer](offset):
                position += len(data)
                if position > max_bytes and not self.is_lax:
                    raise BlobTooLong(f"expected {max_bytes} bytes, got {position} and more")
                yield data
        finally:
            self.given.append((peer, offset, position))


class Home:
    """The place where blobs come to: a store, and everything that a node's life has on top of it."""

    def __init__(self, path: Path, peers: Peers) -> None:
        self.store = SqliteStore.open(path, GENESIS)
        self.peers = peers
        self.transfers = Transfers(VirtualClock(), lambda peer: NAMES[peer])
        self.partials = PartialFiles(self.store, InlineOffload())
        self.fetcher = self.make_fetcher()

    def make_fetcher(self) -> BlobFetcher:
        transport = cast(Transport, self.peers)
        return BlobFetcher(transport, self.store, InlineOffload(), self.partials, self.transfers)

    async def fetch(self, *sources: Id, size: int = len(BLOB), chunk_digests: bytes = CHUNK_DIGESTS) -> Path:
        return await self.fetcher.fetch_file(DIGEST, size, chunk_digests, sources)

    def get_partials(self) -> list[Path]:
        return sorted(self.store.path.glob("blobs/tmp/*"))


@contextmanager
def home(path: Path, peers: Peers) -> Iterator[Home]:
    """One life."""
    there = Home(path, peers)
    try:
        yield there
    finally:
        there.store.close()


def run(story: Coroutine[Any, Any, None]) -> None:
    run_virtual(story)


def test_a_blob_comes_chunk_by_chunk_however_the_transport_cuts_it(tmp_path: Path) -> None:
    async def story() -> None:
        for piece in (CHUNK_BYTES, 300_000, CHUNK_BYTES - 1, 2 * CHUNK_BYTES + 1):
            with home(tmp_path / str(piece), Peers({ALICE: serve(BLOB, piece=piece)})) as node:
                path = await node.fetch(ALICE)
                assert path == node.store.blob_path(DIGEST)
                assert node.store.get_blob(DIGEST) == BLOB
                assert node.get_partials() == []
                assert node.fetcher.pulled_bytes == node.fetcher.received_bytes == len(BLOB)
                assert not node.fetcher.wanted

    run(story())


def test_a_blob_that_is_let_go_before_it_is_read_comes_from_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with home(tmp_path, Peers({ALICE: serve(BLOB)})) as node:
            node.store.put_blob(BLOB)
            read = node.store.get_blob

            def let_go_and_read(digest: Digest) -> bytes:
                if not node.peers.given:
                    node.store.delete_blob(digest)
                return read(digest)

            monkeypatch.setattr(node.store, "get_blob", let_go_and_read)
            assert await node.fetcher.fetch(DIGEST, len(BLOB)) == BLOB
            assert [peer for peer, *_ in node.peers.given] == [ALICE]

    run(story())


def test_of_a_wrong_chunk_what_came_before_is_kept_and_the_rest_comes_from_another_peer(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(flip(BLOB, CHUNK_BYTES + 5)), BOB: serve(BLOB)})
        with home(tmp_path, peers) as node:
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB
        # Alice's first chunk was good; the second one, which was not, is all that was in vain.
        assert peers.given == [(ALICE, 0, 2 * CHUNK_BYTES), (BOB, CHUNK_BYTES, len(BLOB))]

    run(story())


def test_who_served_a_wrong_chunk_is_not_asked_for_this_blob_again(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(flip(BLOB, 3))})
        with home(tmp_path, peers) as node:
            fetching = asyncio.create_task(node.fetch(ALICE))
            await asyncio.sleep(30)
            assert [peer for peer, *_ in peers.given] == [ALICE]
            peers.serving[BOB] = serve(BLOB)
            await fetching
            assert node.store.get_blob(DIGEST) == BLOB
            assert [peer for peer, *_ in peers.given] == [ALICE, BOB]

    run(story())


def test_where_one_peer_breaks_off_the_next_goes_on_and_no_whole_chunk_comes_twice(tmp_path: Path) -> None:
    async def story() -> None:
        cut_at = 2 * CHUNK_BYTES + 77
        peers = Peers({ALICE: serve(BLOB, piece=100_000, until=cut_at), BOB: serve(BLOB)})
        with home(tmp_path, peers) as node:
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB
        assert peers.given == [(ALICE, 0, cut_at), (BOB, 2 * CHUNK_BYTES, len(BLOB))]

    run(story())


def test_a_new_life_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async def story() -> None:
        with home(tmp_path, Peers({ALICE: serve(BLOB, slow_s=1.0)})) as node:
            fetching = asyncio.create_task(node.fetch(ALICE))
            await asyncio.sleep(2.5)
            assert len(list(node.transfers)) == 1
            node.fetcher.abandon()
            with pytest.raises(asyncio.CancelledError):
                await fetching
            assert list(node.transfers) == []
        peers = Peers({BOB: serve(BLOB)})
        with home(tmp_path, peers) as node:
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB
        assert peers.given == [(BOB, 2 * CHUNK_BYTES, len(BLOB))]

    run(story())


@pytest.mark.parametrize(
    ("left", "resumed"),
    [
        (b"rubbish", 0),
        (flip(BLOB, 1)[: 2 * CHUNK_BYTES], 0),
        (flip(BLOB, CHUNK_BYTES + 1)[: 2 * CHUNK_BYTES + 9], CHUNK_BYTES),
        (BLOB[:CHUNK_BYTES] + b"rubbish", CHUNK_BYTES),
        (BLOB + b"and more than all of it", 0),
        (flip(BLOB, len(BLOB) - 1), 2 * CHUNK_BYTES),
    ],
)
def test_of_what_an_earlier_life_left_only_right_chunks_count(tmp_path: Path, left: bytes, resumed: int) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB)})
        with home(tmp_path, peers) as node:
            path, _ = node.store.open_partial(DIGEST, Chunks(len(BLOB), CHUNK_DIGESTS).tag)
            path.write_bytes(left)
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB
        if left.startswith(BLOB):  # too long only behind what is right
            assert peers.given == []
        else:
            assert peers.given == [(ALICE, resumed, len(BLOB))]

    run(story())


def test_a_life_that_ended_before_the_commit_is_not_asked_for_anything(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB)})
        with home(tmp_path, peers) as node:
            path, _ = node.store.open_partial(DIGEST, Chunks(len(BLOB), CHUNK_DIGESTS).tag)
            path.write_bytes(BLOB)
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB
        assert peers.given == []

    run(story())


def test_more_than_was_declared_is_not_taken(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB + os.urandom(3 * CHUNK_BYTES))})
        with home(tmp_path, peers) as node:
            fetching = asyncio.create_task(node.fetch(ALICE))
            await asyncio.sleep(5)
            assert peers.given == [(ALICE, 0, 3 * CHUNK_BYTES)]  # and she is not asked again
            (partial,) = node.get_partials()
            assert partial.read_bytes() == BLOB[: 2 * CHUNK_BYTES]
            peers.serving = {BOB: serve(BLOB)}
            await fetching
            assert peers.given[1:] == [(BOB, 2 * CHUNK_BYTES, len(BLOB))]

    run(story())


def test_who_never_ends_is_stopped_where_the_blob_ends_though_the_transport_let_it_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB + bytes(10 * CHUNK_BYTES))}, is_lax=True)
        with home(tmp_path, peers) as node:
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB
        assert peers.given == [(ALICE, 0, 3 * CHUNK_BYTES)]

    run(story())


def test_behind_the_last_chunk_nothing_matters(tmp_path: Path) -> None:
    async def story() -> None:
        with home(tmp_path, Peers({ALICE: serve(BLOB, until=len(BLOB))})) as node:  # it breaks off, but too late
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB
        with home(tmp_path / "other", Peers({ALICE: serve(BLOB + b"x", piece=CHUNK_BYTES // 2)})) as node:
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB

    run(story())


def test_a_peer_whose_blob_ends_too_early_is_left_for_another(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB[:-1]), BOB: serve(BLOB)})
        with home(tmp_path, peers) as node:
            await node.fetch(ALICE)
            assert node.store.get_blob(DIGEST) == BLOB
        assert peers.given == [(ALICE, 0, len(BLOB) - 1), (BOB, 2 * CHUNK_BYTES, len(BLOB))]

    run(story())


def test_a_peer_that_sends_nothing_is_left_for_another(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB, slow_s=1e6), BOB: serve(BLOB)})
        with home(tmp_path, peers) as node:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await node.fetch(ALICE)
            assert loop.time() - began_s == pytest.approx(PATIENCE_S, abs=0.1)

    run(story())


def test_lists_that_cannot_be_of_the_blob_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB)})
        with home(tmp_path, peers) as node:
            for size, digests in (
                (len(BLOB), CHUNK_DIGESTS[:-32]),
                (len(BLOB), CHUNK_DIGESTS[:-1]),
                (len(BLOB), CHUNK_DIGESTS + bytes(32)),
                (2 * CHUNK_BYTES, CHUNK_DIGESTS),
                (0, b""),
            ):
                with pytest.raises(ChunksMisfit, match="expected"):
                    await node.fetch(ALICE, size=size, chunk_digests=digests)
            assert peers.given == []

    run(story())


def test_chunks_of_another_blob_are_found_out_once_and_for_all(tmp_path: Path) -> None:
    """Their author serves what has the digests it signed for the chunks, and is not what it signed for the whole."""

    async def story() -> None:
        other = flip(BLOB, 7)
        peers = Peers({ALICE: serve(other)})
        with home(tmp_path, peers) as node:
            with pytest.raises(ChunksMisfit, match="make another blob"):
                await node.fetch(ALICE, chunk_digests=list_chunks(other))
            assert not node.store.has_blob(DIGEST)
            assert node.get_partials() == []
            await asyncio.sleep(10)
            assert len(peers.given) == 1

    run(story())


def test_one_authors_wrong_list_does_not_keep_the_blob_from_another_with_the_right_one(tmp_path: Path) -> None:
    async def story() -> None:
        wrong = bytes(32) + CHUNK_DIGESTS[32:]
        peers = Peers({ALICE: serve(BLOB, slow_s=1.0)})
        with home(tmp_path, peers) as node:
            misled = asyncio.create_task(node.fetch(BOB, chunk_digests=wrong))
            right = asyncio.create_task(node.fetch(ALICE))
            await right
            assert node.store.get_blob(DIGEST) == BLOB
            with pytest.raises(ChunksMisfit, match="chunk 0 of 3"):  # now that it is here that can be said
                await misled
        assert sorted(end - start for _, start, end in peers.given) == [CHUNK_BYTES, len(BLOB)]

    run(story())


def test_what_is_held_is_held_against_what_its_author_signed(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers()
        with home(tmp_path, peers) as node:
            node.store.put_blob(BLOB)
            assert await node.fetch() == node.store.blob_path(DIGEST)
            with pytest.raises(ChunksMisfit, match=f"declared {len(BLOB) - 1} bytes, has {len(BLOB)}"):
                await node.fetch(size=len(BLOB) - 1)
            with pytest.raises(ChunksMisfit, match="chunk 2 of 3"):
                await node.fetch(chunk_digests=flip(CHUNK_DIGESTS, 64))
            node.store.blob_path(DIGEST).write_bytes(flip(BLOB, 9))
            with pytest.raises(StoreCorrupted, match="sha256"):
                await node.fetch()

    run(story())


def test_two_who_look_for_it_pull_it_once(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB, slow_s=0.5)})
        with home(tmp_path, peers) as node:
            other = node.make_fetcher()  # of the same node, as that which audits
            await asyncio.gather(
                node.fetch(ALICE),
                node.fetch(BOB),
                other.fetch_file(DIGEST, len(BLOB), CHUNK_DIGESTS, [ALICE]),
                other.try_fetch_file(DIGEST, len(BLOB), CHUNK_DIGESTS, [ALICE], patience_s=5.0),
            )
            assert node.store.get_blob(DIGEST) == BLOB
        assert peers.given == [(ALICE, 0, len(BLOB))]

    run(story())


def test_one_who_gives_up_leaves_what_has_come_to_the_other(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB, slow_s=1.0)})
        with home(tmp_path, peers) as node:
            first = asyncio.create_task(node.fetch(ALICE))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(node.make_fetcher().fetch_file(DIGEST, len(BLOB), CHUNK_DIGESTS, [ALICE]))
            await asyncio.sleep(1.5)
            node.fetcher.abandon()
            assert await second == node.store.blob_path(DIGEST)
            with pytest.raises(asyncio.CancelledError):
                await first
        assert peers.given == [(ALICE, 0, CHUNK_BYTES), (ALICE, CHUNK_BYTES, len(BLOB))]

    run(story())


def test_a_partial_file_that_was_let_go_is_begun_anew(tmp_path: Path) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB, slow_s=1.0)})
        with home(tmp_path, peers) as node:
            fetching = asyncio.create_task(node.fetch(ALICE))
            await asyncio.sleep(1.5)
            assert len(node.get_partials()) == 1
            node.store.drop_partial(DIGEST)
            assert node.get_partials() == []
            await fetching
            assert node.store.get_blob(DIGEST) == BLOB

    run(story())


# ---- what one can do without


def test_a_blob_one_can_do_without_is_given_up_when_nobody_has_it(tmp_path: Path) -> None:
    async def nothing(offset: int) -> AsyncGenerator[bytes, None]:
        raise BlobNotFound("no")
        yield b""

    async def story() -> None:
        with home(tmp_path, Peers({ALICE: nothing, BOB: serve(flip(BLOB, 0))})) as node:
            with pytest.raises(BlobUnavailable, match="it does not have it"):
                await node.fetcher.try_fetch_file(DIGEST, len(BLOB), CHUNK_DIGESTS, [ALICE], patience_s=5.0)
            with pytest.raises(BlobUnavailable, match="expected 3 digests"):
                await node.fetcher.try_fetch_file(DIGEST, len(BLOB), CHUNK_DIGESTS[32:], [ALICE], patience_s=5.0)

    run(story())


def test_what_comes_of_a_blob_earns_the_next_peer_time(tmp_path: Path) -> None:
    """Alice takes longer than there is patience, and breaks off; there is time left for Bob all the same."""

    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB, slow_s=3.0, until=2 * CHUNK_BYTES), BOB: serve(BLOB)})
        with home(tmp_path, peers) as node:
            await node.fetcher.try_fetch_file(DIGEST, len(BLOB), CHUNK_DIGESTS, [ALICE], patience_s=5.0)
            assert node.store.get_blob(DIGEST) == BLOB
        assert [peer for peer, *_ in peers.given] == [ALICE, BOB]

    run(story())


# ---- what is told of it


def test_a_transfer_is_told_while_it_lasts_and_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        peers = Peers({ALICE: serve(BLOB, slow_s=6.0, until=2 * CHUNK_BYTES), BOB: serve(BLOB, slow_s=6.0)})
        with home(tmp_path, peers) as node:
            fetching = asyncio.create_task(node.fetch(ALICE))
            await asyncio.sleep(7.0)
            (transfer,) = node.transfers
            assert (transfer.peer, transfer.is_incoming, transfer.digest) == (ALICE, True, DIGEST)
            assert (transfer.resumed, transfer.done, transfer.total) == (0, CHUNK_BYTES, len(BLOB))
            await asyncio.sleep(7.0)
            (transfer,) = node.transfers
            assert (transfer.peer, transfer.resumed, transfer.done) == (BOB, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES)
            await fetching
            assert list(node.transfers) == []

    with caplog.at_level(logging.INFO, "node.payloads.transfers"):
        run(story())
    of_alice, of_bob = (f"blob {DIGEST.hex()[:8]} from {name}  " for name in ("alice", "bob"))
    assert caplog.messages == [
        of_alice + "1.0 of 2.6 MB",
        of_alice + "2.1 of 2.6 MB",
        of_alice + "broke off at 2.1 of 2.6 MB: it broke off",
    ]
    assert of_bob not in " ".join(caplog.messages)  # it was through with the first piece


# ---- memory


class Stream:
    """A blob of any length that is never anywhere as a whole."""

    def __init__(self, num_chunks: int) -> None:
        self.size = num_chunks * CHUNK_BYTES
        self._chunk = os.urandom(CHUNK_BYTES)
        whole = hashlib.sha256()
        digests = []
        for index in range(num_chunks):
            whole.update(self.get_chunk(index))
            digests.append(sha256(self.get_chunk(index)).digest())
        self.digest, self.chunk_digests = whole.digest(), b"".join(digests)

    def get_chunk(self, index: int) -> bytes:
        return index.to_bytes(8, "big") + self._chunk[8:]

    async def serve(self, offset: int) -> AsyncGenerator[bytes, None]:
        for index in range(offset // CHUNK_BYTES, self.size // CHUNK_BYTES):
            await asyncio.sleep(0)
            yield self.get_chunk(index)


def test_a_blob_of_64_mb_takes_no_more_memory_than_a_few_chunks(tmp_path: Path) -> None:
    stream = Stream(64)

    async def story() -> None:
        with home(tmp_path, Peers({ALICE: stream.serve})) as node:
            tracemalloc.start()
            try:
                path = await node.fetcher.fetch_file(stream.digest, stream.size, stream.chunk_digests, [ALICE])
                await node.fetcher.fetch_file(stream.digest, stream.size, stream.chunk_digests)  # held: read again
                source = tmp_path / "finished"
                path.rename(source)
                assert node.store.adopt_blob(source) == (stream.digest, stream.size)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 6 * CHUNK_BYTES
            assert node.store.blob_size(stream.digest) == 64 * CHUNK_BYTES

    run(story())
