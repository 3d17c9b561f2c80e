"""Relays: who passes on what an author cannot send to all itself, and what is believed of members through others."""

from __future__ import annotations

from typing import Any, cast

import pytest

from chain.block import ZERO, Id
from node.consensus.gossip.relay import Relay
from node.p2p.peers import Peers
from node.p2p.status import Status
from node.p2p.transport.base import Message, MessageKind
from support.data.chains import make_genesis, make_keys

KEYS = sorted(make_keys(5), key=lambda key: key.id)
IDS = [key.id for key in KEYS]
GENESIS = make_genesis(KEYS)
MESSAGE = Message(MessageKind.VOTE, b"a vote")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Node:
    """Member `me`, who has just heard from those that `links` connects it with what they say of the others."""

    def __init__(self, me: int, links: set[tuple[int, int]]) -> None:
        self.me, self.clock, self.links = IDS[me], Clock(), links
        self.posted: list[tuple[Id, Message]] = []
        self.peers = Peers(GENESIS.state, self.me, cast(Any, self.clock))
        self.relay = Relay(cast(Any, self), self.peers, lambda: GENESIS.state)
        for index in [index for index in range(len(IDS)) if self.is_linked(me, index)]:
            self.peers.on_up(IDS[index])
            reaches = sum(1 << other for other in range(len(IDS)) if self.is_linked(index, other))
            for _ in range(2):
                self.hear(index, reaches=reaches)

    def is_linked(self, a: int, b: int) -> bool:
        return (a, b) in self.links or (b, a) in self.links

    def hear(self, index: int, **told: Any) -> None:
        self.peers.on_seen(IDS[index])
        self.peers.on_status(IDS[index], Status(GENESIS.chain_id, 0, ZERO, height=1, **told))

    def post(self, peer: Id, message: Message) -> None:
        self.posted.append((peer, message))

    def pass_on(self, author: int, sender: int | None = None) -> list[int]:
        """To whom it passes on something new."""
        self.posted.clear()
        self.relay.pass_on(IDS[author if sender is None else sender], IDS[author], MESSAGE)
        assert all(message is MESSAGE for _, message in self.posted)
        return [IDS.index(peer) for peer, _ in self.posted]


FULL = {(a, b) for a in range(5) for b in range(a)}


def test_where_all_are_connected_nothing_is_passed_on() -> None:
    assert [Node(me, FULL).pass_on(author=0) for me in range(1, 5)] == [[]] * 4


@pytest.mark.parametrize(
    ("author", "expected"),
    [(0, {1: [3]}), (3, {4: [0]})],  # the next of 1, 2 and 4 after the author, who comes before the first again
)
def test_the_first_after_the_author_that_both_reach_passes_on(author: int, expected: dict[int, list[int]]) -> None:
    links = FULL - {(3, 0)}
    passed = {me: Node(me, links).pass_on(author) for me in range(5) if me not in (0, 3)}
    assert {me: peers for me, peers in passed.items() if peers} == expected


def test_the_hub_of_a_star_passes_on_to_all_but_the_author() -> None:
    star = {(4, leaf) for leaf in range(4)}
    assert Node(4, star).pass_on(author=1) == [0, 2, 3]
    assert Node(0, star).pass_on(author=4) == []


def test_what_comes_from_another_than_its_author_is_not_passed_on() -> None:
    assert Node(4, {(4, leaf) for leaf in range(4)}).pass_on(author=1, sender=2) == []


def test_one_of_two_that_knows_of_the_connection_is_enough() -> None:
    """It has come up a moment ago: the other's last status is from before."""
    node = Node(4, FULL - {(3, 0)})
    node.hear(3, reaches=0b10111)
    assert node.pass_on(author=0) == []


def test_who_has_not_said_yet_whom_it_reaches_is_passed_nothing() -> None:
    node = Node(4, {(4, leaf) for leaf in range(4)})
    peer = node.peers.get(IDS[2])
    assert peer is not None
    peer.status = None
    assert node.pass_on(author=1) == [0, 3]
    assert node.pass_on(author=2) == []


def test_one_that_has_just_come_up_has_not_told_of_all_its_connections_yet() -> None:
    node = Node(4, {(4, leaf) for leaf in range(4)})
    node.peers.on_down(IDS[2])
    node.peers.on_up(IDS[2])
    assert (node.pass_on(author=1), node.pass_on(author=2)) == ([0, 3], [])
    node.hear(2)  # its greeting, and it has greeted nobody else so far
    assert (node.pass_on(author=1), node.pass_on(author=2)) == ([0, 3], [])
    node.hear(2, reaches=0b10000)
    assert (node.pass_on(author=1), node.pass_on(author=2)) == ([0, 2, 3], [0, 1, 3])


# ---- through others

PAIR = {(4, 0), (3, 0), (4, 1), (3, 1), (4, 3)}  # 0 and 1 reach 3 and 4


def test_a_member_is_in_sight_through_those_that_are_alive_and_say_that_they_reach_it() -> None:
    node = Node(0, PAIR)
    assert [relay.id for relay in node.peers.get_relays(IDS[1])] == [IDS[3], IDS[4]]
    assert (node.peers.is_in_sight(IDS[1]), node.peers.is_in_sight(IDS[2])) == (True, False)
    assert node.peers.count_alive_members() == 4
    node.hear(3, reaches=0b10001)
    node.peers.on_down(IDS[4])
    assert not node.peers.is_in_sight(IDS[1])
    node = Node(0, PAIR)
    node.clock.now_s += 60.0
    assert not node.peers.is_in_sight(IDS[1])
    assert node.peers.count_alive_members() == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([(0, 0), (0, 0)], None),
        ([(1, 0), (0, 0)], True),
        ([(0, 0), (0, 1)], None),
        ([(1, 0), (0, 1)], True),
        ([(0, 1), (0, 1)], False),
        ([(1, 1), (0, 1)], True),
    ],
)
def test_one_word_that_it_contributes_is_enough_and_that_it_abstains_is_everybodys(
    words: list[tuple[int, int]], expected: bool | None
) -> None:
    node = Node(0, PAIR)
    for index, (contributes, abstains) in zip((3, 4), words, strict=True):
        node.hear(index, reaches=0b00010, contributing=contributes << 1, abstaining=abstains << 1)
    assert node.peers.get_word(IDS[1], 1) is expected
    assert node.peers.get_word(IDS[1], 2) is None


def test_of_whom_a_node_is_connected_with_it_believes_nobody_else() -> None:
    node = Node(0, FULL)
    node.hear(3, reaches=0b11111, contributing=0b00010)
    assert node.peers.get_word(IDS[1], 1) is None
    node.hear(1, reaches=0b11111, abstains=True)
    assert node.peers.get_word(IDS[1], 1) is False
    node.hear(1, reaches=0b11111, contributes=True)
    assert node.peers.get_word(IDS[1], 1) is True


def test_a_node_tells_of_those_alone_that_it_is_connected_with() -> None:
    node = Node(4, {(4, leaf) for leaf in (0, 1, 2)})
    node.hear(0, reaches=0b10000, contributes=True)
    node.hear(1, reaches=0b10000, abstains=True)
    assert node.peers.get_reach(1) == (0b00111, 0b00001, 0b00010)
    assert node.peers.get_reach(2) == (0b00111, 0, 0)
    node.clock.now_s += 60.0
    node.hear(2, reaches=0b11000)
    assert node.peers.get_reach(1) == (0b00100, 0, 0)
