"""Credit: what any pattern of silence costs, and that a slow honest member is not starved."""

from __future__ import annotations

from random import Random

import pytest

from node.consensus.height.credit import FULL, LEAST, PER_HEIGHT, Credits, VainWait
from support.data.chains import make_keys

ALICE, BOB = (key.id for key in make_keys(2))


def wait(share: float = 1.0, why: str = "no contribution came") -> VainWait:
    return VainWait(share, why)


def test_a_member_begins_with_two_waits_and_each_in_vain_takes_one() -> None:
    credits_ = Credits([ALICE, BOB])
    assert credits_.get_waits(ALICE) == FULL == 2.0
    assert credits_.on_final(1, {ALICE: wait()}) == frozenset()
    assert credits_.get_waits(ALICE) == 1 + PER_HEIGHT
    assert credits_.on_final(2, {ALICE: wait()}) == {ALICE}
    assert credits_.get_overdrawn() == {ALICE}
    assert credits_.get_waits(BOB) == FULL


def test_what_is_used_up_comes_back_by_a_thirty_second_a_height() -> None:
    credits_ = Credits([ALICE])
    for height in (1, 2):
        credits_.on_final(height, {ALICE: wait()})
    heights = 0
    while ALICE in credits_.get_overdrawn():
        credits_.on_final(3 + heights, {})
        heights += 1
    assert heights == 30  # two of 32 came with the heights that it cost
    for height in range(100, 200):
        credits_.on_final(height, {})
    assert credits_.get_waits(ALICE) == FULL


def test_why_a_member_is_not_awaited_is_said() -> None:
    credits_ = Credits([ALICE])
    assert credits_.explain(ALICE) is None
    credits_.on_final(7, {ALICE: wait()})
    assert credits_.explain(ALICE) is None
    credits_.on_final(9, {ALICE: wait(why="its payloads did not come")})
    assert credits_.explain(ALICE) == "waited for in vain 2 times, last at height 9: its payloads did not come"


def test_a_wait_that_was_not_for_a_contribution_counts_too() -> None:
    credits_ = Credits([ALICE])
    assert not credits_.charge(ALICE, 1, wait())
    assert credits_.charge(ALICE, 1, wait(0.5, "g: cannot be had"))
    assert not credits_.charge(ALICE, 2, wait(0.5))
    assert not credits_.charge(ALICE, 3, wait(0.0))
    assert credits_.get_waits(ALICE) == 0.0


def test_a_stranger_has_no_account() -> None:
    credits_ = Credits([ALICE])
    assert not credits_.charge(BOB, 1, wait())
    assert credits_.get_waits(BOB) == FULL
    assert credits_.explain(BOB) is None


@pytest.mark.parametrize("seed", range(20))
def test_no_pattern_of_vain_waits_costs_more_than_two_and_a_thirty_second_a_height(seed: int) -> None:
    """It knows its account, and chooses at each height how long to be waited for."""
    rng, credits_, cost = Random(seed), Credits([ALICE]), 0.0
    greed = rng.choice((0.1, 0.5, 0.9, 1.0))
    for height in range(1, 1001):
        share = 0.0
        if credits_.get_waits(ALICE) >= LEAST and rng.random() < greed:
            share = rng.choice((1.0, rng.random()))
        cost += share
        credits_.on_final(height, {ALICE: wait(share)} if share else {})
        assert cost <= FULL + height * PER_HEIGHT
    assert cost > 0.9 * 1000 * PER_HEIGHT or greed < 0.9
