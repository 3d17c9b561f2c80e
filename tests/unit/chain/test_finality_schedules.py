"""Seeded hostile schedules for one height (PROTOCOL §11.1), and proof that the checker can fail.

After every step I1, I2, I4, I5, I6 and I9 hold for whoever moved; when the network has settled, I10. A failure names
its schedule; `run_schedule` with that seed shows it again.
"""

from __future__ import annotations

import pytest

from chain.block import Id, Phase
from chain.finality import Voting
from chain.votes import VoteSet
from chain.waits import Waits
from support.faults.naive_voting import VoteAgain, VoteOnce
from support.faults.scheduler import World, compute_bft_quorum, compute_majority_quorum, run_schedule
from support.faults.voters import MakeVoting, TimeRule
from support.federation.invariants import InvariantBroken

SETTINGS = [(n, f) for n in (1, 2, 3, 4, 7) for f in range((n - 1) // 3 + 1)]
CHUNK, LONG_CHUNK = 125, 2_500  # schedules in one test


def make_chunks(schedules: int, chunk: int = CHUNK) -> list[tuple[int, int, range]]:
    """Disjoint seeds, dealt evenly over the settings."""
    each = schedules // len(SETTINGS)
    firsts = range(0, each, chunk)
    return [(n, f, range(first, min(first + chunk, each))) for n, f in SETTINGS for first in firsts]


def name(value: object) -> str:
    return f"{value.start}-{value.stop - 1}" if isinstance(value, range) else str(value)


@pytest.mark.parametrize(("n", "f", "seeds"), make_chunks(500), ids=name)
def test_no_schedule_forks_or_gets_stuck(n: int, f: int, seeds: range) -> None:
    for seed in seeds:
        run_schedule(seed, n, f)


@pytest.mark.outer
@pytest.mark.parametrize(("n", "f", "seeds"), make_chunks(1_000), ids=name)
def test_no_schedule_of_many_forks_or_gets_stuck(n: int, f: int, seeds: range) -> None:
    for seed in seeds:
        run_schedule(1_000 + seed, n, f)


@pytest.mark.long
@pytest.mark.parametrize(("n", "f", "seeds"), make_chunks(50_000, chunk=LONG_CHUNK), ids=name)
def test_no_schedule_of_very_many_forks_or_gets_stuck(n: int, f: int, seeds: range) -> None:
    for seed in seeds:
        run_schedule(10_000 + seed, n, f)


@pytest.mark.long
@pytest.mark.parametrize("f", range(4))
def test_no_schedule_of_ten_members_forks_or_gets_stuck(f: int) -> None:
    for seed in range(500):
        run_schedule(seed, 10, f)


def test_majority_quorum_suffices_where_nobody_lies() -> None:
    for n in (2, 4):
        for seed in range(100):
            run_schedule(seed, n, 0, quorum=compute_majority_quorum(n))


def test_one_seed_is_one_schedule() -> None:
    assert run_schedule(17, 7, 2, calm=False) == run_schedule(17, 7, 2, calm=False)


@pytest.mark.parametrize(("n", "f"), [setting for setting in SETTINGS if setting[1] == 0])
def test_calm_federation_finalises_in_the_first_views(n: int, f: int) -> None:
    views = sorted(run_schedule(seed, n, f, calm=True).view for seed in range(40))
    assert views[20] <= 1
    assert views[-1] <= 4


@pytest.mark.parametrize("seed", range(5))
def test_sides_without_a_quorum_stay_in_their_view_until_the_partition_heals(seed: int) -> None:
    world = World(seed, 4, 0, quorum=3, calm=True, sides=((0, 1), (2, 3)))
    world.advance(59.0)
    assert [member.voting.view for member in world.honest] == [0, 0, 0, 0]
    assert world.checker.decided == {}
    world.run()
    assert set(world.checker.decided) == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(5))
def test_side_with_a_quorum_goes_on_and_the_other_follows_when_the_partition_heals(seed: int) -> None:
    world = World(seed, 4, 0, quorum=3, calm=True, sides=((0, 2, 3), (1,)))
    world.advance(59.0)
    assert set(world.checker.decided) == {0, 2, 3}
    assert world.honest[1].voting.view == 0
    world.run()
    assert set(world.checker.decided) == {0, 1, 2, 3}


# Canaries: what must go wrong, each with the first seed that was seen to. Any change in what members send shifts the
# schedules, so the search goes on from there if it must.


def find_breach(
    first: int,
    n: int,
    f: int,
    *,
    quorum: int,
    make_voting: MakeVoting = Voting,
    calm: bool | None = False,
    time_rule: TimeRule = TimeRule.HOLD,
    invariant: str,
) -> int:
    for seed in range(first, first + 500):
        try:
            run_schedule(seed, n, f, quorum=quorum, make_voting=make_voting, calm=calm, time_rule=time_rule)
        except InvariantBroken as broken:
            if broken.invariant == invariant:
                return seed
    pytest.fail(f"no schedule from {first} on broke {invariant}")


@pytest.mark.parametrize("seed", [0, 7])
def test_voting_once_for_the_first_valid_block_gets_stuck_even_in_a_calm_network(seed: int) -> None:
    assert find_breach(seed, 4, 0, quorum=3, make_voting=VoteOnce, calm=True, invariant="I10") == seed


@pytest.mark.parametrize(("seed", "n"), [(74, 3), (107, 3), (8, 7), (16, 7)])
def test_voting_again_for_the_best_block_forks_with_no_liar(seed: int, n: int) -> None:
    quorum = compute_majority_quorum(n)
    assert find_breach(seed, n, 0, quorum=quorum, make_voting=VoteAgain, invariant="I1") == seed


@pytest.mark.parametrize(
    "seed", [23, pytest.param(53, marks=pytest.mark.outer), pytest.param(57, marks=pytest.mark.outer)]
)
def test_one_liar_over_the_bound_forks(seed: int) -> None:
    find_breach(seed, 4, 2, quorum=compute_bft_quorum(4), invariant="I1")


@pytest.mark.parametrize("seed", [pytest.param(33, marks=pytest.mark.outer), 88])
def test_majority_quorum_forks_under_two_liars_of_seven(seed: int) -> None:
    find_breach(seed, 7, 2, quorum=compute_majority_quorum(7), invariant="I1")


class Unlocked(Voting):
    """Follows any proposal, whatever it has precommitted before."""

    def _is_free_for(self, block_id: Id) -> bool:
        return True


@pytest.mark.parametrize(("seed", "n", "f"), [(327, 4, 1), pytest.param(55, 7, 2, marks=pytest.mark.outer)])
def test_members_without_a_lock_fork_under_as_many_liars_as_are_allowed(seed: int, n: int, f: int) -> None:
    find_breach(seed, n, f, quorum=compute_bft_quorum(n), make_voting=Unlocked, calm=None, invariant="I1")


@pytest.mark.outer
@pytest.mark.parametrize(("seed", "n", "f"), [(1864, 4, 1), (118, 7, 2)])
def test_refusing_for_good_what_is_too_early_gets_stuck_under_one_liar(seed: int, n: int, f: int) -> None:
    """A liar's block at the very edge of what is valid yet: some lock on it, the others never take it."""
    rule = TimeRule.REFUSE
    find_breach(seed, n, f, quorum=compute_bft_quorum(n), calm=True, time_rule=rule, invariant="I10")


class StrictBook(VoteSet):
    def count_reached(self, view: int, phase: Phase) -> int:
        return len({vote.voter for vote in self.get_votes(view, phase)})


class Strict(Voting):
    """Starts the vote timers at q votes of this very view: waits for members that have jumped over it."""

    def __init__(self, *, height: int, members: tuple[Id, ...], quorum: int, me: Id | None, waits: Waits) -> None:
        super().__init__(height=height, members=members, quorum=quorum, me=me, waits=waits)
        self._book = StrictBook()


@pytest.mark.outer
@pytest.mark.parametrize("seed", [337])
def test_members_that_wait_for_who_has_jumped_over_their_view_get_stuck(seed: int) -> None:
    find_breach(seed, 4, 1, quorum=3, make_voting=Strict, invariant="I10")
