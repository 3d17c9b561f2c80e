"""The overlay: both ends agree on it, it holds together whoever is silent, and nobody has many neighbours."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from random import Random

import pytest

from chain.block import Id
from node.p2p.overlay import MANY, NUM_EAGER, NUM_EAGER_OF_MANY, NUM_RINGS, Overlay

CHAIN = b"c" * 32
MEMBERS = [hashlib.sha256(bytes([i // 256, i % 256])).digest() for i in range(100)]
OVERLAYS = {member: Overlay(CHAIN, MEMBERS, member) for member in MEMBERS}


def choose(silent: Collection[Id]) -> dict[Id, list[Id]]:
    """Whom each member that is not silent passes on to what is new."""
    here = [member for member in MEMBERS if member not in silent]
    return {member: OVERLAYS[member].choose(lambda other: other in silent)[1] for member in here}


def reach(neighbours: dict[Id, list[Id]]) -> set[Id]:
    """Who hears of what the first of them tells."""
    first = next(iter(neighbours))
    heard, telling = {first}, [first]
    while telling:
        for other in neighbours[telling.pop()]:
            if other in neighbours and other not in heard:
                heard.add(other)
                telling.append(other)
    return heard


def test_both_ends_agree_who_is_whose_neighbour_and_nobody_has_many() -> None:
    for member, overlay in OVERLAYS.items():
        linked, eager = overlay.choose(lambda other: False)
        assert member not in linked
        assert len(linked) <= 2 * NUM_RINGS
        assert set(eager) <= set(linked)
        assert len(eager) <= 2 * NUM_EAGER
        for other in eager:
            assert member in OVERLAYS[other].choose(lambda other: False)[1]


def test_of_very_many_more_are_told_at_once() -> None:
    many = [hashlib.sha256(bytes([i // 256, i % 256, 1])).digest() for i in range(MANY + 1)]
    eager = Overlay(CHAIN, many, many[0]).choose(lambda _: False)[1]
    assert 2 * NUM_EAGER < len(eager) <= 2 * NUM_EAGER_OF_MANY


def test_another_chain_draws_other_neighbours() -> None:
    one, other = OVERLAYS[MEMBERS[0]], Overlay(b"d" * 32, MEMBERS, MEMBERS[0])
    assert set(one.choose(lambda _: False)[0]) != set(other.choose(lambda _: False)[0])


@pytest.mark.parametrize("seed", range(20))
def test_all_hear_of_what_is_new_whichever_third_is_silent(seed: int) -> None:
    neighbours = choose(set(Random(seed).sample(MEMBERS, 33)))
    assert reach(neighbours) == neighbours.keys()


def test_a_member_whose_neighbours_are_all_silent_has_others_that_agree() -> None:
    lonely = MEMBERS[7]
    silent = set(OVERLAYS[lonely].choose(lambda _: False)[0])
    neighbours = choose(silent)
    heard = [other for other in neighbours[lonely] if other not in silent]
    assert len(heard) >= NUM_EAGER
    assert all(lonely in neighbours[other] for other in heard)
    assert reach(neighbours) == neighbours.keys()


def test_who_is_passed_over_stays_a_neighbour_to_be_heard_of_again() -> None:
    overlay = OVERLAYS[MEMBERS[0]]
    usual = set(overlay.choose(lambda _: False)[0])
    gone = next(iter(usual))
    assert usual <= set(overlay.choose(lambda other: other == gone)[0])


def test_of_two_members_each_is_the_others_neighbour() -> None:
    one, other = MEMBERS[:2]
    assert Overlay(CHAIN, [one, other], one).choose(lambda _: False) == ([other], [other])
