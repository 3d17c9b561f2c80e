"""The clocks of a federation as one member sees them: four members, and a clock that the test sets."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from chain.block import Id
from chain.tip import Tip
from node.consensus.gossip.member_clocks import FORGET_S, SETTLE_S, MemberClocks
from node.consensus.height.current import CurrentRound
from node.p2p.clock_skew import compute_lower_median
from support.data.chains import make_genesis, make_keys

GENESIS = make_genesis(make_keys(4))
IDS = GENESIS.state.member_ids
NAMES = [member.name for member in GENESIS.state.members]
BEGAN_MS = 1_800_000_000_000


@dataclass
class SetClock:
    """A steady clock, and a wall clock that is `off_ms` wrong."""

    at_s: float = 0.0
    off_ms: int = 0

    def now_ms(self) -> int:
        return BEGAN_MS + round(self.at_s * 1000) + self.off_ms

    def monotonic(self) -> float:
        return self.at_s


def make_clocks(off_ms: int = 0, *others_ms: int) -> tuple[MemberClocks, SetClock]:
    """Those of member 0, which has heard of the others how far theirs are off."""
    clock = SetClock(off_ms=off_ms)
    clocks = MemberClocks(CurrentRound(Tip.at(GENESIS.state, [GENESIS.block0])), IDS[0], clock)
    for member, other_ms in zip(IDS[1:], others_ms, strict=False):
        clocks.on_status(member, BEGAN_MS + other_ms)
    return clocks, clock


def test_alone_a_node_goes_by_its_own_clock() -> None:
    clocks, clock = make_clocks()
    assert clocks.now_ms() == clock.now_ms()
    assert clocks.get_skews_s() == {}
    assert clocks.describe_wrong() == []


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "judged_ms"),
    [
        (0, (0, 0, 3_600_000), 0),  # one that is fast moves nobody
        (0, (0, 0, -3_600_000), 0),
        (-300_000, (0, 0, 0), 0),  # a slow clock does not vote late
        (300_000, (0, 0, 0), 300_000),  # the own clock where it is later
        (-300_000, (0, 0, 9_000_000), 0),
        (-300_000, (0, 50), 0),
        (-300_000, (9_000_000,), -300_000),  # of two the lower: one liar alone says nothing
        (0, (10, 20, 30), 10),  # the lower median of four
    ],
)
def test_times_are_judged_by_the_own_clock_or_the_lower_median_if_later(
    own_ms: int, others_ms: tuple[int, ...], judged_ms: int
) -> None:
    assert make_clocks(own_ms, *others_ms)[0].now_ms() == BEGAN_MS + judged_ms


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_lower_median_of_all_as_statuses_come_and_are_forgotten(seed: int) -> None:
    random = Random(seed)
    clocks, clock = make_clocks(random.randrange(-100, 100))
    shown: dict[Id, tuple[float, int]] = {}
    for _ in range(50):
        clock.at_s += random.choice([0.0, SETTLE_S + 1, FORGET_S / 2])
        member, off_ms = random.choice(IDS[1:]), random.randrange(-100, 100)
        clocks.on_status(member, BEGAN_MS + round(clock.at_s * 1000) + off_ms)
        before = shown.get(member)
        if before is None or off_ms >= before[1] or clock.at_s - before[0] > SETTLE_S:
            shown[member] = clock.at_s, off_ms
        others = [off for at_s, off in shown.values() if clock.at_s - at_s <= FORGET_S]
        median_ms = compute_lower_median([clock.off_ms, *others])
        assert clocks.now_ms() == clock.now_ms() - clock.off_ms + max(clock.off_ms, median_ms)


def test_a_clock_that_is_off_is_named_whoever_looks() -> None:
    assert make_clocks(0, 0, 10, 300_000)[0].describe_wrong() == [
        f"the clock of {NAMES[3]} is 300.0 s ahead of the median of 4 members' clocks"
    ]
    assert make_clocks(300_000, 0, 10, 0)[0].describe_wrong() == [
        "the clock of this node is 300.0 s ahead of the median of 4 members' clocks"
    ]
    assert make_clocks(0, 0, -5_000, 1_900)[0].describe_wrong() == [
        f"the clock of {NAMES[2]} is 5.0 s behind the median of 4 members' clocks"
    ]


def test_of_two_clocks_nobody_can_say_which_is_wrong() -> None:
    line = f"the clocks of this node and {NAMES[1]} are 300.0 s apart: one of the two is wrong"
    assert make_clocks(0, 300_000)[0].describe_wrong() == [line]
    assert make_clocks(0, -300_000)[0].describe_wrong() == [line]


def test_a_status_that_was_held_up_does_not_make_its_sender_slow() -> None:
    clocks, clock = make_clocks(0, 0, 0, 0)
    clock.at_s = 5.0
    clocks.on_status(IDS[1], BEGAN_MS)
    assert clocks.describe_wrong() == []
    clock.at_s = SETTLE_S + 0.1
    clocks.on_status(IDS[1], BEGAN_MS + 5_000)  # if they all are, its clock has been set back
    assert clocks.describe_wrong() == [f"the clock of {NAMES[1]} is 5.1 s behind the median of 4 members' clocks"]


def test_a_clock_that_is_not_heard_of_any_more_is_forgotten() -> None:
    clocks, clock = make_clocks(0, 300_000, 300_000, 0)
    assert clocks.now_ms() == BEGAN_MS
    clock.at_s = FORGET_S + 0.1
    clocks.on_status(IDS[3], clock.now_ms())
    assert set(clocks.get_skews_s()) == {IDS[0], IDS[3]}


def test_an_own_clock_that_is_set_is_seen_at_once() -> None:
    clocks, clock = make_clocks(-300_000, 0, 0, 0)
    clock.off_ms = 0
    assert clocks.describe_wrong() == []


def test_a_stranger_the_node_itself_and_one_that_does_not_tell_say_nothing() -> None:
    clocks, _ = make_clocks()
    clocks.on_status(b"\7" * 32, BEGAN_MS + 300_000)
    clocks.on_status(IDS[0], BEGAN_MS + 300_000)
    clocks.on_status(IDS[1], 0)
    assert clocks.get_skews_s() == {}
