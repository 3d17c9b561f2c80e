"""Members that are no neighbours: signs of life come through others, and a rumour of one that is gone dies out."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from node.p2p.peers import A_MOMENT_S, FAR, UNKNOWN_AGE, Peers
from node.p2p.status import Status
from support.data.chains import make_genesis, make_keys
from support.federation.virtual_time import run_virtual

KEYS = make_keys(7)
IDS = [key.id for key in KEYS]
GENESIS = make_genesis(KEYS)
STATUS_S = GENESIS.rules.waits.status_s


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def make_peers(me: int, clock: Clock, neighbours: list[int], mesh_max: int = 4) -> Peers:
    peers = Peers(GENESIS.state, IDS[me], cast(Any, clock), mesh_max)
    for other in neighbours:
        peers.on_up(IDS[other])
        peers.on_seen(IDS[other])
    return peers


def tell(teller: Peers, me: int, listener: Peers, **more: Any) -> None:
    status = Status(GENESIS.chain_id, 0, GENESIS.block0.id, height=1, ages=teller.get_ages(), **more)
    listener.on_seen(IDS[me])
    listener.on_status(IDS[me], status)


def test_a_sign_of_life_goes_from_neighbour_to_neighbour_and_grows_older() -> None:
    clock = Clock()
    first, second, third = (make_peers(me, clock, near) for me, near in ((1, [0, 2]), (2, [1, 3]), (3, [2])))
    tell(first, 1, second)
    tell(second, 2, third)
    assert list(third.get_ages()[:4]) == [2, 1, 0, 0]
    assert third.is_in_sight(IDS[0])
    assert not third.is_alive(IDS[0])
    assert not third.is_in_sight(IDS[6])
    assert third.get_ages()[6] == UNKNOWN_AGE
    assert third.count_alive_members() == 4
    clock.now_s += FAR * third.silence_s
    assert not third.is_in_sight(IDS[0])


def test_two_that_tell_each_other_of_one_that_is_gone_do_not_keep_it_alive() -> None:
    clock = Clock()
    one, other = make_peers(1, clock, [0, 2]), make_peers(2, clock, [1])
    tell(one, 1, other)
    one.on_down(IDS[0])
    for _ in range(100):
        clock.now_s += STATUS_S / 4
        tell(one, 1, other)
        tell(other, 2, one)
    assert not one.is_in_sight(IDS[0])
    assert not other.is_in_sight(IDS[0])


def test_what_a_member_has_signed_is_a_sign_of_life_by_itself() -> None:
    peers = make_peers(0, Clock(), [1])
    assert not peers.is_in_sight(IDS[5])
    peers.on_sign(IDS[5])
    assert peers.is_in_sight(IDS[5])


def test_that_a_member_contributes_is_passed_on_and_that_it_abstains_only_from_itself() -> None:
    clock = Clock()
    near, far = make_peers(1, clock, [0, 2]), make_peers(2, clock, [1])
    near.on_status(IDS[0], Status(GENESIS.chain_id, 0, GENESIS.block0.id, height=1, contributes=True))
    _, contributing, abstaining = near.get_reach(1)
    assert (contributing, abstaining) == (0b1, 0)
    tell(near, 1, far, contributing=contributing | 0b10000, abstaining=0b1000000)
    assert far.get_word(IDS[0], 1) is True
    assert far.get_word(IDS[4], 1) is True  # by one word: that costs a wait, for as long as its credit lasts
    assert far.get_word(IDS[6], 1) is None  # nobody has a member left out that is not its own word
    assert far.get_word(IDS[0], 2) is None
    assert far.get_reach(1)[1] == 0b10001


def test_up_to_mesh_max_members_no_ages_are_told_and_none_count() -> None:
    clock = Clock()
    peers = make_peers(0, clock, [1], mesh_max=7)
    assert peers.get_ages() == b""
    peers.on_status(IDS[1], Status(GENESIS.chain_id, 0, GENESIS.block0.id, ages=bytes(7)))
    peers.on_sign(IDS[5])
    assert not peers.is_in_sight(IDS[5])


def test_one_that_says_it_has_few_connections_and_that_most_are_connected_with_has_many() -> None:
    neighbours, most = [1, 2, 3, 4, 5, 6], 4
    honest, liar, everybody = 6, 5, 0b1111111
    peers = make_peers(0, Clock(), neighbours)
    for other in neighbours:
        others = everybody & ~(1 << honest) if other > 2 else everybody
        reaches = {honest: 0b0000111, liar: 0b0000001}.get(other, others)
        tell(make_peers(other, Clock(), [0]), other, peers, reaches=reaches)
    assert peers.list_members_of_few(most) == [IDS[honest]]  # two of six say that they are connected with it
    peers.on_down(IDS[4])
    peers.on_down(IDS[3])
    assert set(peers.list_members_of_few(most)) == {IDS[honest], IDS[liar]}  # of few neighbours it cannot be told


def test_one_that_tells_anew_whom_it_reaches_has_others_look_no_more_often_for_it() -> None:
    async def story() -> None:
        peers, looks = make_peers(0, Clock(), [1]), 0

        async def look() -> None:
            nonlocal looks
            while True:
                await peers.until_sight_may_change(0.5)
                looks += 1

        looking, teller = asyncio.create_task(look()), make_peers(1, Clock(), [0])
        for turn in range(1000):
            await asyncio.sleep(0.001)
            tell(teller, 1, peers, reaches=turn % 2)
        assert 1.0 / A_MOMENT_S / 2 < looks <= 1.0 / A_MOMENT_S
        looking.cancel()

    run_virtual(story())
