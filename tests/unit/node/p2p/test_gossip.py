"""Gossip: a peer gets what it lacks, not from everybody who has it, and in the end from everybody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from chain.block import Contribution, Id, Phase, Vote
from chain.signing import SigningKey
from node.consensus.gossip import Gossip, Position
from node.p2p.status import Status, VoteBitmap
from node.p2p.transport.base import Message
from support.data.chains import make_contribution, make_genesis, make_keys


class Posts:
    """A transport that keeps what is posted."""

    def __init__(self, me: Id) -> None:
        self.me = me
        self.posted: list[tuple[Id, Message]] = []

    def post(self, peer: Id, message: Message) -> None:
        self.posted.append((peer, message))


class Giver:
    """A member at height 1 that holds one contribution."""

    def __init__(self, genesis: Any, me: SigningKey, contribution: Contribution) -> None:
        machine = SimpleNamespace(
            height=1,
            contributions={contribution.author: contribution},
            candidates={},
            voting=SimpleNamespace(get_missing=lambda held: (), get_proof=lambda: self.proof),
        )
        self.proof: tuple[Vote, ...] = ()
        self.posts, self.now_s = Posts(me.id), 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        position = Position(0, genesis.block0.id, cast(Any, machine), contributes=True)
        self.gossip = Gossip(genesis, cast(Any, self.posts), cast(Any, None), cast(Any, clock), lambda: position)
        self.gossip.on_held(contribution)
        self.now_s = 10.0

    def hear(self, peer: Id, status: Status) -> int:
        """How many objects it gives for this status."""
        before = len(self.posts.posted)
        self.gossip.on_status(peer, status)
        return len(self.posts.posted) - before


@pytest.mark.parametrize(
    ("n", "expected"),
    [(4, [3, 3]), (16, [4, 8, 15, 15]), (50, [4, 8, 16, 32, 49])],
)
def test_each_time_it_is_still_missing_twice_as_many_give_it(n: int, expected: list[int]) -> None:
    keys = sorted(make_keys(n), key=lambda key: key.id)
    genesis = make_genesis(keys)
    contribution = make_contribution(genesis, keys[5 % n], height=1)
    lacking = keys[5 % n - 1]  # the last in turn, were it to give
    status = Status(genesis.chain_id, 0, genesis.block0.id, height=1, view=0, contributes=True, contributions=0)
    givers = [Giver(genesis, key, contribution) for key in keys if key is not lacking]
    author = next(giver for giver in givers if giver.posts.me == contribution.author)
    for count in expected:
        assert sum(giver.hear(lacking.id, status) for giver in givers) == count
    assert len(author.posts.posted) == len(expected)


def test_what_has_only_just_come_is_under_way_and_counts_as_no_turn() -> None:
    keys = sorted(make_keys(16), key=lambda key: key.id)
    genesis = make_genesis(keys)
    contribution = make_contribution(genesis, keys[0], height=1)
    status = Status(genesis.chain_id, 0, genesis.block0.id, height=1, view=0, contributes=True, contributions=0)
    author, far = (Giver(genesis, key, contribution) for key in (keys[0], keys[7]))
    for giver in (author, far):
        giver.now_s = 0.0
        assert [giver.hear(keys[15].id, status) for _ in range(3)] == [0, 0, 0]
        giver.now_s = 10.0
    assert [author.hear(keys[15].id, status), far.hear(keys[15].id, status)] == [1, 0]


def test_the_prevotes_behind_a_block_are_given_once_a_view_whatever_the_bitmap_says() -> None:
    keys = sorted(make_keys(4), key=lambda key: key.id)
    genesis = make_genesis(keys)
    contribution = make_contribution(genesis, keys[0], height=1)
    giver = Giver(genesis, keys[0], contribution)
    giver.proof = tuple(Vote(Phase.PREVOTE, 1, 2, b"b" * 32, key.id, bytes(64)) for key in keys[:3])

    def hear(view: int) -> int:
        held = (VoteBitmap(2, Phase.PREVOTE, 0b1111),)  # it has one of each, but of which block?
        status = Status(genesis.chain_id, 0, genesis.block0.id, height=1, view=view, contributions=1, votes=held)
        return giver.hear(keys[3].id, status)

    assert [hear(view) for view in (0, 2, 3, 3, 4, 4, 3)] == [0, 0, 3, 0, 3, 0, 0]
