"""Payloads too large for memory: what is wrong with one is found out, and costs no more than finding it out."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from chain.block import Contribution, Digest, Id
from chain.codec import encode_contribution
from chain.store.sqlite import SqliteStore
from ml.payload import Arrays, decode_arrays, encode_arrays
from node.payloads.checks import PayloadRefused, RoundPayloads
from node.payloads.chunks import Chunks, ChunksMisfit
from node.payloads.fetcher import BlobFetcher
from support.data.chains import make_contribution, make_genesis, make_keys
from support.federation.inline import InlineOffload
from support.federation.sharing import FEDEDS, MODEL, Made, make_list, make_set, make_spec
from support.federation.virtual_time import run_virtual

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS, method=FEDEDS, model=MODEL)
SPEC = make_spec()
PARENT: Arrays = {"model/w": np.arange(3, dtype=np.float32)}


@dataclass
class FakeFetcher:
    """Comes up with whatever is in `serving`, and counts how often it was asked for what."""

    store: SqliteStore
    serving: dict[Digest, bytes] = field(default_factory=dict)
    asked: list[Digest] = field(default_factory=list)
    misfits: dict[Digest, str] = field(default_factory=dict)

    async def fetch(self, digest: Digest, max_bytes: int, sources: Sequence[Id] = ()) -> bytes:
        self.asked.append(digest)
        return self.serving[digest]

    async def fetch_file(self, digest: Digest, size: int, chunk_digests: bytes, sources: Sequence[Id] = ()) -> Path:
        self.asked.append(digest)
        await asyncio.sleep(0.1)
        if digest in self.misfits:
            raise ChunksMisfit(self.misfits[digest])
        chunks = Chunks(size, chunk_digests)
        self.store.put_blob(self.serving[digest])
        chunks.check_blob(self.store.blob_path(digest), digest)
        return self.store.blob_path(digest)


class Table:
    """One height's payloads, and where they come from."""

    def __init__(self, store: SqliteStore) -> None:
        self.fetcher = FakeFetcher(store)
        self.payloads = RoundPayloads(
            SPEC,
            round_number=1,
            parent=self.get_parent,
            blobs=cast(BlobFetcher, self.fetcher),
            arithmetic=InlineOffload(),
        )

    async def get_parent(self) -> Arrays:
        return PARENT

    def offer(
        self, made: Made, *, author: int = 0, size: int | None = None, list_data: bytes | None = None
    ) -> Contribution:
        listed = made.list_data if list_data is None else list_data
        self.fetcher.serving |= {made.digest: made.data, sha256(listed).digest(): listed}
        refs = made.get_refs(size=size, list_data=list_data)
        return make_contribution(GENESIS, KEYS[author], payloads=refs)


@contextmanager
def table(path: Path) -> Iterator[Table]:
    with SqliteStore.open(path, GENESIS) as store:
        yield Table(store)


def run(story: Coroutine[Any, Any, None]) -> None:
    run_virtual(story)


def test_a_round_of_sets_carries_the_aggregate_and_keeps_none_of_them_in_memory(tmp_path: Path) -> None:
    async def story() -> None:
        with table(tmp_path) as laid:
            contributions = [laid.offer(make_set(i), author=i) for i in range(3)]
            await asyncio.gather(*(laid.payloads.ensure(c) for c in [*contributions, *contributions]))
            aggregate = await laid.payloads.aggregate(contributions)
            assert aggregate.data == encode_arrays(PARENT)
            assert laid.payloads.held_bytes < 1000
            asked = len(laid.fetcher.asked)
            await laid.payloads.ensure(contributions[0])
            assert len(laid.fetcher.asked) == asked  # what is checked is checked

    run(story())


def refuse(tmp_path: Path, contribution_of: Any, match: str) -> None:
    """Refused the first time and the second, with nothing large asked for again."""

    async def story() -> None:
        with table(tmp_path) as laid:
            contribution = contribution_of(laid)
            for _ in range(2):
                with pytest.raises(PayloadRefused, match=match):
                    await laid.payloads.ensure(contribution)
            assert laid.fetcher.asked.count(contribution.payloads[0].digest) <= 1

    run(story())


