"""Relayed blobs: what is pulled for others, for whom, and how much."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chain.block import ZERO, Block, Contribution, Digest, Id, PayloadRef
from ml.payload import KINDS
from node.boundary import Boundary
from node.p2p.peers import Peers
from node.p2p.status import Status
from node.payloads import relayed
from node.payloads.fetcher import BlobUnavailable
from node.payloads.relayed import RelayedBlobs
from support.data.chains import make_contribution, make_genesis, make_keys
from support.federation.fixed_specs import FixedSpecs
from support.federation.pulling import FEDPER, make_spec
from support.federation.virtual_time import run_virtual

KEYS = sorted(make_keys(4), key=lambda key: key.id)
ASKER, AUTHOR, ME, OTHER = (key.id for key in KEYS)
OBSERVER = b"o" * 32
GENESIS = make_genesis(KEYS)
SIZE = 1000


class Clock:
    def monotonic(self) -> float:
        return 0.0


class Fetcher:
    """Keeps what it was asked for, and gets it after a second, or not."""

    def __init__(self, wanted: Collection[Digest] = ()) -> None:
        self.wanted = frozenset(wanted)
        self.asked: list[tuple[Digest, int, list[Id]]] = []
        self.fails = False

    async def try_fetch(self, digest: Digest, max_bytes: int, sources: list[Id], *, patience_s: float) -> bytes:
        self.asked.append((digest, max_bytes, list(sources)))
        await asyncio.sleep(1.0)
        if self.fails:
            raise BlobUnavailable("nobody has it")
        return b""


def offer(number: int, size: int = SIZE, kind: str = "g") -> Contribution:
    """One of AUTHOR's, with a payload of its own."""
    ref = PayloadRef(KINDS[kind], make_digest(number), size)
    return make_contribution(GENESIS, KEYS[1], payloads=[ref])


def make_digest(number: int) -> Digest:
    return sha256(bytes([number])).digest()


class Node:
    """It is connected with AUTHOR, and ASKER is connected with it and `reaches`."""

    def __init__(self, *opened: Contribution, reaches: int = 0b0100, own: Fetcher | None = None) -> None:
        self.peers = Peers(GENESIS.state, ME, cast(Any, Clock()))
        for key, reach in ((ASKER, reaches), (AUTHOR, 0b0100)):
            self.peers.on_up(key)
            self.peers.on_seen(key)
            peer = self.peers.get(key)
            assert peer is not None
            peer.status = Status(GENESIS.chain_id, 0, ZERO, height=1, reaches=reach)
        self.fetcher = Fetcher()
        self.blobs = RelayedBlobs(
            FixedSpecs(GENESIS, make_spec(FEDPER)),
            self.peers,
            cast(Any, self.fetcher),
            [cast(Any, own or Fetcher())],
            get_open=lambda: opened,
            boundary=Boundary(),
        )

    def finish(self, height: int, *contributions: Contribution) -> None:
        self.blobs.on_block(cast(Block, SimpleNamespace(height=height, contributions=contributions)))

    async def settle(self) -> None:
        """Lets the workers do what there is to do."""
        task = asyncio.create_task(self.blobs.run())
        await asyncio.sleep(60.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_what_a_final_block_offers_is_pulled_once_for_whoever_cannot_reach_its_author() -> None:
    async def story() -> None:
        node = Node()
        node.finish(1, offer(1))
        assert [node.blobs.is_coming(ASKER, make_digest(1)) for _ in range(3)] == [True] * 3
        await node.settle()
        assert node.fetcher.asked == [(make_digest(1), SIZE, [AUTHOR])]

    run_virtual(story())


def test_what_could_not_be_had_may_be_asked_for_again() -> None:
    async def story() -> None:
        node = Node()
        node.fetcher.fails = True
        node.finish(1, offer(1))
        for _ in range(2):
            assert node.blobs.is_coming(ASKER, make_digest(1))
            await node.settle()
        assert len(node.fetcher.asked) == 2

    run_virtual(story())


def test_nothing_is_pulled_that_nobody_has_signed_or_that_is_voted_on() -> None:
    node = Node()
    node.finish(1, offer(1), offer(2, kind="prototypes"))
    assert not node.blobs.is_coming(ASKER, make_digest(3))
    assert not node.blobs.is_coming(ASKER, make_digest(2))


def test_who_is_connected_with_the_author_asks_it_itself() -> None:
    node = Node(reaches=0b0110)
    node.finish(1, offer(1))
    assert not node.blobs.is_coming(ASKER, make_digest(1))
    assert not node.blobs.is_coming(AUTHOR, make_digest(1))


def test_nothing_is_pulled_for_who_is_no_member() -> None:
    """An observer takes nothing that is on demand, and could have every member pull everything."""
    node = Node()
    node.finish(1, offer(1))
    assert not node.blobs.is_coming(OBSERVER, make_digest(1))


def test_what_this_node_cannot_have_itself_it_promises_nobody() -> None:
    node = Node()
    node.finish(1, offer(1))
    node.peers.on_down(AUTHOR)
    assert not node.blobs.is_coming(ASKER, make_digest(1))


def test_what_is_on_its_way_here_or_will_be_final_in_a_moment_is_coming_and_pulled_by_nobody_else() -> None:
    node = Node(offer(1))
    assert node.blobs.is_coming(ASKER, make_digest(1))
    node = Node(own=Fetcher([make_digest(1)]))
    node.finish(1, offer(1))
    assert node.blobs.is_coming(ASKER, make_digest(1))
    assert "pulling=0" in repr(node.blobs)


def test_what_is_old_is_not_pulled_any_more() -> None:
    async def story() -> None:
        node = Node()
        keep = GENESIS.rules.keep_heights
        node.finish(1, offer(1))
        assert node.blobs.is_coming(ASKER, make_digest(1))
        for height in range(2, min(keep, relayed.NEWEST) + 2):
            node.finish(height, offer(height))
        assert f"heights={min(keep, relayed.NEWEST)}," in repr(node.blobs)
        await node.settle()
        assert node.fetcher.asked == []
        assert not node.blobs.is_coming(ASKER, make_digest(1))

    run_virtual(story())


@pytest.mark.parametrize(("size", "expected"), [(SIZE, relayed.MAX_PULLS), (relayed.MAX_PULL_BYTES // 3, 3)])
def test_one_peer_is_served_no_more_than_its_share_at_a_height(size: int, expected: int) -> None:
    node = Node()
    offers = [offer(number, size) for number in range(200)]
    node.finish(1, *offers)
    assert sum(node.blobs.is_coming(ASKER, make_digest(number)) for number in range(200)) == expected
    assert node.blobs.is_coming(OTHER, make_digest(199))  # another's share is its own
    node.finish(2)
    assert node.blobs.is_coming(ASKER, make_digest(198))