def test_a_list_for_another_length_is_refused_before_the_set_is_asked_for(tmp_path: Path) -> None:
    made = make_set(0, num_samples=5000)
    digests = decode_arrays(made.list_data, len(made.list_data))["digests"]
    for listed in (digests[:-1], np.concatenate([digests, digests[:1]])):
        refuse(
            tmp_path,
            lambda laid, listed=listed: laid.offer(made, list_data=make_list(listed)),
            f"expected 2 digests of chunks for {len(made.data)} bytes, got {len(listed)}",
        )


def test_a_list_with_another_digest_is_refused(tmp_path: Path) -> None:
    made = make_set(0)
    digests = decode_arrays(made.list_data, len(made.list_data))["digests"].copy()
    digests[1] ^= 1
    refuse(tmp_path, lambda laid: laid.offer(made, list_data=make_list(digests)), "chunk 1 of 3 has another digest")


def test_a_wrong_size_within_the_same_chunks_is_refused(tmp_path: Path) -> None:
    made = make_set(0)
    size = len(made.data)
    refuse(tmp_path, lambda laid: laid.offer(made, size=size - 1), f"declared {size - 1} bytes, has {size}")


def test_a_size_above_the_schemas_is_refused_unseen(tmp_path: Path) -> None:
    made = make_set(0)
    most = SPEC.schemas(1)["encrypted_set"].max_bytes
    refuse(tmp_path, lambda laid: laid.offer(made, size=most + 1), f"expected at most {most} bytes, got {most + 1}")


def test_a_set_that_is_none_is_refused_once(tmp_path: Path) -> None:
    made = make_set(0, label=0.2)
    refuse(tmp_path, lambda laid: laid.offer(made), "encrypted_set: .*expected rows that sum to 1, got 2")


def test_what_no_blob_can_be_is_refused_and_not_pulled_again(tmp_path: Path) -> None:
    def offer(laid: Table) -> Contribution:
        laid.fetcher.misfits[make_set(0).digest] = "the chunks its author signed make another blob"
        return laid.offer(make_set(0))

    refuse(tmp_path, offer, "encrypted_set: the chunks its author signed make another blob")


def test_one_authors_wrong_list_says_nothing_about_another_with_the_same_set(tmp_path: Path) -> None:
    async def story() -> None:
        with table(tmp_path) as laid:
            made = make_set(0)
            digests = decode_arrays(made.list_data, len(made.list_data))["digests"].copy()
            digests[0] ^= 1
            liar, honest = laid.offer(made, author=1, list_data=make_list(digests)), laid.offer(made, author=2)
            results = await asyncio.gather(
                laid.payloads.ensure(liar), laid.payloads.ensure(honest), return_exceptions=True
            )
            assert [type(result) for result in results] == [PayloadRefused, type(None)]

    run(story())


def test_a_contribution_without_its_list_is_refused(tmp_path: Path) -> None:
    def offer(laid: Table) -> Contribution:
        whole = laid.offer(make_set(0))
        assert len(encode_contribution(whole)) < 4096
        return make_contribution(GENESIS, KEYS[0], payloads=whole.payloads[:1])

    refuse(tmp_path, offer, r"expected \['chunk_digests', 'encrypted_set'\], got \['encrypted_set'\]")


def test_checking_a_set_takes_little_memory(tmp_path: Path) -> None:
    async def story() -> None:
        with table(tmp_path) as laid:
            made = make_set(9, num_samples=10_000)
            contribution = laid.offer(made)
            laid.fetcher.store.put_blob(made.data)
            tracemalloc.start()
            try:
                await laid.payloads.ensure(contribution)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 2.5 * (1 << 20) < len(made.data)  # a chunk, and blocks of 64 Ki numbers

    run(story())
